"""How much is proved: a part in `make test`, all of it in `make prove` (TORIL_PROVE=1)."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

PROVES_ALL = os.environ.get("TORIL_PROVE") == "1"


def amount(in_tests: T, in_proof: T) -> T:
    """The first in an ordinary run, the second in `make prove`."""
    return in_proof if PROVES_ALL else in_tests
