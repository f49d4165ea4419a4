"""The handlers of tasks: read the arguments, call the function, check the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toril.errors import ArgumentsError
from toril.protocol import codec
from toril.protocol.codec import CompensationPayload
from toril.tasks.calls import INPUTS
from toril.tasks.signature import Signature

if TYPE_CHECKING:
    from toril.tasks.app import App
    from toril.tasks.task import Task

Arguments = Callable[[Any], dict[str, Any]]
Results = Mapping[str, Any] | None
"""What the members of a group returned, by their keys."""


def runner_of(app: App, task: Task[..., Any, ..., Any]) -> Callable[[Any], Any]:
    """The handler that a worker calls for the jobs of ``task``."""
    read = task.signature.read
    return _runner(app, task.function, task.signature, lambda job: read(job.data_text))


def undo_runner_of(
    app: App, undo: Task[..., Any, ..., Any], task: Task[..., Any, ..., Any]
) -> Callable[[Any], Any]:
    """The handler for the jobs that undo ``task``: its arguments, and what it returned."""
    wants_result = "result" in inspect.signature(undo.function).parameters

    def arguments(job: Any, results: Results = None) -> dict[str, Any]:
        payload = job.compensation
        if payload is None:
            raise ArgumentsError(
                f"job {job.id!r} is named {undo.name!r}, which undoes {task.name!r} in a group, but"
                f" its data does not say what to undo"
            )
        data = _with_inputs(payload, results)
        found = _arguments_of_undo(undo.signature, task.signature, data)
        if wants_result:
            value = payload.original_return_value
            found["result"] = None if value is None else task.signature.read_result(value)
        return found

    def runner(results: Results = None) -> Callable[[Any], Any]:
        return _runner(app, undo.function, undo.signature, lambda job: arguments(job, results))

    return _with_results(app, undo, runner)


def _with_results(
    app: App, undo: Task[..., Any, ..., Any], runner: Callable[..., Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    """A handler that asks for the results of a group that were too long to be in its job."""
    usual = runner()
    if inspect.iscoroutinefunction(undo.function):

        async def run(job: Any) -> Any:
            if not _lacks_results(job):
                return await usual(job)
            queue = app.queue(undo.queue_name)
            return await runner(await queue.get_group_results(job.compensation.group_id))(job)

        return run

    def run_in_thread(job: Any) -> Any:
        if not _lacks_results(job):
            return usual(job)
        queue = app._blocking_queue(undo.queue_name)
        return runner(queue.get_group_results(job.compensation.group_id))(job)

    return run_in_thread


def _lacks_results(job: Any) -> bool:
    payload = job.compensation
    return payload is not None and payload.results is None and _has_inputs(payload)


def _has_inputs(payload: CompensationPayload) -> bool:
    data = payload.compensation_data
    return isinstance(data, Mapping) and INPUTS in data


def _arguments_of_undo(undo: Signature, task: Signature, data: Any) -> dict[str, Any]:
    """What the task was given, as far as the undo takes it, with the task's own defaults."""
    if isinstance(data, Mapping):
        data = {
            name: value for name, value in data.items() if undo.takes(name) or not task.takes(name)
        }
    found = undo.read(codec.encode(data, "the arguments"))
    defaults = {name: one for name, one in task.with_defaults({}).items() if undo.takes(name)}
    return defaults | found


def _with_inputs(payload: CompensationPayload, results: Results) -> Any:
    """The arguments of an undo; those that were results of other members are filled in."""
    data = payload.compensation_data
    if not _has_inputs(payload):
        return data
    inputs: Mapping[str, str] = data[INPUTS]
    told = payload.results or results or {}
    known = {one: value for one, value in data.items() if one != INPUTS}
    return known | {one: told.get(key) for one, key in inputs.items()}


def _runner(
    app: App, function: Callable[..., Any], signature: Signature, arguments: Arguments
) -> Callable[[Any], Any]:
    context = signature.context
    check_result = signature.check_result

    def bound(job: Any) -> dict[str, Any]:
        found = arguments(job)
        if context is not None:
            job.state = app.lifespan.state
            found[context] = job
        return found

    bind = arguments if context is None else bound
    if inspect.iscoroutinefunction(function):

        async def run(job: Any) -> Any:
            result = await function(**bind(job))
            check_result(result)
            return result

        return run

    def run_in_thread(job: Any) -> Any:
        result = function(**bind(job))
        check_result(result)
        return result

    return run_in_thread
