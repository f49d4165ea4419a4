"""The site: every page has its place in it, and nothing in it comes from elsewhere."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads what mkdocs calls at its start as nothing."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def in_nav(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        return [page for each in entry.values() for page in in_nav(each)]
    return [page for each in entry for page in in_nav(each)]


def pages() -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def links_of(page: str) -> set[str]:
    text = (DOCS / page).read_text()
    targets = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text)
    return {
        (DOCS / page).parent.joinpath(target).resolve().relative_to(DOCS).as_posix()
        for target in targets
        if (DOCS / page).parent.joinpath(target).resolve().is_relative_to(DOCS)
    }


def test_every_page_has_a_place_in_the_navigation():
    outside = ["/" + pattern.lstrip("/") for pattern in SETTINGS["not_in_nav"].split()]
    placed = in_nav(SETTINGS["nav"])

    missing = [
        page
        for page in pages()
        if page not in placed
        and not any(fnmatch.fnmatch(f"/{page}", pattern) for pattern in outside)
    ]

    assert missing == [], "give each a place under nav in mkdocs.yml"
    assert len(placed) == len(set(placed))


def test_every_page_is_linked_from_another_one():
    linked = {target for page in pages() for target in links_of(page) if target != page}

    assert [page for page in pages() if page not in linked | {"README.md"}] == []


def test_every_link_leads_somewhere():
    """Links between all pages and to their headings; ``make docs`` builds the site strictly."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_docs.py"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stdout


def test_contributing_says_what_continuous_integration_runs():
    script = (ROOT / ".ci" / "run").read_text()
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (sentence,) = re.findall(r"^Continuous integration is `.ci/run`: (.*)$", page, re.MULTILINE)

    assert re.findall(r"^(make [\w-]+)", script, re.MULTILINE) == re.findall(
        r"`(make [\w-]+)`", sentence
    )
    assert "make docs" in sentence


def test_contributing_says_which_programs_continuous_integration_installs():
    script = (ROOT / ".ci" / "run").read_text()
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(
        r"^\| `([\w-]+)` \| `?([\w-]+)`? \| [^|]* \| (not installed|installed)", page, re.MULTILINE
    )

    said = {program for program, _package, how in rows if how == "installed"}
    assert said == {"promtool", *re.findall(r"^for_tests ([\w-]+)", script, re.MULTILINE)}
    assert set(re.findall(r"^for_tests ([\w-]+ [\w-]+)", script, re.MULTILINE)) <= {
        f"{program} {package}" for program, package, _how in rows
    }


def test_nothing_is_fetched_from_elsewhere():
    assert SETTINGS["theme"]["font"] is False
    for key in ("extra_css", "extra_javascript"):
        assert not [each for each in SETTINGS.get(key, ()) if "://" in str(each)]
    style = (DOCS / "site" / "extra.css").read_text()
    assert "://" not in style
    assert "@import" not in style
    pictures = [
        picture
        for page in pages()
        for picture in re.findall(r"!\[[^\]]*\]\((\w+:[^)]+)\)", (DOCS / page).read_text())
    ]
    assert pictures == []


@pytest.mark.parametrize("feature", ["content.code.copy", "search.highlight", "toc.follow"])
def test_what_a_reader_expects_is_switched_on(feature: str):
    assert feature in SETTINGS["theme"]["features"]
    assert "search" in SETTINGS["plugins"]
    assert {"default", "slate"} <= {each.get("scheme") for each in SETTINGS["theme"]["palette"]}
