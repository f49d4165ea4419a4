"""Payloads: strict JSON (RFC 8259).

A single value that Node cannot parse would stop every listener.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from toril.errors import PayloadError, PayloadTooLargeError, TorilError
from toril.protocol.codec.fields import text


def plain(value: Any) -> Any:
    """What msgspec does not know but can write itself: paths, and pydantic's models."""
    path = getattr(value, "__fspath__", None)
    if path is not None and isinstance(text := path(), str):
        return text
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"objects of type {type(value).__name__!r} are not supported")
    return dump(mode="json")


_encoder = msgspec.json.Encoder(enc_hook=plain)
to_json = _encoder.encode
from_json = msgspec.json.Decoder().decode


def encode(value: Any, what: str, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    """``value`` as JSON text; ``what`` names it in the error if that is impossible.

    A ``msgspec.Raw`` is JSON text already, written by this function before.  What an encoder's own
    hook refuses with one of our errors is refused with that error.
    """
    if type(value) is msgspec.Raw:
        return bytes(value)
    try:
        text = encoder.encode(value)
    except (OverflowError, UnicodeEncodeError):
        text = _encode_slowly(value, what, encoder)
    except TorilError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"{what} cannot be written as JSON: {error}; use plain values, dataclasses or Structs"
        ) from error
    if b"null" in text:
        _refuse_nan(value, what)
    return text


def encode_limited(value: Any, size_limit: int | None, what: str) -> bytes:
    """``value`` as JSON text of at most ``size_limit`` bytes."""
    text = encode(value, what)
    if size_limit is not None and len(text) > size_limit:
        raise PayloadTooLargeError(
            f"{what} takes {len(text)} bytes as JSON, and its size_limit is {size_limit};"
            f" store the data elsewhere and put a reference into the job"
        )
    return text


def decode(text: bytes | None, default: Any = None) -> Any:
    """The value of a JSON text from the server; ``default`` when there is none."""
    if text is None:
        return default
    try:
        return from_json(text)
    except msgspec.DecodeError:
        # Integers beyond 64 bits and what other writers left behind.
        return json.loads(text)


def decode_or_text(value: bytes | None) -> Any:
    """The value of a JSON text, or the text itself where somebody wrote something else."""
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return text(value)


def _encode_slowly(value: Any, what: str, encoder: msgspec.json.Encoder) -> bytes:
    """What the fast encoder refuses though JSON can say it, and ``decode`` gives to handlers.

    Those are whole numbers of more than 64 bits, and halves of surrogate pairs, which JavaScript's
    texts may have and which are written as an escape.
    """
    try:
        built = msgspec.to_builtins(value, str_keys=True, enc_hook=encoder.enc_hook)
        return json.dumps(built, allow_nan=False, separators=(",", ":")).encode()
    except TorilError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{what} cannot be written as JSON: {error}") from error


def _refuse_nan(value: Any, what: str) -> None:
    """The encoder writes NaN and infinities as null, which would change the data silently."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float) and not math.isfinite(item):
            raise PayloadError(
                f"{what} contains {item!r}, which JSON cannot express; send None or a string"
            )
        if isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        elif isinstance(item, msgspec.Struct):
            stack.extend(getattr(item, name) for name in item.__struct_fields__)
        elif hasattr(item, "__dataclass_fields__"):
            stack.extend(getattr(item, name) for name in item.__dataclass_fields__)
        elif hasattr(item, "model_dump"):
            stack.append(item.model_dump())
