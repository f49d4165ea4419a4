"""What mkdocs does beyond Markdown: pages from files outside ``docs/``, and inline figures.

The pages link to the changelog, the examples and the files in ``deploy/`` by their paths in the
repository, so that they can be read there.  On the site each of these files is a separate page, and
the links lead to it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
DOCS = "docs"
DOCUMENTS = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/RESULTS.md": "results.md",
}
ELSEWHERE = {"README.md": "README.md", "LICENSE": None}
THEMES = {"gh-light-mode-only": "only-light", "gh-dark-mode-only": "only-dark"}
"""How GitHub and the site say that a picture is for one theme."""
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".conf": "ini"}
FENCE = re.compile(r"^( *)```.*?^\1```[^\n]*$", re.MULTILINE | re.DOTALL)
# GitHub wants a pipe in a table escaped, in code too; Python's Markdown shows the backslash.
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def origins() -> dict[str, str]:
    """The pages of the site that are made from files outside ``docs/``: page -> file."""
    pages = {page: name for name, page in DOCUMENTS.items()}
    for folder in ("examples", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                page = name if path.suffix == ".md" else f"{name}.md"
                pages[page] = name
    return pages


def on_files(files: Files, config: Any) -> Files:
    for page, name in origins().items():
        files.append(File.generated(config, page, content=_content(name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    source = page.file.src_uri
    place = origins().get(source, f"{DOCS}/{source}")
    fences: list[str] = []

    def put_aside(match: re.Match[str]) -> str:
        fences.append(match[0])
        return f"\x00{len(fences) - 1}\x00"

    prose = FENCE.sub(put_aside, markdown)
    prose = LINK.sub(lambda match: _follow(match, place, source), prose)
    prose = ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), prose)
    return re.sub("\x00(\\d+)\x00", lambda match: fences[int(match[1])], prose)


def _content(name: str) -> str:
    text = (ROOT / name).read_text()
    if name.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(name).suffix, "text")
    if name.endswith("Dockerfile"):
        language = "dockerfile"
    return f"# {name}\n\n````{language}\n{text}````\n"


def _follow(match: re.Match[str], place: str, source: str) -> str:
    """The link as the site needs it: to a page of the site, or the bare words."""
    is_picture, words, target = match.groups()
    if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
        return match[0]
    name, _, anchor = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(place), name))
    if is_picture and wanted.endswith(".svg") and "/figures/" in wanted:
        return _inline(wanted, words)
    page = _page_of(wanted)
    if page is None:
        return words
    anchor = THEMES.get(anchor, anchor)
    there = posixpath.relpath(page, posixpath.dirname(source) or ".")
    return f"{is_picture}[{words}]({there}{'#' + anchor if anchor else ''})"


def _page_of(wanted: str) -> str | None:
    if wanted.startswith(f"{DOCS}/"):
        page = wanted.removeprefix(f"{DOCS}/")
        return posixpath.join(page, "README.md") if (ROOT / wanted).is_dir() else page
    if wanted == DOCS:
        return "README.md"
    if wanted in ELSEWHERE:
        return ELSEWHERE[wanted]
    if (ROOT / wanted).is_dir():
        wanted = posixpath.join(wanted, "README.md")
    for page, name in origins().items():
        if name == wanted:
            return page
    return None


def _inline(name: str, words: str) -> str:
    drawing = (ROOT / name).read_text()
    drawing = re.sub(r"<\?xml.*?\?>|<style>.*?</style>", "", drawing, flags=re.DOTALL)
    return " ".join(line.strip() for line in drawing.splitlines() if line.strip())
