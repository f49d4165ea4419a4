"""Models that validate and write themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from toril.errors import PayloadError, PayloadTooLargeError
from toril.protocol import codec


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(0, alias="n")


class Strict(pydantic.BaseModel):
    number: int = pydantic.Field(alias="n")


class Named(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    number: int = pydantic.Field(alias="n")


class Plain(pydantic.BaseModel):
    number: int


class Own:
    """Of another library, which knows no aliases."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def model_validate(cls, value: dict[str, int]) -> Own:
        return cls(value["number"])

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"number": self.number}


class Hashing(pydantic.BaseModel):
    secret: str = pydantic.Field("", alias="s")

    @pydantic.field_validator("secret")
    @classmethod
    def hide(cls, secret: str) -> str:
        return f"<{secret}>"


class Vector:
    """Cannot be compared, like arrays."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Point(pydantic.BaseModel):
    number: int = pydantic.Field(alias="n")
    at: Any

    @pydantic.field_validator("at", mode="before")
    @classmethod
    def read(cls, at: Any) -> Any:
        return at if isinstance(at, Vector) else Vector(at)

    @pydantic.field_serializer("at")
    def write(self, at: Vector) -> list[int]:
        return at.words


class Picky(pydantic.BaseModel):
    number: int = pydantic.Field(alias="n")

    @pydantic.model_validator(mode="before")
    @classmethod
    def look(cls, given: dict[str, int]) -> dict[str, int]:
        return {"n": given["n"]}


@pytest.mark.parametrize(
    ("model", "written"),
    [
        (Picky(n=7), {"n": 7}),
        (Order(n=7), {"n": 7}),
        (Strict(n=7), {"n": 7}),
        (Named(number=7), {"number": 7}),
        (Plain(number=7), {"number": 7}),
        (Own(7), {"number": 7}),
    ],
)
def test_a_model_is_written_as_it_is_read(model: Any, written: dict[str, int]):
    assert codec.write_model(model) == written
    assert codec.read_model(type(model), written) == model


@pytest.mark.parametrize("kind", [Order, Strict, Named])
@pytest.mark.parametrize("written", [{"n": 7}, {"number": 7}, {"n": 7, "number": 8}])
def test_aliases_go_before_names_and_both_are_read(kind: Any, written: dict[str, int]):
    assert codec.read_model(kind, written) == kind(n=7)


def test_a_model_whose_fields_cannot_be_compared_is_written():
    written = codec.write_model(Point(n=7, at=[1, 2]))

    assert written == {"n": 7, "at": [1, 2]}
    assert codec.read_model(Point, written).at.words == [1, 2]


def test_a_model_that_would_be_another_is_not_written():
    with pytest.raises(ValueError, match="'Hashing' would not come back as it is"):
        codec.write_model(Hashing(s="x"))


def test_an_encoder_may_refuse_with_an_error_of_its_own():
    def refuse(value: Any) -> Any:
        raise PayloadTooLargeError("mine")

    encoder = msgspec.json.Encoder(enc_hook=refuse)

    for value in (object(), [2**70, object()]):
        with pytest.raises(PayloadTooLargeError, match=r"^mine$"):
            codec.encode(value, "data", encoder)
        with pytest.raises(PayloadError, match="data cannot be written"):
            codec.encode(value, "data")
