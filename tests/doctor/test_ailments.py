"""The table of what the doctor knows: each entry is used, and its words get the facts they name."""

from __future__ import annotations

import ast
import functools
import string
from collections import defaultdict
from pathlib import Path

import pytest

from toril.doctor import ailments
from toril.doctor.ailments import Ailment

FOLDER = Path(ailments.__file__).parent
KNOWN = {name: one for name, one in vars(ailments).items() if isinstance(one, Ailment)}


def places(ailment: Ailment) -> set[str]:
    """The facts that an ailment's words name."""
    words = f"{ailment.problem} {ailment.harm} {ailment.remedy}"
    return {name for _, name, _, _ in string.Formatter().parse(words) if name}


@functools.cache
def uses() -> dict[str, list[set[str]]]:
    """The names of the facts that each use of an ailment gives."""
    found = defaultdict(list)
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id="ailments"), attr=name), attr="of"
                    ),
                    keywords=keywords,
                ):
                    found[name].append({one.arg for one in keywords})
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_an_ailment_is_found_somewhere_and_given_the_facts_that_it_names(name):
    given = uses()[name]

    needed = places(KNOWN[name]) | ({"has_come_far"} if KNOWN[name].worst else set())
    assert given, f"no check finds {name}"
    assert given == [needed] * len(given)


def test_findings_are_made_of_the_table_alone():
    makers = [path.name for path in FOLDER.glob("*.py") if "Finding(\n" in path.read_text()]

    assert makers == ["ailments.py"]


def test_what_is_put_into_the_words_is_taken_as_it_is():
    finding = ailments.NOT_EXAMINED.of("queue {x}", error="KeyError: '{keys}' {0}")

    assert finding.subject == "queue {x}"
    assert finding.problem == "it could not be examined: KeyError: '{keys}' {0}"


def test_the_guide_names_every_code():
    guide = (Path(__file__).parents[2] / "docs/guides/production.md").read_text()
    first, last = "D220", "D224"

    missing = {one.code for one in KNOWN.values() if one.code not in guide}

    assert {code for code in missing if not first < code < last} == set()
