"""The examples in the help and in the guides: each is a command line that the program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.cli.test_help import commands
from toril.cli.main import toril

DOCS = Path(__file__).parent.parent.parent / "docs"
LINE = re.compile(r"^\s*(?:\$ )?(?:echo \S+ \| )?(toril [a-z].*?)$", re.MULTILINE)


def in_help() -> list[str]:
    texts = [toril.help or "", *(command.help or "" for _, command in commands())]
    return [line for text in texts for line in LINE.findall(text)]


def in_guides() -> list[str]:
    fences = [
        fence
        for page in sorted(DOCS.rglob("*.md"))
        for fence in re.findall(
            r"^```(?:console|sh|shell)[^\n`]*\n(.*?)^```", page.read_text(), re.M | re.S
        )
    ]
    return [line for fence in fences for line in LINE.findall(fence)]


def parse(words: list[str], command: click.Command, parent: click.Context | None = None) -> None:
    context = command.make_context(words[0] if parent else "toril", list(words[1:]), parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, inner, _ = command.resolve_command(context, rest)
        assert name is not None
        assert inner is not None
        parse(rest, inner, context)


@pytest.mark.parametrize("example", sorted({*in_help(), *in_guides()}))
def test_an_example_is_understood(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.jsonl").touch()
    words = shlex.split(example.partition(" && ")[0], comments=True)
    for stop in ("|", ">", "<"):
        if stop in words:
            words = words[: words.index(stop)]

    parse(words, toril)


def test_there_are_examples_to_test():
    assert len(in_help()) > 30
    assert len(in_guides()) > 15
