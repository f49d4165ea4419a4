"""Models that write and validate themselves, as pydantic's do, with or without aliases.

A model may validate the aliases of its fields only, and is written with their names unless it is
told otherwise.  Such a model would come back without its values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any


def read_model(kind: Any, value: Any) -> Any:
    """Validate by alias and, if pydantic can (2.11), by name: jobs and results have both."""
    return kind.model_validate(value, **_ways_of(kind))


def write_model(model: Any) -> Any:
    """What ``read_model`` reads as the same: with the names of the fields if the model takes them,
    or else with the aliases.

    An earlier version only validated as the model does by itself, so that is tried first.
    """
    kind: Any = type(model)
    named = model.model_dump(mode="json")
    if not _may_have_aliases(kind):
        return named
    aliased = model.model_dump(mode="json", by_alias=True)
    if aliased == named:
        return named
    for written, read in ((named, _read_plainly), (aliased, _read_plainly), (named, read_model)):
        if _reads_as(named, model, written, read):
            return written
    raise ValueError(
        f"a {kind.__name__!r} would not come back as it is; let its fields have the same"
        f" alias for validation and serialization"
    )


def _read_plainly(kind: Any, value: Any) -> Any:
    return kind.model_validate(value)


def _reads_as(named: Any, model: Any, written: Any, read: Callable[[Any, Any], Any]) -> bool:
    """Whether ``written`` is read as a model that is the same, or is written the same."""
    try:
        again = read(type(model), written)
        return bool(again.model_dump(mode="json") == named or again == model)
    except Exception:  # noqa: BLE001 (the user's validators, and fields that cannot be compared)
        return False


@lru_cache(maxsize=256)
def _ways_of(kind: Any) -> dict[str, bool]:
    known = inspect.signature(kind.model_validate).parameters
    return {"by_alias": True, "by_name": True} if "by_name" in known else {}


@lru_cache(maxsize=256)
def _may_have_aliases(kind: Any) -> bool:
    """Whether models of this class can be written with aliases; other libraries' may not."""
    return "by_alias" in inspect.signature(kind.model_dump).parameters
