"""The help: complete, in step with the commands, and quick to come."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from toril.cli.catalogue import CATALOGUE
from toril.cli.main import run, toril


def commands() -> list[tuple[str, click.Command]]:
    """Every command by its path, those of groups included."""
    context = click.Context(toril, info_name="toril")
    found: list[tuple[str, click.Command]] = []
    for name in CATALOGUE:
        command = toril.get_command(context, name)
        assert command is not None
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {part}", inner) for part, inner in command.commands.items()]
    return found


LEAVES = [(path, c) for path, c in commands() if not isinstance(c, click.Group)]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_list_of_commands_says_what_the_command_says(name):
    command = toril.get_command(click.Context(toril), name)

    assert command is not None
    assert command.name == name
    first = (command.help or "").strip().partition("\n\n")[0].replace("\n", " ")
    stem = CATALOGUE[name].summary.rstrip(".")
    assert first.startswith(stem), (first, stem)


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_command_has_the_common_options_and_helps(path, command, capsys):
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--url", "--prefix", "--json"} <= flags

    assert run([*path.split(), "--help"]) == 0

    printed = capsys.readouterr().out
    assert f"Usage: toril {path}" in printed
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            needs_no_help = parameter.opts[-1] in ("--limit", "--state", "--jobs", "--concurrency")
            assert parameter.help or needs_no_help, f"{parameter.opts} of {path} has no help"


def test_the_help_imports_neither_commands_nor_what_draws_nor_what_opens_sockets():
    program = (
        "import sys; from toril.cli.main import run; code = run(['--help']);"
        "slow = ('rich', 'textual', 'toril.cli.queues', 'toril.client', 'redis', 'asyncio');"
        "loaded = [m for m in slow if m in sys.modules];"
        "sys.exit(str(loaded) if loaded else code)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "toril queues" in done.stdout
    assert "Exit codes: 0 done" in done.stdout


GROUPS = ["", *(path for path, c in commands() if isinstance(c, click.Group))]


@pytest.mark.parametrize("path", GROUPS)
def test_without_a_command_the_help_is_printed_as_help(path, capsys):
    """Nothing was done, so the code is that of wrong usage; what is printed is no error."""
    code = run(path.split())

    bare = capsys.readouterr()
    assert code == 2
    assert bare.err == ""
    run([*path.split(), "--help"])
    assert bare.out == capsys.readouterr().out
    assert len(bare.out.splitlines()) > 10


def test_options_without_a_command_are_wrong_usage(capsys):
    assert run(["--json"]) == 2

    assert "see toril --help" in capsys.readouterr().err
