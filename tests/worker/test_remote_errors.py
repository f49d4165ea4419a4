"""``executor="process"``: an error is in the worker what it was in the process."""

from __future__ import annotations

import threading
from typing import Any, Self

import pytest

from tests.worker.jobs import BankError, Declined, router
from toril import UnrecoverableError
from toril.errors import DelayedError
from toril.worker.child import pack, unpack
from toril.worker.remote_error import RemoteTraceback, describe, revive


def sent(error: BaseException) -> BaseException:
    """``error`` after its way through a pipe."""
    return revive(unpack(pack(describe(error))))


@pytest.mark.parametrize(
    ("data", "kind", "text", "code", "attempts"),
    [
        ("bank", BankError, "503: try later", 503, "2"),
        ("declined", Declined, "402: declined", 402, "1"),
    ],
)
async def test_an_error_of_a_process_has_its_class_in_the_worker(
    data, kind, text, code, attempts, queue, start_worker, inside
):
    job = await queue.add("raise", data, attempts=2)
    worker = await start_worker(router, executor="process")
    errors: list[Any] = []
    worker.on("failed", lambda job, error: errors.append(error))
    await inside.until_finished(1)
    await worker.close()

    (error,) = errors
    assert (type(error), str(error), error.code) == (kind, text, code)
    stored = await inside.job(job.id)
    assert stored["atm"] == attempts
    assert stored["failedReason"].endswith(text)


def test_an_error_whose_init_takes_more_than_its_message_is_the_same():
    error = Declined(402, "declined")
    error.add_note("the card has expired")

    copy = sent(error)

    assert type(copy) is Declined
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    assert isinstance(copy.__cause__, RemoteTraceback)


def test_an_error_that_would_be_unpickled_with_another_message_keeps_its_own():
    copy = sent(DelayedError(10, "the shop is closed"))

    assert type(copy) is DelayedError
    assert (str(copy), copy.delay) == ("the shop is closed", 10)


def test_what_cannot_be_pickled_of_an_error_stays_behind():
    error = BankError(503, "try later")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    error.cause = BankError(500, "down")  # type: ignore[attr-defined]

    copy = sent(error)

    assert type(copy) is BankError
    assert vars(copy) == {"code": 503}


class Answered(BankError):
    """Its text is made of something that stays behind."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.args = (threading.Lock(),)
        self.parts = [threading.Lock(), text]

    def __str__(self) -> str:
        return f"it answered {self.parts[1]}"


def test_the_text_of_an_error_stays_although_what_it_is_made_of_does_not():
    copy = sent(Answered(503, "no"))

    assert isinstance(copy, Answered)
    assert (type(copy).__name__, str(copy)) == ("Answered", "it answered no")
    assert (copy.code, copy.args) == (503, ())


def test_an_error_of_a_class_that_nobody_finds_is_like_those_above_it():
    class Lost(BankError): ...

    class Local(Lost, UnrecoverableError): ...

    copy = sent(Local(402, "declined"))

    assert isinstance(copy, BankError)
    assert isinstance(copy, UnrecoverableError)
    assert (type(copy).__name__, str(copy), copy.code) == ("Local", "402: declined", 402)


class Particular(BankError):
    def __new__(cls, code: int, text: str, *, known: bool = False) -> Self:
        if not known:
            raise TypeError("use Particular.known()")
        return super().__new__(cls)

    @classmethod
    def known(cls) -> Particular:
        error = cls.__new__(cls, 503, "no", known=True)
        error.__init__(503, "no")  # type: ignore[misc]
        return error


def test_an_error_that_cannot_be_made_is_like_those_above_it():
    copy = sent(Particular.known())

    assert isinstance(copy, BankError)
    assert (type(copy).__name__, str(copy), copy.code) == ("Particular", "503: no", 503)


@pytest.mark.parametrize("more", [{"parts": None}, {}], ids=["this version", "the one before"])
def test_an_error_that_cannot_be_read_at_all_keeps_its_name_and_text(more):
    message = {"error": b"?", "type": "Strange", "message": b"no", "trace": b"where"}

    copy = revive({**message, **more})

    assert (type(copy).__name__, str(copy)) == ("Strange", "no")


class Ending(KeyboardInterrupt):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


def test_an_error_that_would_end_the_worker_does_not_when_it_is_put_together():
    copy = sent(Ending(1, "enough"))

    assert isinstance(copy, Exception)
    assert (type(copy).__name__, str(copy)) == ("Ending", "enough")
