"""The page of promises names what checks each, and what no other test checks is checked here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "toril"
PAGE = (ROOT / "docs" / "internals" / "documentation.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()


def test_every_promise_names_what_checks_it():
    rows = re.findall(r"^\| (?!promise|---)(.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert len(rows) > 30
    for promise, checks in rows:
        assert "`tests/" in checks, promise
        for target in re.findall(r"`make ([\w-]+)`", checks):
            assert target in targets


def calls(names: set[str]) -> dict[str, set[str]]:
    """The files in which functions or attributes of these names are used."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if isinstance(node, (ast.Attribute, ast.Name)) and name in names:
                found.setdefault(path.relative_to(SOURCES).as_posix(), set()).add(name)
    return found


def test_pickles_are_read_only_where_security_says():
    readers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(
            r"^\s*(?:import|from) (?:pickle|marshal|shelve|dill|cloudpickle)\b",
            path.read_text(),
            re.MULTILINE,
        )
    }

    assert readers == {"worker/child.py", "worker/processes.py", "worker/remote_error.py"}
    assert "a worker and its own child processes exchange two kinds of pickles" in SECURITY


def test_modules_are_imported_by_name_only_where_security_says():
    """The others import a name that the program, its command line or a table has."""
    by_table = {"__init__.py", "cli/catalogue.py"}
    by_table |= {f"{name}/__init__.py" for name in ("outbox", "testing", "idempotency")}
    by_program = {"cli/loading.py", "worker/child.py"}
    by_redis = {"contrib/django/results.py"}

    assert set(calls({"import_module", "__import__", "import_string"})) == (
        by_table | by_program | by_redis
    )
    assert "a worker of `toril.contrib.django` imports the module that a job names" in SECURITY


def test_no_text_is_run_as_code():
    """But for annotations in Toril's own sources, which say what an argument may be."""
    run = [
        path.relative_to(SOURCES).as_posix()
        for path in sorted(SOURCES.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("eval", "exec")
    ]

    assert run == ["checking.py"]


def test_operations_have_a_section_for_each_subject():
    folder = ROOT / "docs" / "operations"
    headings = "\n".join(
        line.lower()
        for page in sorted(folder.glob("*.md"))
        for line in page.read_text().splitlines()
        if line.startswith(("#", "| "))
    )

    for subject in (
        "docker",
        "systemd",
        "kubernetes",
        "settings",
        "tls",
        "access",
        "siz",
        "backup",
        "upgrad",
        "alert",
    ):
        assert subject in headings, subject
    assert (folder / "troubleshooting.md").exists()


def test_the_readme_shows_the_dashboard_and_the_monitor():
    readme = (ROOT / "README.md").read_text()

    for name in ("dashboard", "monitor"):
        shown = re.findall(rf'"(docs/images/{name}-(?:dark|light)\.\w+)"', readme)
        assert len(shown) == 2, name
        assert all((ROOT / path).exists() for path in shown)
