"""Asserts in the scenes are to say what they compared."""

import pytest

pytest.register_assert_rewrite("tests.docs.compose", "tests.docs.playing", "tests.docs.scenes")
