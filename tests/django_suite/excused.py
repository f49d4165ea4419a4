"""Django's tests that cannot hold for a queue, each with its reason.

A test that is listed here and passes, or is gone, is as wrong as one that falls and is not listed.
"""

from __future__ import annotations

DUMMY = "test_dummy_backend.DummyBackendTestCase"
IMMEDIATE = "test_immediate_backend.ImmediateBackendTestCase"

ALWAYS = {
    f"{DUMMY}.test_check": (
        "QUEUES is empty there; a worker has to know the queues, so our check says toril.E004"
    ),
    f"{DUMMY}.test_refresh_result": (
        "it changes a result in the backend's own list; ours are jobs on a server"
    ),
    f"{DUMMY}.test_refresh_result_async": (
        "it changes a result in the backend's own list; ours are jobs on a server"
    ),
    f"{IMMEDIATE}.test_cannot_get_result": "it wants get_result() refused; ours has it",
    f"{IMMEDIATE}.test_cannot_refresh_result": "it wants refresh() refused; ours has it",
    f"{IMMEDIATE}.test_cannot_pass_run_after": "it wants run_after refused; ours has it",
    f"{IMMEDIATE}.test_throws_keyboard_interrupt": (
        "the task runs in a worker: it fails there, and raises nothing in who enqueued it"
    ),
}

_COMMITTED = "with ENQUEUE = 'commit' a task is enqueued after the transaction, not in it"
_BY_DEFAULT = "test_doesnt_wait_until_transaction_commit_by_default"

EXCUSED = {
    "now": ALWAYS,
    "commit": {
        **ALWAYS,
        f"test_dummy_backend.DummyBackendTransactionTestCase.{_BY_DEFAULT}": _COMMITTED,
        f"test_immediate_backend.ImmediateBackendTransactionTestCase.{_BY_DEFAULT}": _COMMITTED,
    },
}
"""By ENQUEUE."""


def complaints(moment: str, ended: dict[str, str]) -> list[str]:
    """What is wrong with a run, in a line each; ``ended`` tells of each test how it ended."""
    excused = EXCUSED[moment]
    found = [] if ended else ["no test was run at all"]
    for name, words in sorted(ended.items()):
        if words != "passed" and name not in excused:
            found.append(f"fell: {name}: {words}")
    for name in sorted(excused):
        if name not in ended:
            found.append(f"is excused and is not there any more: {name}")
        elif ended[name] == "passed":
            found.append(f"is excused and passes: {name}")
    return found
