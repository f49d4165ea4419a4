"""What a command says of each of several ids."""

from __future__ import annotations

import json

import pytest

from toril.cli.answering import Answers
from toril.cli.server import Server
from toril.errors import InvalidOptionError, JobNotFoundError, ServerUnavailableError

SERVER = Server("redis://127.0.0.1", "bull", as_json=True)


def test_wrong_usage_is_raised_while_nothing_is_changed(capsys):
    def answer() -> None:
        with Answers(SERVER) as answers:
            with answers.about("j-1"):
                raise JobNotFoundError("there is no 'j-1'")
            with answers.about("j-2"):
                raise InvalidOptionError("no such lane")

    with pytest.raises(InvalidOptionError):
        answer()

    assert json.loads(capsys.readouterr().out) == [{"id": "j-1", "error": "there is no 'j-1'"}]


def test_wrong_usage_behind_a_change_is_an_answer(capsys):
    with Answers(SERVER) as answers:
        with answers.about("j-1") as answer:
            answer["done"] = True
        assert answers.code == 0
        with answers.about("j-2"):
            raise InvalidOptionError("no such lane")
        with answers.about("j-3") as answer:
            answer["done"] = True

    assert answers.code == 1
    assert json.loads(capsys.readouterr().out) == [
        {"id": "j-1", "done": True},
        {"id": "j-2", "error": "no such lane"},
        {"id": "j-3", "done": True},
    ]


@pytest.mark.parametrize("error", [ServerUnavailableError("gone"), KeyboardInterrupt()])
def test_what_ends_the_command_leaves_the_answers_before_it(capsys, error):
    def answer() -> None:
        with Answers(SERVER) as answers:
            with answers.about("j-1") as first:
                first["done"] = True
            with answers.about("j-2"):
                raise error

    with pytest.raises(type(error)):
        answer()

    assert json.loads(capsys.readouterr().out) == [{"id": "j-1", "done": True}]
