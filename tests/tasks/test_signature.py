"""What a function takes and gives, as JSON and back."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from unittest.mock import ANY
from uuid import UUID

import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

from toril.errors import ArgumentsError, InvalidOptionError, PayloadError, ResultError
from toril.tasks.signature import Signature
from toril.worker.context import Context


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Address(TypedDict):
    city: str


class Item(msgspec.Struct):
    sku: str


class Customer(pydantic.BaseModel):
    name: str
    since: datetime


def signature_of(function: Callable[..., Any], **options: Any) -> Signature:
    return Signature("work", function, **options)


VALUES: list[tuple[Any, Any, Any]] = [
    (int, 2**70, 2**70),
    (Decimal, Decimal("9.99"), "9.99"),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    (timedelta, timedelta(hours=1), "PT3600S"),
    (UUID, UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Colour, Colour.RED, "red"),
    (bytes, b"\x00\xff", "AP8="),
    (Path, Path("a/b"), "a/b"),
    (Money, Money(Decimal(1)), {"amount": "1", "currency": "EUR"}),
    (Address, {"city": "Ghent"}, {"city": "Ghent"}),
    (Point, Point(1, 2), [1, 2]),
    (Item, Item("x"), {"sku": "x"}),
    (
        Customer,
        Customer(name="Ada", since=datetime(2026, 1, 1, tzinfo=UTC)),
        {"name": "Ada", "since": "2026-01-01T00:00:00Z"},
    ),
    (int | str | None, None, None),
    (list[Money], [Money(Decimal(2))], [{"amount": "2", "currency": "EUR"}]),
    (set[int], {1}, [1]),
]


@pytest.mark.parametrize(("kind", "value", "wire"), VALUES, ids=[str(v[0]) for v in VALUES])
def test_a_value_travels_as_json_and_comes_back_as_its_type(kind: Any, value: Any, wire: Any):
    def function(thing: Any) -> Any: ...

    function.__annotations__ = {"thing": kind, "return": kind}
    signature = signature_of(function)

    text = bytes(signature.write(signature.bind((value,), {})))

    assert json.loads(text) == {"thing": wire}
    assert signature.read(text) == {"thing": value}
    signature.check_result(value)
    assert signature.read_result(wire) == value


def test_what_is_left_at_its_default_does_not_travel():
    def function(order: int, note: str = "none", *, fast: bool = False) -> None: ...

    signature = signature_of(function)

    assert signature.bind((1,), {}) == {"order": 1}
    assert signature.bind((1, "none"), {"fast": True}) == {
        "order": 1,
        "note": "none",
        "fast": True,
    }
    assert signature.read(b'{"order": 1}') == {"order": 1}
    assert signature.with_defaults({"order": 1}) == {"order": 1, "note": "none", "fast": False}


def test_a_function_without_annotations_takes_json_as_it_is():
    def function(a, b=2):  # type: ignore[no-untyped-def]
        ...

    signature = signature_of(function)

    assert signature.read(b'{"a": {"x": [1, null]}, "b": "y"}') == {
        "a": {"x": [1, None]},
        "b": "y",
    }
    signature.check_result(object)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_context_is_found_wherever_it_stands_and_is_no_data(place: int):
    def first(ctx: Context, order: int, note: str) -> None: ...
    def middle(order: int, ctx: Context[Address], note: str) -> None: ...
    def last(order: int, note: str, *, ctx: Context | None = None) -> None: ...

    signature = signature_of((first, middle, last)[place])

    assert signature.context == "ctx"
    assert signature.bind((1, "x"), {}) == {"order": 1, "note": "x"}
    with pytest.raises(ArgumentsError, match="'ctx' from the worker"):
        signature.bind((1, "x"), {"ctx": None})


def test_other_keywords_collect_the_rest():
    def function(order: int, **rest: int) -> None: ...

    signature = signature_of(function)

    assert signature.bind((1,), {"a": 2}) == {"order": 1, "a": 2}
    assert signature.read(b'{"order": 1, "a": 2, "b": 3}') == {"order": 1, "a": 2, "b": 3}
    with pytest.raises(ArgumentsError, match=r"Expected `int`, got `str`"):
        signature.read(b'{"order": 1, "a": "x"}')


BAD_CALLS = [
    ((), {}, "missing required field `order`"),
    (("1",), {}, r"Expected `int`, got `str` - at `\$.order`"),
    ((1, 2, 3), {}, "takes 2 positional arguments"),
    ((1,), {"order": 2}, "two values for argument 'order'"),
    ((1,), {"nothing": 2}, "unknown field `nothing`"),
    ((1, Money("x")), {}, r"\$.money.amount"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("args", "kwargs", "says"), BAD_CALLS, ids=[c[2] for c in BAD_CALLS])
def test_a_call_that_does_not_fit_says_where(args: Any, kwargs: Any, says: str):
    def function(order: int, money: Money | None = None) -> None: ...

    signature = signature_of(function)

    def call() -> None:
        signature.write(signature.bind(args, kwargs))

    with pytest.raises(ArgumentsError, match=says) as raised:
        call()

    assert "'work'" in str(raised.value)
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"null",
        b"{",
        b'{"order": 1e999}',
        b'{"order": 1, "new": 2}',
        b"\xff",
        b'{"order": [1]}',
    ],
)
def test_data_that_does_not_fit_is_refused_for_good(text: bytes):
    def function(order: int) -> None: ...

    with pytest.raises(ArgumentsError, match="arguments of task 'work' do not fit"):
        signature_of(function).read(text)


def test_unknown_arguments_can_be_ignored_for_a_rolling_deploy():
    def function(order: int) -> None: ...

    signature = signature_of(function, ignores_unknown=True)

    assert signature.read(b'{"order": 1, "new": 2}') == {"order": 1}


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, -(2**53), 2**63 - 1, 2**64], [True, 1.5, "1", None]),
        (str, ["", "null", "ä", "\U0001f600"], ["\ud800", 1, None]),
        (bool, [True, False], [1, 0, None, "true"]),
        (float, [1.5, 1, 1e300], [float("nan"), float("inf"), "1"]),
        (type(None), [None], [0, False, ""]),
    ],
)
def test_simple_results_are_judged_as_if_they_were_written_and_read(hint, good, bad):
    """Most of them are known to fit by their kind alone."""

    def work(): ...

    work.__annotations__["return"] = hint
    signature = Signature("work", work)

    for value in good:
        signature.check_result(value)
        assert signature.read_result(value) == value
    for value in bad:
        with pytest.raises(ResultError):
            signature.check_result(value)


def test_a_result_that_does_not_fit_is_refused():
    def function() -> Money: ...

    signature = signature_of(function)

    with pytest.raises(ResultError, match="result of task 'work' does not fit"):
        signature.check_result({"amount": "much"})
    with pytest.raises(ResultError, match="cannot be written as JSON"):
        signature.check_result(object())
    with pytest.raises(ResultError, match="does not fit"):
        signature.read_result("x")


def test_an_argument_that_is_no_json_is_refused_by_name():
    def function(thing: Any) -> None: ...

    with pytest.raises(PayloadError, match="arguments of task 'work'"):
        signature_of(function).write({"thing": object()})


def _star(*orders: int) -> None: ...
def _positional(order: int, /) -> None: ...
def _function(then: Callable[[], None]) -> None: ...
def _two(thing: Money | Item) -> None: ...
def _object(lock: Signature) -> None: ...
def _inside(things: dict[str, list[Signature]]) -> None: ...
def _result() -> Signature: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_star, r"\*orders"),
        (_positional, "positional-only parameter 'order'"),
        (_function, "parameter 'then'"),
        (_two, "parameter 'thing'"),
        (_object, "parameter 'lock'"),
        (_inside, "parameter 'things'"),
        (_result, "result of task 'work'"),
    ],
)
def test_what_cannot_be_annotated_that_way_is_refused_when_decorating(
    function: Callable[..., Any], says: str
):
    with pytest.raises(InvalidOptionError, match=says):
        signature_of(function)


def test_an_annotation_that_cannot_be_found_says_what_to_do():
    def function(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidOptionError, match="TYPE_CHECKING"):
        signature_of(function)


def test_a_type_of_the_surrounding_function_is_found():
    class Local(msgspec.Struct):
        a: int

    def function(thing: Local) -> None: ...

    assert signature_of(function, names=locals()).read(b'{"thing": {"a": 1}}') == {
        "thing": Local(1)
    }


def test_without_arguments_only_what_is_needed_is_missed():
    def nothing(): ...

    def optional(a: int = 1, **rest: int): ...

    def needed(a: int, b: int = 1): ...

    assert signature_of(nothing).read(b"{}") == {}
    assert signature_of(nothing).read(b" { } ") == {}
    assert signature_of(optional).read(b"{}") == {}
    with pytest.raises(ArgumentsError, match="missing required field `a`"):
        signature_of(needed).read(b"{}")
    for other in (b"[]", b"null", b'{"a":1}', b""):
        with pytest.raises(ArgumentsError):
            signature_of(nothing).read(other)


class Camel(pydantic.BaseModel):
    """Validates aliases alone, as what comes from a web page does; each field has a default."""

    model_config = pydantic.ConfigDict(alias_generator=to_camel)
    order_id: int = 0
    gift_note: str = ""


class Both(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel, populate_by_name=True)
    order_id: int = 0


class Swapped(pydantic.BaseModel):
    left: int = pydantic.Field(0, alias="right")
    right: int = pydantic.Field(0, alias="left")


class OutOnly(pydantic.BaseModel):
    order_id: int = pydantic.Field(0, serialization_alias="id")


class InAndOut(pydantic.BaseModel):
    order_id: int = pydantic.Field(0, validation_alias="in", serialization_alias="out")


class Odd(pydantic.BaseModel):
    number: int = pydantic.Field(0, alias="n")

    @pydantic.field_validator("number")
    @classmethod
    def more(cls, number: int) -> int:
        return number + 1


class Aging(pydantic.BaseModel):
    order_id: int = pydantic.Field(0, alias="id")

    @pydantic.computed_field
    def age(self) -> int:
        return next(_ages)


_ages = itertools.count()


class Parent(pydantic.BaseModel):
    order: Camel
    others: list[Camel] = []


CAMEL = Camel.model_validate({"orderId": 7, "giftNote": "hi"})
ON_THE_WIRE = {"orderId": 7, "giftNote": "hi"}
ALIASES: list[tuple[Any, Any, Any]] = [
    (Camel, CAMEL, ON_THE_WIRE),
    (list[Camel], [CAMEL], [ON_THE_WIRE]),
    (Camel | None, CAMEL, ON_THE_WIRE),
    (
        Parent,
        Parent(order=CAMEL, others=[CAMEL]),
        {"order": ON_THE_WIRE, "others": [ON_THE_WIRE]},
    ),
    (Both, Both(order_id=7), {"order_id": 7}),
    (Swapped, Swapped.model_validate({"left": 1, "right": 2}), {"left": 1, "right": 2}),
    (OutOnly, OutOnly(order_id=7), {"order_id": 7}),
    (Aging, Aging.model_validate({"id": 7}), {"id": 7, "age": ANY}),
    (InAndOut, InAndOut.model_validate({"in": 7}), {"order_id": 7}),
]


@pytest.mark.parametrize(("kind", "value", "wire"), ALIASES, ids=[str(v[0]) for v in ALIASES])
def test_a_model_with_aliases_comes_back_with_its_values(kind: Any, value: Any, wire: Any):
    """Regression: its fields went under their names, were not found, and had their defaults."""

    def function(thing: Any) -> Any: ...

    function.__annotations__ = {"thing": kind}

    text = bytes(signature_of(function).write({"thing": value}))

    assert json.loads(text) == {"thing": wire}
    assert signature_of(function).read(text) == {"thing": value}


def test_what_an_earlier_version_wrote_under_the_names_of_fields_is_read():
    """Results are still written like this: without a task nobody knows how they will be read."""

    def function(thing: Camel) -> Parent: ...

    by_name = CAMEL.model_dump(mode="json")
    signature = signature_of(function)
    signature.check_result(Parent(order=CAMEL))

    assert signature.read(json.dumps({"thing": by_name}).encode()) == {"thing": CAMEL}
    assert signature.read_result({"order": by_name}) == Parent(order=CAMEL)
    assert signature.read_result({"order": ON_THE_WIRE}) == Parent(order=CAMEL)


def test_a_model_that_would_come_back_as_another_is_refused():
    def function(thing: Odd) -> None: ...

    with pytest.raises(PayloadError, match="'Odd' would not come back as it is"):
        signature_of(function).write({"thing": Odd(n=1)})


def test_a_model_is_written_by_its_names_where_nothing_says_that_it_is_read_as_one():
    def function(thing: Any) -> None: ...

    assert json.loads(bytes(signature_of(function).write({"thing": CAMEL}))) == {
        "thing": {"order_id": 7, "gift_note": "hi"}
    }
