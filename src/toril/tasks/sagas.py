"""Groups of calls: a call runs after those whose results it uses, and its task's undo undoes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import msgspec

from toril.checking import shown
from toril.errors import GroupValidationError, InvalidOptionError, JobFailedError
from toril.options import Duration
from toril.protocol.groups import GroupInfo, GroupNode, GroupState
from toril.protocol.new_group import GroupJob, GroupSignal, member_of
from toril.tasks.calls import Call
from toril.tasks.references import Reference

if TYPE_CHECKING:
    from toril.tasks.app import App

R = TypeVar("R")


class Step(Generic[R]):
    """A call that is a member of a group."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<Step {self.key!r}>"

    @property
    def result(self) -> R:
        """A placeholder for what the call will return: pass it to another call as an argument.

        That call runs after this one and receives the result in its place.
        """
        return cast(R, Reference(self.key))


class Saga:
    """A group that is being built; leaving the block creates it in one step.

    If the block raises, nothing is created.  ``options`` are the options of
    ``FlowProducer.add_group``.
    """

    def __init__(
        self, app: App, name: str, group_id: str | None, options: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._name = name
        self._group_id = group_id
        self._options = dict(options)
        self._members: list[GroupJob | GroupSignal] = []
        self._keys: set[str] = set()
        self.node: GroupNode | None = None
        """The group, once it is created."""

    def __repr__(self) -> str:
        return f"<Saga {self._name!r} of {len(self._members)} members>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.start()

    def add(
        self,
        call: Call[R],
        *,
        after: Iterable[Step[Any]] = (),
        key: str | None = None,
        pivot: bool = False,
    ) -> Step[R]:
        """Make a call a member; it runs after those whose results it uses, and after ``after``."""
        if not isinstance(call, Call):
            raise GroupValidationError(f"saga.add() got {shown(call)}; write task.call(…)")
        if not _is_at_home(call, self._app):
            raise GroupValidationError(
                f"call of task {call.name!r} is of an app with prefix={call.prefix!r}, and"
                f" {self!r} would be under {self._app.prefix!r}, where no worker of that app looks;"
                f" a group is under one prefix"
            )
        step: Step[R] = Step(self._new_key(key, call.name))
        before = dict.fromkeys([*(one.key for one in after), *call.membership["after"]])
        place = {"key": step.key, "after": tuple(before), "pivot": pivot}
        self._members.append(member_of(call, prefix=None, **place))
        return step

    def signal(
        self,
        name: str,
        *,
        after: Iterable[Step[Any]] = (),
        timeout: Duration | None = None,
        default: Any = msgspec.UNSET,
    ) -> Step[Any]:
        """A member that waits until somebody calls ``complete_member``, which passes its result."""
        step: Step[Any] = Step(self._new_key(None, name))
        before = tuple(one.key for one in after)
        self._members.append(
            GroupSignal(name, key=step.key, after=before, timeout=timeout, default=default)
        )
        return step

    async def start(self) -> GroupNode:
        """Create the group now; leaving the block does this for you."""
        if self.node is None:
            self.node = await self._app._flow_producer().add_group(
                self._name, self._members, group_id=self._group_id, **self._options
            )
        return self.node

    async def wait(self, timeout: Duration | None = None) -> GroupInfo:
        """Wait until the group has ended."""
        return await self._app.queue(self._owner).wait_for_group(self._id, timeout)

    async def results(self) -> dict[str, Any]:
        """What the members returned so far, by their keys."""
        return await self._app.queue(self._owner).get_group_results(self._id)

    @property
    def _id(self) -> str:
        if self.node is None:
            raise InvalidOptionError(f"{self!r} has not been created yet; leave its block first")
        return self.node.group_id

    @property
    def _owner(self) -> str:
        named: str | None = self._options.get("queue_name")
        jobs = (member.queue_name for member in self._members if isinstance(member, GroupJob))
        return named or next(jobs)

    def _new_key(self, key: str | None, name: str) -> str:
        if key is None:
            key, number = name, 1
            while key in self._keys:
                number += 1
                key = f"{name}-{number}"
        if key in self._keys:
            raise GroupValidationError(f"two members of {self!r} have the key {key!r}")
        self._keys.add(key)
        return key


def _is_at_home(call: Call[Any], app: App) -> bool:
    """Whether the workers that know the call look where ``app`` adds it.

    A call of one of its own tasks may be older than a move of the app to another prefix.
    """
    own = app._tasks.get(call.name)
    is_own = own is not None and own.signature is call.signature
    return is_own or call.prefix in (None, app.prefix)


class GroupHandle(Generic[R]):
    """A group of calls that was started; its result comes from its calls."""

    __slots__ = ("_read", "_saga", "id")

    def __init__(self, saga: Saga, group_id: str, read: Callable[[Mapping[str, Any]], R]) -> None:
        self._saga = saga
        self.id = group_id
        self._read = read

    def __repr__(self) -> str:
        return f"<GroupHandle of group {self.id!r}>"

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the results of the calls; raises ``JobFailedError`` if one failed."""
        info = await self._saga.wait(timeout)
        if info.state is not GroupState.COMPLETED:
            raise JobFailedError(self.id, info.reason or f"the group is {info.state}")
        return self._read(await self._saga.results())

    async def wait(self, timeout: Duration | None = None) -> GroupInfo:
        """Wait until the group has ended, whatever the outcome."""
        return await self._saga.wait(timeout)


async def start_chain(app: App, calls: Sequence[Call[Any]]) -> GroupHandle[Any]:
    """Run one call after the other; the result is the result of the last one."""
    if not calls:
        raise GroupValidationError("a chain needs a call")
    saga = Saga(app, "chain", None, {})
    last: Step[Any] | None = None
    for call in calls:
        last = saga.add(call, after=() if last is None else (last,))
    node = await saga.start()
    assert last is not None
    key = last.key

    def read(results: Mapping[str, Any]) -> Any:
        return calls[-1].signature.read_result(results.get(key))

    return GroupHandle(saga, node.group_id, read)


async def start_gather(app: App, calls: Iterable[Call[R]]) -> GroupHandle[list[R]]:
    """Run all calls concurrently; the result is a list, in the order given."""
    made = list(calls)
    saga = Saga(app, "gather", None, {})
    keys = [saga.add(call).key for call in made]
    node = await saga.start()

    def read(results: Mapping[str, Any]) -> list[R]:
        return [
            call.signature.read_result(results.get(key))
            for key, call in zip(keys, made, strict=True)
        ]

    return GroupHandle(saga, node.group_id, read)
