"""The reference says what the code says, and leaves nothing public out."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.test_examples import parse
from toril import errors, options
from toril.cli.doctor import _print
from toril.cli.main import toril as cli
from toril.doctor import Finding, Severity, codes
from toril.errors import InvalidOptionError

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
assert SPEC is not None
assert SPEC.loader is not None
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)
PAGES: dict[str, str] = reference.make()


def test_the_pages_are_those_that_the_code_makes():
    """``make format`` writes them anew."""
    folder = ROOT / "docs" / "reference"
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.md")}

    assert set(written) == {*PAGES, *reference.BY_HAND}
    assert [name for name, text in PAGES.items() if written[name].read_text() != text] == []


def test_every_option_of_a_job_has_a_row():
    rows = set(re.findall(r"^\| `(\w+)`<br>", PAGES["options.md"], re.MULTILINE))

    assert rows >= options.OPTION_NAMES


def test_every_error_says_when_and_what_to_do():
    for name in reference.error_classes():
        (row,) = re.findall(rf"^\|[· ]*`{name}`[ •]*\|.*$", PAGES["errors.md"], re.MULTILINE)
        assert all(cell.strip() for cell in row.strip("|").split(" | ")), row


def test_an_option_without_a_text_is_refused(monkeypatch):
    monkeypatch.delitem(reference.texts.JOB_OPTIONS, "lane")

    with pytest.raises(reference.Incomplete, match="options of a job without a text: lane"):
        reference.make()


def test_a_text_for_an_error_that_is_gone_is_refused(monkeypatch):
    monkeypatch.delattr(errors, "LaneFullError")

    with pytest.raises(reference.Incomplete, match="errors that do not exist: LaneFullError"):
        reference.make()


def test_every_event_that_a_script_announces_is_described():
    assert reference.events_of_scripts() <= set(reference.texts.QUEUE_EVENTS)
    assert {"added", "completed", "deadLettered", "group:failed", "stalled"} <= (
        reference.events_of_scripts()
    )


def test_every_command_has_a_heading():
    paths = [path for path, _ in reference.commands()]

    assert len(paths) > 40
    assert [path for path in paths if f"\n## toril {path}\n" not in PAGES["cli.md"]] == []


def test_every_code_of_the_doctor_has_a_page_that_is_linked():
    for code in reference.codes_in_use():
        assert f"# {code}: " in PAGES[f"doctor/{code}.md"]
        assert f"]({code}.md)" in PAGES["doctor/README.md"]


@pytest.mark.parametrize("code", sorted(codes.CODES))
def test_what_the_doctor_prints_leads_to_the_page_of_the_code(code: str):
    finding = Finding(
        code=code,
        severity=Severity.WARNING,
        subject="q",
        problem="a problem",
        harm="a harm",
        remedy="a remedy",
    )
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        _print([finding])
    (command,) = re.findall(r"more: (toril doctor --explain \w+)$", told.getvalue(), re.MULTILINE)
    shown = CliRunner().invoke(cli, command.split()[1:]).output
    (page,) = re.findall(r"^In the documentation: (.+)$", shown, re.MULTILINE)

    assert (ROOT / page).read_text() == PAGES[f"doctor/{code}.md"]
    assert codes.CODES[code].title in (ROOT / page).read_text()


def commands_in_codes() -> list[str]:
    texts = [text for code in codes.CODES.values() for text in (code.why, *code.steps)]
    found = re.findall(r"`(toril [^`]+)`", "\n".join(texts))
    return sorted({each for each in found if "…" not in each})


@pytest.mark.parametrize("command", commands_in_codes())
def test_a_command_that_the_doctor_recommends_is_understood(command: str):
    parse(shlex.split(command.replace("--most-keys N", "--most-keys 5")), cli)


def test_an_unknown_code_is_refused():
    with pytest.raises(InvalidOptionError, match="there is no doctor code 'D999'"):
        codes.explain("D999")
