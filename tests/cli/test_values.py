"""What people type, as the commands understand it."""

from __future__ import annotations

import click
import pytest

from toril.cli.values import DURATION, LONGEST_MS


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("500", 500),
        ("500ms", 500),
        (" 1.5S ", 1500),
        ("1h30m", 5_400_000),
        ("36500d", LONGEST_MS),
    ],
)
def test_a_duration_is_what_was_typed(text, ms):
    assert DURATION.convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["", "²", "1²s", "٣", "٣s", "-1s", "1y", "36501d", "9" * 5000])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(click.BadParameter):
        DURATION.convert(text, None, None)
