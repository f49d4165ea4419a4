"""Arguments of the public calls, checked by their annotations before anything is done.

A program without a type checker learns here what was wrong: which argument, what it got, and what
to write instead.  Calls that are made for every job (``add``, ``complete``) check by hand.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, TypeVar

from toril.errors import InvalidOptionError

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[Any], bool]


def checked(owner: C) -> C:
    """Check the arguments of every public method of a class, those it inherits included."""
    for name in dir(owner):
        if name.startswith("_") and name != "__init__":
            continue
        method = inspect.getattr_static(owner, name)
        if inspect.isfunction(method) and _has_arguments(method):
            called = owner.__name__ if name == "__init__" else f"{owner.__name__}.{name}"
            setattr(owner, name, _checked(method, called, is_method=True))
    return owner


def checked_call(function: F) -> F:
    """The same for one function, or one method of a class whose others are called for each job."""
    is_method = next(iter(inspect.signature(function).parameters), "") == "self"
    called = function.__qualname__.removesuffix(".__init__")
    return typing.cast(F, _checked(function, called, is_method=is_method))


def by_hand(method: F) -> F:
    """A method that checks its arguments itself, because every microsecond of it counts."""
    method.__checks_by_hand__ = True  # type: ignore[attr-defined]
    return method


def by_hand_for(*names: str) -> Callable[[F], F]:
    """Leave these arguments to the method, which has better words or errors of its own for them."""

    def mark(method: F) -> F:
        method.__left_out__ = names  # type: ignore[attr-defined]
        return method

    return mark


def refuse_wrong_fields(value: Any) -> None:
    """Check the fields of a Struct by their annotations."""
    kind: Any = type(value)
    for name, check, wanted in _fields_of(kind):
        given = getattr(value, name)
        if not check(given):
            raise InvalidOptionError(_words(kind.__name__, name, given, wanted))


def shown(value: Any) -> str:
    """A value in an error: what it is, and not pages of it."""
    try:
        words = repr(value)
    except Exception:  # noqa: BLE001 (the user's class)
        words = f"<{type(value).__name__}>"
    return words if len(words) <= _LONGEST_WORDS else f"{words[: _LONGEST_WORDS - 1]}…"


_LONGEST_WORDS = 300


def _has_arguments(method: Any) -> bool:
    if hasattr(method, "__checks_by_hand__") or hasattr(method, "__checks__"):
        return False
    return any(
        words not in ("Any", "object")
        for name, words in method.__annotations__.items()
        if name != "return"
    )


def _checked(function: Callable[..., Any], called: str, *, is_method: bool) -> Callable[..., Any]:
    checker: _Arguments | None = None

    translate = getattr(function, "__translate__", None)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        nonlocal checker
        if checker is None:
            checker = _Arguments(function, called, skip=1 if is_method else 0)
        if translate is not None:
            args = translate(args, kwargs)
        checker.check(args, kwargs)
        return args

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await function(*check(args, kwargs), **kwargs)
    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*check(args, kwargs), **kwargs)

    call.__checks__ = True  # type: ignore[attr-defined]
    return call


class _Arguments:
    """What a function takes; made at its first call, when all its annotations can be looked up."""

    def __init__(self, function: Callable[..., Any], called: str, *, skip: int) -> None:
        self._called = called
        self._positional: list[tuple[str, Check, str] | None] = []
        self._rest: tuple[str, Check, str] | None = None
        self._by_name: dict[str, tuple[str, Check, str]] = {}
        for number, parameter in enumerate(inspect.signature(function).parameters.values()):
            annotation = _resolve(parameter.annotation, function)
            if parameter.name in getattr(function, "__left_out__", ()):
                annotation = Any
            known = (parameter.name, _check_of(annotation), _wanted(annotation))
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = known
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self._positional.append(None if number < skip else known)
            if number >= skip and parameter.kind is not parameter.POSITIONAL_ONLY:
                self._by_name[parameter.name] = known

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for known, value in zip(self._positional, args, strict=False):
            if known is not None and not known[1](value):
                raise InvalidOptionError(_words(self._called, known[0], value, known[2]))
        if self._rest is not None:
            name, check, wanted = self._rest
            for value in args[len(self._positional) :]:
                if not check(value):
                    raise InvalidOptionError(_words(self._called, name, value, wanted))
        for name, value in kwargs.items():
            known = self._by_name.get(name)
            if known is not None and not known[1](value):
                raise InvalidOptionError(_words(self._called, name, value, known[2]))


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, Check, str], ...]:
    found: dict[str, tuple[str, Check, str]] = {}
    for base in reversed(kind.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            resolved = _resolve(annotation, base)
            found[name] = (name, _check_of(resolved), _wanted(resolved))
    return tuple(found.values())


def _resolve(annotation: Any, owner: Any) -> Any:
    """The type that an annotation names; ``Any`` where only type checkers can know it."""
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(owner.__module__)
    try:
        return eval(annotation, dict(vars(module)) if module else {})  # noqa: S307 (our own words)
    except (NameError, TypeError, AttributeError):
        return Any


def _check_of(annotation: Any) -> Check:
    """A function that tells whether a value fits ``annotation``, as far as a look can tell."""
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return lambda value: value is None
    if annotation in (Any, object) or isinstance(annotation, str | typing.ForwardRef):
        return _anything
    if origin in (typing.Union, types.UnionType):
        checks = tuple(_check_of(part) for part in parts)
        return lambda value: any(check(value) for check in checks)
    if origin is typing.Literal:
        return lambda value: isinstance(value, str) and value in parts
    if origin is type:
        return lambda value: isinstance(value, type) and issubclass(value, parts[0])
    if annotation is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    kind = origin or annotation
    if not isinstance(kind, type) or kind is inspect.Parameter.empty:
        return _anything
    if typing.is_typeddict(kind):
        return lambda value: isinstance(value, Mapping)
    if issubclass(kind, Mapping):
        key = _check_of(parts[0]) if parts else _anything
        return lambda value: isinstance(value, Mapping) and all(map(key, value))
    if kind in _COLLECTIONS:
        each = _check_of(parts[0]) if parts else _anything
        return functools.partial(_is_collection, kind, each)
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return _anything
    return lambda value: isinstance(value, kind)


_COLLECTIONS = (list, tuple, Sequence, Iterable, set, frozenset, AbstractSet)


def _anything(value: Any) -> bool:
    return True


def _is_collection(kind: type, each: Check, value: Any) -> bool:
    if not isinstance(value, kind) or isinstance(value, str | bytes | Mapping):
        return False
    # What can be read only once is left for whoever reads it.
    return not isinstance(value, Collection) or all(map(each, value))


def _wanted(annotation: Any) -> str:
    """What an annotation asks for, in words."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        if int in parts and timedelta in parts:
            rest = [part for part in parts if part not in (int, timedelta)]
            return " or ".join(["milliseconds as an int or a timedelta", *map(_wanted, rest)])
        if int in parts and datetime in parts:
            rest = [part for part in parts if part not in (int, datetime)]
            words = "milliseconds since the epoch or a datetime with its time zone"
            return " or ".join([words, *map(_wanted, rest)])
        return " or ".join(dict.fromkeys(map(_wanted, parts)))
    if annotation is None or annotation is type(None):
        return "None"
    kind = typing.get_origin(annotation) or annotation
    if kind in _COLLECTIONS and parts and parts[0] is not Ellipsis:
        return f"a list of {_wanted(parts[0]).removeprefix('a ').removeprefix('an ')}"
    if kind is typing.Literal:
        return " or ".join(map(repr, parts))
    if kind is type and parts == (BaseException,):
        return "a class of exceptions"
    if hasattr(kind, "__struct_fields__"):
        return f"{kind.__name__}({', '.join(kind.__struct_fields__[:2])}, …)"
    return _NAMES.get(kind) or str(getattr(kind, "__name__", kind))


_NAMES: dict[Any, str] = {
    str: "a str",
    int: "an int",
    float: "a number",
    bool: "True or False",
    bytes: "bytes",
    Callable: "a function",
    Mapping: "a dict",
    dict: "a dict",
}


def _words(called: str, name: str, value: Any, wanted: str) -> str:
    hint = ""
    if name.endswith("_id") and isinstance(getattr(value, "id", None), str):
        hint = f"; write {name}={name.removesuffix('_id')}.id"
    elif wanted.startswith("a str") and isinstance(value, int) and not isinstance(value, bool):
        hint = f"; write {name}={str(value)!r}"
    return f"{called}() got {name}={shown(value)}; it takes {wanted}{hint}"
