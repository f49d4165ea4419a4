"""The check of how long functions are."""

from __future__ import annotations

import ast

from tools.check_functions import check, functions


def test_a_function_is_measured_from_its_def_to_its_last_line():
    text = "class A:\n  @final\n  def f(self):\n    def g():\n      pass\n    return g\n"

    assert dict(functions(ast.parse(text))) == {"A.f": 4, "A.f.g": 2}


def test_a_function_inside_of_a_condition_is_measured_too():
    text = "if True:\n    async def f():\n        pass\n"

    assert dict(functions(ast.parse(text))) == {"f": 2}


def test_what_is_too_long_is_told_unless_it_is_known_and_what_was_cut_is_told_too():
    lengths = {"a.py short": 60, "a.py long": 61, "a.py known": 200}

    told = list(check(lengths, {"a.py known", "a.py short", "a.py gone"}))

    assert told == [
        "a.py long has 61 lines; cut it to 60 or fewer",
        "a.py gone is not long any more; take it off STILL_LONG",
        "a.py short is not long any more; take it off STILL_LONG",
    ]
