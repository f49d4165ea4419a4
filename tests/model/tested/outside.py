"""Bugs planted outside the scripts of groups that no world finds."""

from __future__ import annotations

FOUND: dict[str, str] = {}

EQUIVALENT: dict[str, str] = {}
