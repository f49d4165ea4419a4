"""The JSON log of a worker: one object a line, whatever the user's own code brings along."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from toril.cli.logs import JsonFormatter


class Detached:
    """As an object of a database session that has been closed."""

    def __str__(self) -> str:
        raise RuntimeError("this instance is not bound to a session")


CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE
BEYOND_JSON = {
    "a number that is none": math.nan,
    "keys that are no text": {(1, 2): "x"},
    "a circle": CIRCLE,
    "no text": Detached(),
}


@pytest.mark.parametrize("brought", BEYOND_JSON.values(), ids=list(BEYOND_JSON))
def test_a_line_is_json_whatever_it_brings_along(brought: Any):
    """NaN is no JSON, and the other lines were lost; a traceback stood in their place."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    facts = {"name": "shop", "levelno": logging.INFO, "levelname": "INFO", "msg": "paid %s"}
    record = logging.makeLogRecord({**facts, "args": ("7",), "order": 7, "brought": brought})

    entry = json.loads(JsonFormatter().format(record), parse_constant=refuse)

    assert (entry["message"], entry["logger"], entry["order"]) == ("paid 7", "shop", 7)
    assert isinstance(entry["brought"], str)
