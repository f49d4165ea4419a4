"""The parameters and the result of a function as JSON, read once from its annotations.

The arguments are sent as one JSON object by name.  Those that the caller leaves at their defaults
are not sent, so a default may change while jobs are waiting.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from toril.errors import ArgumentsError, InvalidOptionError, PayloadError, ResultError
from toril.protocol import codec
from toril.tasks.references import Reference
from toril.worker.context import Context

_NO_RESULT: Any = inspect.Signature.empty
_SIMPLE = (int, str, bool, type(None))
_LARGEST = 2**53
"""Beyond it an integer is not the same in every language."""


class Signature:
    """The parameters and the result of a task's function."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        names: Mapping[str, Any] | None = None,
        without: frozenset[str] = frozenset(),
        optional: Container[str] = frozenset(),
        ignores_unknown: bool = False,
    ) -> None:
        """``names`` are the names visible where the function is defined, for annotations that are
        strings; the parameters in ``without`` are filled in by the caller and are not data; those
        in ``optional`` may be missing in the data, and the caller fills them in then."""
        self.name = name
        self._what = f"the arguments of task {name!r}"
        parameters = inspect.signature(function).parameters
        hints = _hints_of(name, function, names or {})
        self.context = _find_context(parameters, hints)
        self.positional: tuple[str, ...] = ()
        self.rest: str | None = None
        self._defaults: dict[str, Any] = {}
        self._models: tuple[type, ...] = ()
        self._encoder = msgspec.json.Encoder(enc_hook=self._plain)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters.values():
            if parameter.name == self.context or parameter.name in without:
                continue
            _refuse_kind(name, parameter)
            hint = _checked(name, f"parameter {parameter.name!r}", hints.get(parameter.name, Any))
            self._models += _models_in(hint)
            if parameter.kind is parameter.VAR_KEYWORD:
                self.rest = parameter.name
                self._rest = _decoder(dict[str, hint])  # type: ignore[valid-type]
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                self.positional += (parameter.name,)
            if parameter.default is not parameter.empty:
                self._defaults[parameter.name] = parameter.default
            if parameter.name in self._defaults or parameter.name in optional:
                fields.append((parameter.name, hint, msgspec.UNSET))
            else:
                fields.append((parameter.name, hint))
        self.fields = frozenset(field[0] for field in fields)
        self.required = frozenset(field[0] for field in fields if len(field) == 2)
        self._may_be_missing = self.fields - self.required
        self._fields = fields
        self._forbids_unknown = not (ignores_unknown or self.rest)
        self._arguments = _decoder(
            msgspec.defstruct(
                "Arguments",
                fields,
                kw_only=True,
                forbid_unknown_fields=self._forbids_unknown,
            )
        )
        self.result = hints.get("return", _NO_RESULT)
        self._result: msgspec.json.Decoder[Any] | None = None
        if self.result not in (_NO_RESULT, Any):
            self._result = _decoder(_checked(name, "result", self.result))
        self._simple = self.result if self.result in _SIMPLE else _NO_RESULT

    # ------------------------------------------------------------------ the caller's side

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        arguments = kwargs
        if args:
            if len(args) > len(self.positional):
                raise ArgumentsError(
                    f"task {self.name!r} takes {len(self.positional)} positional arguments"
                    f" ({', '.join(self.positional) or 'none'}), and {len(args)} were given"
                )
            arguments = dict(zip(self.positional, args, strict=False))
            if kwargs:
                for twice in arguments.keys() & kwargs.keys():
                    raise ArgumentsError(
                        f"task {self.name!r} got two values for argument {twice!r}"
                    )
                arguments.update(kwargs)
        if self.context in arguments:
            raise ArgumentsError(
                f"task {self.name!r} gets its {self.context!r} from the worker that runs it; leave"
                f" it out"
            )
        return arguments

    def write(
        self, arguments: Mapping[str, Any], *, later: frozenset[str] = frozenset()
    ) -> msgspec.Raw:
        """The arguments as a job's data, if they fit the annotations.

        Those in ``later`` are filled in by the group that the job belongs to.
        """
        if later:
            return self._write_some(arguments, later)
        text = codec.encode(arguments, self._what, self._encoder)
        try:
            self._arguments.decode(text)
            if self.rest:
                self._read_rest(text)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise self._misfit(error) from error
        return msgspec.Raw(text)

    def _write_some(self, arguments: Mapping[str, Any], later: frozenset[str]) -> msgspec.Raw:
        known = {name: value for name, value in arguments.items() if name not in later}
        text = codec.encode(known, self._what, self._encoder)
        try:
            self._some(later).decode(text)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise self._misfit(error) from error
        unknown = later - self.fields
        if unknown and not self.rest:
            raise ArgumentsError(
                f"the arguments of task {self.name!r} do not fit:"
                f" it has no parameter {min(unknown)!r}"
            )
        return msgspec.Raw(text)

    def _plain(self, value: Any) -> Any:
        """What the encoder does not know: a model as it will be read, and what has no place."""
        if isinstance(value, self._models):
            return codec.write_model(value)
        if isinstance(value, Reference):
            raise ArgumentsError(
                f"the result of {value.key!r} can only be a whole argument of a call in a group, as"
                f" in saga.add({self.name}.call(step.result)); nobody would fill it in inside a"
                f" list or an object, or in a job of its own"
            )
        return codec.plain(value)

    def _some(self, later: frozenset[str]) -> msgspec.json.Decoder[Any]:
        """The type that reads the arguments without those that come later."""
        return _decoder(
            msgspec.defstruct(
                "Arguments",
                [field for field in self._fields if field[0] not in later],
                kw_only=True,
                forbid_unknown_fields=self._forbids_unknown,
            )
        )

    def takes(self, name: str) -> bool:
        """Whether the data may have an argument with this name."""
        return name in self.fields or not self._forbids_unknown

    def with_defaults(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, and the defaults of those that were left out."""
        return {**self._defaults, **arguments}

    def read_result(self, value: Any) -> Any:
        """Convert what the task returned from JSON to the annotated type."""
        if self._result is None:
            return value
        try:
            # Keys in JSON are texts, whatever the keys of the dict were.
            return msgspec.convert(value, self.result, dec_hook=_decode_custom, str_keys=True)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise ResultError(f"the result of task {self.name!r} does not fit: {error}") from error

    # ------------------------------------------------------------------ the worker's side

    def read(self, text: bytes) -> dict[str, Any]:
        """The arguments in a job's data; unknown ones are refused."""
        if text == b"{}" and not self.required:
            return {}
        try:
            arguments = msgspec.structs.asdict(self._arguments.decode(text))
            rest = self._read_rest(text) if self.rest else None
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise self._misfit(error) from error
        for name in self._may_be_missing:
            if arguments[name] is msgspec.UNSET:
                del arguments[name]
        return arguments if rest is None else arguments | rest

    def _misfit(self, error: Exception) -> ArgumentsError:
        return ArgumentsError(f"{self._what} do not fit: {error}")

    def _read_rest(self, text: bytes) -> dict[str, Any]:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        rest = {name: value for name, value in raw.items() if name not in self.fields}
        found: dict[str, Any] = self._rest.decode(msgspec.json.encode(rest))
        return found

    def check_result(self, value: Any) -> None:
        """Refuse a result that the caller could not read as the annotated type."""
        if self._result is None or (type(value) is self._simple and _is_plain(value)):
            return
        try:
            self._result.decode(codec.encode(value, f"the result of task {self.name!r}"))
        except PayloadError as error:
            raise ResultError(str(error)) from error
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise ResultError(
                f"the result of task {self.name!r} does not fit its annotation: {error}"
            ) from error


def _hints_of(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(names), include_extras=True)
    except NameError as error:
        raise InvalidOptionError(
            f"an annotation of task {name!r} cannot be read: {error}; import the name outside of"
            f" TYPE_CHECKING, because it is needed when the job runs"
        ) from error


def _find_context(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> str | None:
    for name in parameters:
        hint = hints.get(name)
        choices = (hint, *typing.get_args(hint))
        if any(choice is Context or typing.get_origin(choice) is Context for choice in choices):
            return name
    return None


def _refuse_kind(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise InvalidOptionError(
            f"task {name!r} has *{parameter.name}; arguments are sent by name, so use a parameter"
            f" that is a list"
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidOptionError(
            f"task {name!r} has the positional-only parameter {parameter.name!r}; arguments are"
            f" sent by name, so leave the '/' out"
        )


def _decoder(of: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(of, dec_hook=_decode_custom)


def _decode_custom(kind: type, value: Any) -> Any:
    """Types that msgspec does not know: paths and pydantic's models."""
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
        return kind(value)
    return codec.read_model(kind, value)


def _checked(name: str, what: str, hint: Any) -> Any:
    """``hint``, if its values can be written as JSON and read back."""
    try:
        info = msgspec.inspect.type_info(hint)
        _decoder(hint)
    except TypeError as error:
        raise InvalidOptionError(f"{what} of task {name!r} cannot be JSON: {error}") from error
    for custom in _custom_types(info, set()):
        if not issubclass(custom, PurePath) and not hasattr(custom, "model_validate"):
            raise InvalidOptionError(
                f"{what} of task {name!r} cannot be JSON: there is no way to read a"
                f" {custom.__qualname__!r}; use a dataclass, a TypedDict, an attrs class, a"
                f" msgspec.Struct or a pydantic model"
            )
    return hint


def _models_in(hint: Any) -> tuple[type, ...]:
    """The types in ``hint`` that validate themselves."""
    custom = _custom_types(msgspec.inspect.type_info(hint), set())
    return tuple(one for one in custom if not issubclass(one, PurePath))


def _custom_types(info: Any, seen: set[Any]) -> Iterator[type]:
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
        return
    if isinstance(info, tuple | list):
        for one in info:
            yield from _custom_types(one, seen)
        return
    if not isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        return
    owner = getattr(info, "cls", None)
    if owner is not None:
        if owner in seen:
            return
        seen.add(owner)
    for field in info.__struct_fields__:
        yield from _custom_types(getattr(info, field), seen)


def _is_plain(value: object) -> bool:
    """Whether the value is JSON that certainly reads back as the same value."""
    if isinstance(value, int):
        return -_LARGEST <= value <= _LARGEST
    if isinstance(value, str):
        return value.isascii()  # among others there are halves of characters
    return value is None
