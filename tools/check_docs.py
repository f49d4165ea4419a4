"""Check the documentation: relative links lead somewhere, and Python snippets are Python.

Snippets are compiled here (a top-level ``await`` is fine); tests/docs/test_blocks.py runs them.
One whose fence says ``python no-check`` is left alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^ *```", re.M | re.S)
LINK = re.compile(
    r"\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)|\bsrc(?:set)?=\"(?P<picture>[^\"]+)\""
)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


def main() -> int:
    pages = find_pages()
    problems = [problem for page in pages for problem in check(page)]
    for problem in problems:
        print(problem)
    print(f"docs: {len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


def find_pages() -> list[Path]:
    """Every Markdown file that is, or is about to be, part of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    pages = [ROOT / name for name in names if name] or [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    return sorted(page for page in pages if page.exists())


def check(page: Path) -> Iterator[str]:
    text = page.read_text()
    yield from check_snippets(page, text)
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub(lambda match: "\n" * match[0].count("\n"), text))
    for match in LINK.finditer(prose):
        problem = check_link(page, match["target"] or match["picture"])
        if problem:
            yield f"{where(page, prose, match.start())}: {problem}"


def check_link(page: Path, target: str) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    file = (page.parent / name) if name else page
    if not file.exists():
        return f"the link to {target!r} leads nowhere"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
        return f"the link to {target!r}: that page has no such heading"
    return None


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = HEADING.findall(FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_snippets(page: Path, text: str) -> Iterator[str]:
    for match in FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        if language not in ("python", "py") or "no-check" in words:
            continue
        code = textwrap.dedent(match["code"])
        try:
            compile(
                code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
            )
        except SyntaxError as error:
            yield f"{where(page, text, match.start())}: the snippet is not Python: {error.msg}"


def where(page: Path, text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{page.relative_to(ROOT)}:{line}"


if __name__ == "__main__":
    sys.exit(main())
