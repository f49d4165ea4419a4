"""What jobs carry is shown and never obeyed: by every command, the monitor and the logs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli.test_help import LEAVES
from tests.cli.test_monitor import cells, monitor, shows, text, whole
from tests.helpers import wait_until
from toril import Compensation, FlowProducer, GroupJob, NewJob, Queue, UnrecoverableError, Worker
from toril.cli.main import run
from toril.cli.monitor.whole import WholeScreen
from toril.logs import get_logger
from toril.protocol.visible_text import visible, visible_json, visible_lines

ESCAPES = {
    "the title": "\x1b]0;pwned\x07",
    "the clipboard": "\x1b]52;c;cHduZWQ=\x07",
    "the screen": "\x1b[2J\x1b[H",
    "a link": "\x1b]8;;http://evil\x1b\\",
    "a colour": "\x1b[31m",
    "C1": "\x9b31m\x90q\x9c",
    "the direction": "\u202eevil\u2066\u2069\u200f",
    "nothing to see": "\u200b\u00ad\ufeff\U000e0041",
    "a line of its own": "\r\nforged\u2028\x85forged\x0b\x0c\b\x7f\x00",
    "half a character": "\ud800",
}
SHORT = "".join(ESCAPES[what] for what in ("C1", "the direction"))
"""What our own rules for ids and names let in."""
MARKUP = "[red]red[/red][link=http://evil]x[/link][/]"
HOSTILE = "".join(ESCAPES.values()).replace("\ud800", "") + MARKUP
QUEUE = f"q{SHORT}"
LETTERS = f"l{SHORT}"

CORPUS: dict[str, list[str]] = {
    "queues": [],
    "jobs": [QUEUE],
    "job": ["{id}", "--queue", QUEUE],
    "events": [QUEUE, "--since", "0", "--count", "8"],
    "monitor": ["--json"],
    "doctor": [],
    "add": [QUEUE, HOSTILE.replace("\0", ""), json.dumps(HOSTILE), "--id", f"new{SHORT}"],
    "retry": ["{id}", f"none{SHORT}", "--queue", QUEUE],
    "promote": [f"later{SHORT}", f"none{SHORT}", "--queue", QUEUE],
    "cancel": [f"none{SHORT}", "{id}"],
    "dlq list": [LETTERS],
    "dlq show": [LETTERS, "{letter}"],
    "dlq summary": [LETTERS],
    "dlq replay": [LETTERS, "{letter}", f"none{SHORT}"],
    "dlq purge": [LETTERS, "--all", "--yes"],
    "groups list": [QUEUE],
    "groups show": [QUEUE, "{group}"],
    "groups complete-member": [QUEUE, "{group}", "x"],
    "groups fail-member": [QUEUE, "{group}", "x", "--reason", "no"],
    "groups retry": [QUEUE, "{group}"],
    "groups retry-compensation": [QUEUE, "{group}"],
    "groups resolve": [QUEUE, "{group}", "--note", "by hand"],
    "groups cancel": [QUEUE, "{group}"],
    "lanes list": [QUEUE],
    "lanes show": [QUEUE, f"lane{SHORT}"],
    "lanes jobs": [QUEUE, f"lane{SHORT}"],
    "lanes pause": [QUEUE, f"lane{SHORT}"],
    "lanes resume": [QUEUE, f"lane{SHORT}"],
    "lanes drain": [QUEUE, f"lane{SHORT}"],
    "schedulers list": [QUEUE],
    "schedulers set": [QUEUE, f"s{SHORT}", "--every", "1h"],
    "schedulers change": [QUEUE, f"s{SHORT}", "--every", "1h"],
    "schedulers pause": [QUEUE, f"s{SHORT}"],
    "schedulers resume": [QUEUE, f"s{SHORT}"],
    "schedulers run": [QUEUE, f"s{SHORT}"],
    "schedulers remove": [QUEUE, f"s{SHORT}"],
    "partitions list": [QUEUE],
    "partitions grow": [QUEUE, "4", "--yes"],
    "pause": [QUEUE],
    "resume": [QUEUE],
    "remove": [f"none{SHORT}", "--queue", QUEUE],
    "clean": [QUEUE],
    "drain": [QUEUE],
    "obliterate": [QUEUE],
    "worker": [f"none{SHORT}:none"],
    "relay": [f"none{SHORT}:none"],
    "schedules list": ["tests.cli.hostile_app:app"],
    "schedules prune": ["tests.cli.hostile_app:app"],
}
OWN_WORDS = {
    "bench": "prints its own numbers",
    "completion": "prints a script of click",
    "acl": "prints what was typed and names of commands",
    "dashboard": "prints an address; its pages have tests/dashboard/test_hostile_text.py",
    "demo": "shows jobs of its own",
    "dev": "shows no job",
}
SHOWING = {"jobs", "job", "events", "dlq list", "dlq show", "groups list", "lanes list", "queues"}


def is_inert(printed: str) -> bool:
    return all(character.isprintable() for line in printed.split("\n") for character in line)


@asynccontextmanager
async def hostile_world(url: str, prefix: str, client: Any):
    """A queue with jobs in many states whose every text is hostile; gives ids to ask for."""
    options: dict[str, Any] = {"connection": url, "prefix": prefix}

    async def handler(job: Any) -> Any:
        await job.log(HOSTILE)
        await job.report(HOSTILE)
        if job.name.startswith("returns"):
            return {HOSTILE: HOSTILE}
        raise UnrecoverableError(HOSTILE)

    async with (
        Queue(QUEUE, **options) as queue,
        Queue(LETTERS, **options) as letters,
        FlowProducer(**options) as flow,
    ):
        await queue.add(f"returns{HOSTILE}", {HOSTILE: [HOSTILE]}, job_id=f"returns{SHORT}")
        await queue.add(f"raises{HOSTILE}", HOSTILE, job_id=f"raises{SHORT}")
        async with Worker(QUEUE, handler, **options):
            await wait_until(lambda: _finished(queue, 2))
        assert await queue.get_job_counts("completed", "failed") == {"completed": 1, "failed": 1}
        await queue.add(f"dies{HOSTILE}", HOSTILE)
        async with Worker(QUEUE, handler, dead_letter_queue=LETTERS, **options):
            await wait_until(letters.get_dead_letter_count)
        group = await flow.add_group(
            f"g{HOSTILE}",
            [GroupJob(f"m{HOSTILE}", queue_name=QUEUE)],
            {f"m{HOSTILE}": Compensation(f"c{HOSTILE}")},
        )
        await queue.add("next", HOSTILE, job_id=f"later{SHORT}", delay=3_600_000)
        await queue.add(f"lane{HOSTILE}", HOSTILE, lane=f"lane{SHORT}")
        await queue.upsert_job_scheduler(
            f"s{SHORT}", every=3_600_000, template=NewJob(f"t{HOSTILE}", HOSTILE)
        )
        raw = f"raw{HOSTILE}".encode()
        base = f"{prefix}:{QUEUE}".encode()
        fields = {"name": raw, "data": b"\x1b]0;no json\x07", "opts": b"{}", "timestamp": "1"}
        await client.hset(base + b":" + raw.replace(b":", b""), mapping=fields)
        await client.rpush(base + b":wait", raw.replace(b":", b""))
        [letter] = await letters.get_dead_letter_jobs()
        yield {"id": f"raises{SHORT}", "letter": letter.id, "group": group.group_id}


async def _finished(queue: Queue, count: int) -> bool:
    return sum((await queue.get_job_counts("completed", "failed")).values()) == count


def test_the_corpus_has_every_command():
    assert set(CORPUS) | set(OWN_WORDS) == {path for path, _ in LEAVES}


@pytest.mark.no_audit("hostile jobs are written by hand")
async def test_no_command_lets_a_job_speak_to_the_terminal(
    url: str, prefix: str, client: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setenv("TORIL_URL", url)
    monkeypatch.setenv("TORIL_PREFIX", prefix)
    async with hostile_world(url, prefix, client) as named:
        for path, arguments in CORPUS.items():
            words = [*path.split(), *(word.format(**named) for word in arguments)]
            for flags in ([], ["--json"]):
                with monkeypatch.context() as patch:
                    patch.setattr("click.termui.visible_prompt_func", lambda prompt: "n")
                    code = await asyncio.to_thread(run, [*words, *flags])
                printed = capsys.readouterr()

                assert is_inert(printed.out), (path, printed.out)
                assert is_inert(printed.err), (path, printed.err)
                assert "Traceback" not in printed.err, (path, printed.err)
                if path in SHOWING:
                    assert code == 0, (path, printed.err)
                    assert "\\u202e" in printed.out, path
                if flags and printed.out:
                    for document in printed.out.splitlines() if path == "events" else [printed.out]:
                        json.loads(document)


@pytest.mark.no_audit("hostile jobs are written by hand")
async def test_the_monitor_shows_it_and_does_not_obey(url: str, prefix: str, client: Any):
    async with hostile_world(url, prefix, client), monitor(url, prefix) as (app, pilot):
        await shows(pilot, lambda: len(cells(app, "queues")) >= 2)
        while app.watcher.queues[QUEUE] is not app._chosen:
            await pilot.press("down")
            await pilot.pause()
        for key in "123456":
            await pilot.press(key)
            await pilot.pause()
            if key == "3":
                await shows(pilot, lambda: "[red]red" in cells(app, "view")[0][1])
            if key == "5":
                await shows(pilot, lambda: cells(app, "view"))
            drawn = [strip.text for strip in app.screen._compositor.render_strips()]
            told = [text(app, widget) for widget in ("status", "summary", "note")]
            assert all(map(is_inert, drawn + told)), (key, drawn)
        for key in "356":
            await pilot.press(key)
            app.query_one("#view").focus()
            await shows(pilot, lambda: cells(app, "view"))
            await pilot.press("enter")
            await shows(pilot, lambda: isinstance(app.screen, WholeScreen))
            await shows(pilot, lambda: "\\u202e" in whole(app))
            assert is_inert(whole(app)), key
            assert all(is_inert(strip.text) for strip in app.screen._compositor.render_strips())
            await pilot.press("escape")
            await shows(pilot, lambda: not isinstance(app.screen, WholeScreen))
        app.tell(HOSTILE)
        await pilot.press("p")
        await shows(pilot, lambda: len(app.screen_stack) == 2)
        assert all(is_inert(strip.text) for strip in app.screen._compositor.render_strips())


def on_a_terminal(code: str, env: dict[str, str]) -> str:
    """What a Python program writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:
            pass  # nobody writes there any more
    os.close(ours)
    return written.decode()


