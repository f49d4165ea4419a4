"""The workflow that releases: it cannot be run here, but what it promises can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def jobs() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)["jobs"]
    return found


def test_the_wheel_that_is_tested_everywhere_is_the_one_that_is_published(jobs):
    matrix = jobs["test"]["strategy"]["matrix"]

    assert matrix == {
        "os": ["ubuntu-latest", "macos-latest"],
        "python": ["3.11", "3.12", "3.13", "3.14"],
    }
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    for name in ("test", "publish"):
        (taken,) = [one for one in jobs[name]["steps"] if "download-artifact" in str(one)]
        assert taken["with"] == {"name": "dist", "path": "dist/"}
    assert "twine check --strict dist/*" in str(jobs["build"]["steps"])


def test_publishing_is_trusted_and_knows_no_password(jobs):
    publish = jobs["publish"]

    assert publish["permissions"] == {"id-token": "write"}
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    assert "secrets." not in str(jobs)
