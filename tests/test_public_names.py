"""The public surface is what the documentation says, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import toril
import toril.sync

PAGE = Path(__file__).parent.parent / "docs" / "public-names.md"


def documented() -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)


def test_what_is_exported_is_documented_and_the_other_way_round():
    written, exported = set(documented()), set(toril.__all__)

    assert not exported - written, "give each a row in docs/public-names.md"
    assert not written - exported, "export it from toril, or take its row away"


def test_each_name_is_there_once_and_in_order():
    assert len(set(toril.__all__)) == len(toril.__all__)
    assert toril.__all__ == sorted(toril.__all__, key=lambda name: (name.islower(), name))
    for name in toril.__all__:
        assert getattr(toril, name) is not None


def test_the_blocking_client_has_names_of_the_async_one():
    assert set(toril.sync.__all__) <= set(toril.__all__)