PRINTING = f"""
from toril.cli.printing import Styled, echo, echo_lines, print_facts, print_json, print_table
HOSTILE = {HOSTILE!r}
echo(HOSTILE, Styled(HOSTILE, "red", is_bold=True)); echo(HOSTILE, err=True); echo_lines(HOSTILE)
print_json({{HOSTILE: HOSTILE}}); print_facts([("name", HOSTILE)])
print_table(["a", "b"], [[HOSTILE, HOSTILE]], empty="", title=HOSTILE)
"""


@pytest.mark.parametrize(("no_color", "has_colours"), [("", True), ("1", False)])
def test_on_a_terminal_only_our_own_colours_are_obeyed(cli_env, no_color: str, has_colours: bool):
    env = {**cli_env, "NO_COLOR": no_color, "TERM": "xterm-256color"}

    written = on_a_terminal(PRINTING, env)

    assert ("\x1b[31m\x1b[1m" in written) == has_colours
    ours = re.sub(r"\x1b\[[0-9;]*m", "", written).replace("\r\n", "\n")
    assert is_inert(ours), ours
    assert "[red]red[/red]" in ours
    plain = re.sub(r"\x1b\[(?:0|1|2|3)?m", "", written).replace("\r\n", "\n")
    assert is_inert(plain) or has_colours, "a table may be bold, and nothing else"


