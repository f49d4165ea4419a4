"""Fixtures for the tests of the doctor."""

from __future__ import annotations

import pytest


@pytest.fixture
def queue_name() -> str:
    return "payments"
