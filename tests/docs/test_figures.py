"""The figures are those that the tool draws, follow the theme, and are shown somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = sorted((ROOT / "docs" / "figures").glob("*.svg"))


def test_the_figures_are_those_that_the_tool_draws():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "figures.py", "--check"], capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, "")
    assert len(FIGURES) >= 5


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_a_figure_follows_the_theme_and_is_shown(path: Path):
    text = path.read_text()
    drawing = ET.fromstring(text)
    colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', text))
    pages = (ROOT / "docs").rglob("*.md")

    assert colours <= {
        "none",
        "var(--ink)",
        "var(--faint)",
        "var(--paper)",
        "var(--tint)",
        "var(--mark)",
    }
    assert "prefers-color-scheme: dark" in text
    assert drawing.get("aria-label")
    assert any(f"figures/{path.name})" in page.read_text() for page in pages)