def test_an_error_that_nobody_expected_is_shown_and_not_obeyed(cli_env):
    code = f"""
import logging
import toril.cli.main as main
def fail(*args, **kwargs):
    logging.getLogger("asyncio").error({HOSTILE!r})
    raise RuntimeError({HOSTILE!r})
main.toril.main = fail
main.main([])
"""

    done = subprocess.run(
        [sys.executable, "-c", code], env=cli_env, capture_output=True, encoding="utf-8"
    )

    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert is_inert(done.stderr)


def test_a_text_that_the_terminal_cannot_write_is_printed_all_the_same(cli_env):
    code = "from toril.cli.main import main; main(['jobs', 'caf\\u00e9\\u2192'])"
    env = {**cli_env, "PYTHONIOENCODING": "latin-1"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, encoding="latin-1"
    )

    assert "café\\u2192" in done.stdout + done.stderr


def test_every_line_of_our_logs_is_inert():
    written: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    logger = get_logger("toril.test-of-logs")
    logger.addHandler(Keep())
    logger.propagate = False
    try:
        raise UnrecoverableError(HOSTILE)
    except UnrecoverableError as error:
        logger.exception("job %r of %s: %s (%d)", HOSTILE, HOSTILE, error, 3)
        logger.error("%s", error)
        logger.error("%(name)s", {"name": HOSTILE})
        logger.error(f"in the text {HOSTILE}".replace("%", "%%"))

    assert all(map(is_inert, written))
    assert visible(HOSTILE) in written[0].splitlines()[0]
    assert written[0].startswith("job '\\x1b]0;"), "escaped once"
    assert len(written[1].splitlines()) == 1, "a line cannot be forged"


def test_text_that_is_printable_stays_as_it_is():
    plain = "Grüße, 你好 🎉 [red] \\x1b"

    assert visible(plain) == visible_lines(plain) == visible_json(plain) == plain
    assert visible("a\tb\nc") == "a\\tb\\nc"
    assert visible_lines("a\tb\nc\r") == "a    b\nc\\r"
    everything = "".join(map(chr, (*range(0x3000), 0xD800, *range(0xFFFF, 0x110000, 0x101))))
    assert visible(everything).isprintable()
    assert json.loads(visible_json(json.dumps(everything, ensure_ascii=False))) == everything
    assert visible_json(json.dumps(everything, ensure_ascii=False)).isprintable()


DOCTOR = "from toril.cli.main import main; main(['doctor', '--no-audit'])"


@pytest.mark.parametrize(("no_color", "has_colours"), [("", True), ("1", False)])
def test_the_doctor_has_colours_where_they_are_wanted(cli_env, no_color: str, has_colours: bool):
    env = {**cli_env, "NO_COLOR": no_color, "TERM": "xterm-256color"}

    assert ("\x1b[" in on_a_terminal(DOCTOR, env)) == has_colours


def test_into_a_pipe_go_no_colours(toril):
    for words in (("doctor",), ("queues",), ("events", "nowhere", "--help")):
        done = toril(*words, env={"NO_COLOR": "", "TERM": "xterm-256color"})
        assert "\x1b" not in done.out + done.err
