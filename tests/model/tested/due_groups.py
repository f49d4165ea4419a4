from __future__ import annotations

FOUND: dict[str, str] = {}

EQUIVALENT: dict[str, str] = {}
