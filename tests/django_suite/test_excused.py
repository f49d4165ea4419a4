"""The table of excused tests is wrong in either direction, and a run without tests is none."""

from __future__ import annotations

from tests.django_suite.excused import ALWAYS, EXCUSED, complaints
from tests.django_suite.standing_in import PASSED

GOOD = dict.fromkeys(ALWAYS, "AssertionError") | {"test_tasks.T.test_a": PASSED}
ONE = min(ALWAYS)


def test_a_run_as_the_table_says_is_good():
    assert complaints("now", GOOD) == []
    assert len(EXCUSED["commit"]) == len(ALWAYS) + 2


def test_a_fall_that_is_not_excused_is_told():
    ended = {**GOOD, "test_tasks.T.test_b": "KeyError: 1"}

    assert complaints("now", ended) == ["fell: test_tasks.T.test_b: KeyError: 1"]


def test_an_excuse_that_is_not_needed_is_told():
    assert complaints("now", {**GOOD, ONE: PASSED}) == [f"is excused and passes: {ONE}"]
    left = {name: words for name, words in GOOD.items() if name != ONE}
    assert complaints("now", left) == [f"is excused and is not there any more: {ONE}"]


def test_a_test_that_was_skipped_has_not_passed():
    ended = {**GOOD, "test_tasks.T.test_b": "skipped: no"}

    assert complaints("now", ended) == ["fell: test_tasks.T.test_b: skipped: no"]


def test_no_tests_at_all_is_not_a_good_run():
    assert complaints("now", {})[0] == "no test was run at all"


def test_every_excuse_has_a_reason():
    assert all(len(reason) > 20 for table in EXCUSED.values() for reason in table.values())
