"""The wheel with the extra ``dashboard`` and nothing else, in a browser that asks nobody else.

No index is needed: what the extra asks for is taken from this environment, file by file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.dashboard.test_browser import Watch, new_page, wait_for
from tests.dashboard.world import World
from tests.helpers import wait_until
from tests.servers import free_port

ROOT = Path(__file__).parent.parent.parent
SERVE = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.path[:0] = sys.argv[1:3]
import importlib.util
for name in ("rich", "textual", "httpx", "playwright", "pytest"):
    assert importlib.util.find_spec(name) is None, name
import uvicorn
from toril.dashboard import dashboard
assert dashboard.__module__ == "toril.dashboard.app"
assert __import__("toril").__file__.startswith(sys.argv[1])
app = dashboard(connection=sys.argv[3], prefix=sys.argv[4])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[5]), log_level="warning")
"""


def needed(requirements: list[str], extra: str, found: dict[str, Distribution]) -> None:
    """Everything that these requirements bring, and what that brings."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        there = found[name] = distribution(name)
        for inner in requirement.extras or ("",):
            needed(there.requires or [], inner, found)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, unpacked; and what the extra ``dashboard`` installs beside it."""
    pytest.importorskip("hatchling", reason="NOT RUN: no hatchling here")
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "toril")
    [metadata] = (folder / "toril").glob("*.dist-info")
    found: dict[str, Distribution] = {}
    needed(Distribution.at(metadata).requires or [], "dashboard", found)
    assert {"starlette", "jinja2", "uvicorn", "redis"} <= set(found)
    assert not {"rich", "textual", "httpx"} & set(found)
    for one in found.values():
        for file in one.files or ():
            source = Path(str(one.locate_file(file)))
            if ".." in file.parts or not source.is_file():
                continue
            target = folder / "needed" / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return folder / "toril", folder / "needed"


async def test_the_extra_alone_serves_every_page_and_nobody_else_is_asked(
    chromium: Any, installed: tuple[Path, Path], url: str, prefix: str, shop: World, tmp_path: Path
):
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    words = [*map(str, installed), url, prefix, str(port)]
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", SERVE, *words],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )

    pages = {path.partition("?")[0]: path for path in shop.paths}

    def look(browser: Any) -> tuple[list[str], set[str]]:
        page = new_page(browser, viewport={"width": 1400, "height": 800})
        watch = Watch(page, base)
        asked: set[str] = set()
        page.on("response", lambda answer: asked.add(f"{answer.status} {answer.url}"))
        for path in pages.values():
            page.goto(base + path)
        wait_for(page, "Boolean(window.htmx && window.uPlot)")
        # A browser without windows has no place for an icon and does not ask for it.
        page.evaluate("fetch(document.querySelector('link[rel=icon]').href).then(({ok}) => ok)")
        page.context.close()
        return watch.seen, asked

    async def is_served() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            async with httpx.AsyncClient() as http:
                return (await http.get(f"{base}/")).status_code == 200
        except httpx.TransportError:
            return False

    try:
        await wait_until(is_served, every=0.1)
        seen, asked = await chromium(look)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)

    assert seen == []
    assert {one for one in asked if one[0] not in "23"} == set()
    files = {one.rpartition("/static/")[2] for one in asked if "/static/" in one}
    assert {"style.css", "app.js", "icon.svg", "vendor/htmx.min.js"} <= files
    assert not errors
