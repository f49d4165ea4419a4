"""What is in the wheel and the sdist, and what the extras ask for; nothing is installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

SOURCE = ROOT / "src" / "toril"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: needs
    for name, needs in PROJECT["optional-dependencies"].items()
    if name not in ("all", "test", "dev")
}
MODULES = {"opentelemetry-api": "opentelemetry", "prometheus-client": "prometheus_client"}
RUN_BY_USERS = {"uvicorn"}
"""What users run the code with, without an import of ours."""


@cache
def imported() -> set[str]:
    """Every package that a module of ours imports, or looks for by its name."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and "find_spec" in ast.dump(node.func):
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def package(requirement: str) -> str:
    name = re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
    return MODULES.get(name, name.replace("-", "_"))


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_installs_only_what_is_imported(extra):
    if extra == "dashboard" and not (SOURCE / "dashboard").exists():
        return

    needed = {package(requirement) for requirement in EXTRAS[extra]} - RUN_BY_USERS

    assert needed <= imported()


def test_all_is_every_extra():
    (everything,) = PROJECT["optional-dependencies"]["all"]

    assert everything == f"toril[{','.join(EXTRAS)}]"


def test_the_outbox_brings_what_async_engines_need():
    """SQLAlchemy 2.1 installs greenlet only when it is asked for."""
    assert any(need.startswith("sqlalchemy[asyncio]") for need in EXTRAS["outbox"])


def test_the_wheel_holds_every_module_script_and_page(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert ours <= names
    assert not {name for name in names if name.partition("/")[0] == "tests"}


def test_the_wheel_works_without_the_source(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import toril\n"
        "assert toril.__file__.startswith(sys.argv[1])\n"
        "from importlib.metadata import distribution\n"
        "names = {one.group for one in distribution('toril').entry_points}\n"
        "assert names == {'console_scripts', 'pytest11'}\n"
        "[getattr(toril, name) for name in toril.__all__]\n"
        "from toril.protocol import scripts"
    )

    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=tmp_path, check=True, timeout=60
    )


def test_the_sdist_builds_the_same_and_holds_no_more(sdist):
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "src/toril/__init__.py"} <= names
    assert not {name for name in names if name.startswith(("tests", "docs", "benchmarks"))}
