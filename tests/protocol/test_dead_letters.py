"""What is written beside a dead letter, and how walks through many of them go: without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from toril.errors import (
    DeadLetterNotFoundError,
    FailedChildrenError,
    HandlerTimeoutError,
    InvalidGroupStateError,
    InvalidOptionError,
    JobCancelledError,
    JobLockedError,
    RefusedError,
    TooManyReplaysError,
    UnknownOptionError,
    UnrecoverableError,
)
from toril.options import DeadLetterOptions
from toril.protocol import burying, dead_letters, replaying
from toril.protocol.burying import (
    BurialPolicy,
    Letter,
    cause_of,
    fingerprint,
    letter_of,
)
from toril.protocol.command import Command
from toril.protocol.dead_letter import metadata_at_end, metadata_in, without_metadata
from toril.protocol.dead_letters import Filter, Slice, Walk, after, again
from toril.protocol.job import Job
from toril.protocol.keys import FOREIGN, Keys, hash_tag
from toril.protocol.refusals import Refusal
from toril.protocol.settling import Policy, Raised, Returned, Settled, Take, decide, settle

KEYS = Keys("bull", "orders-dlq")


def job(data: bytes = b'{"n":1}', **fields: object) -> Job:
    opts = json.dumps(fields.pop("opts", {"attempts": 1})).encode()
    stored = {b"name": b"charge", b"data": data, b"opts": opts, b"timestamp": b"5"}
    stored |= {name.encode(): str(value).encode() for name, value in fields.items()}
    return Job("bull", "orders", "j1", stored)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def buried(*jobs: Job, error: BaseException | None = None, **policy: bool) -> Command:
    """The call that sends jobs to the dead letters after ``error``."""
    burial = Policy(dead_letters=BurialPolicy(**policy))
    items = []
    for each in jobs:
        outcome = decide(each, Raised(error or ValueError("no")), burial, dice=0.0)
        items.append(Settled(each.id, "token", outcome, each))
    take = Take(count=0, token="token", lock_ms=1000)
    source = Keys("bull", "orders")
    return settle(source, items, take, flight="f", request=1, dead_letters=KEYS)


def test_only_a_worker_with_a_target_makes_letters():
    error = raised(ValueError("no"))

    without = decide(job(), Raised(error), Policy(), dice=0.0)
    with_target = decide(job(), Raised(error), Policy(dead_letters=BurialPolicy()), dice=0.0)

    assert without.letter is None
    assert without.payloads[0] == "ValueError: no"
    assert with_target.kind == "failed"
    assert with_target.letter is not None
    assert with_target.payloads == ()


def test_what_letters_have_in_common_is_sent_once():
    """However many fail: the script has what is a job's own at hand."""
    error = raised(ValueError("no"))
    command = buried(job(), job(timestamp=6), job(opts={"attempts": 0}), error=error)

    ways = [(each["trouble"], each["at"]) for each in command.args["outcomes"]]
    assert ways == [(1, "5"), (1, "6"), (2, "5")]
    assert command.args["troubles"] == [
        {"name": "charge", "made": 1, "attempts": 1},
        {"name": "charge", "made": 1, "attempts": 0},
    ]
    assert len(command.payloads) == 2 * 3
    assert command.payloads[0] == command.payloads[3] == "ValueError: no"


@pytest.mark.parametrize(
    "other",
    [
        {"atm": 1},
        {"name": "refund"},
        {"priority": 3},
        {"opts": {"attempts": 1, "kl": 5}},
        {"stacktrace": '["earlier"]'},
    ],
)
def test_jobs_that_differ_are_not_in_the_same_trouble(other):
    error = raised(ValueError("no"))
    command = buried(job(), job(**other), error=error)

    assert [each["trouble"] for each in command.args["outcomes"]] == [1, 2]


def test_errors_that_differ_are_not_the_same_trouble():
    errors = [raised(ValueError("no")), raised(ValueError("never")), raised(KeyError("no"))]
    letters = [letter_after(error) for error in errors]

    assert len({letter.trouble.metadata for letter in letters}) == len(errors)
    assert len({letter.trouble for letter in letters}) == len(errors)
    assert letter_after(raised(ValueError("no"))).trouble is letters[0].trouble


def letter_after(error: BaseException) -> Letter:
    outcome = decide(job(), Raised(error), Policy(dead_letters=BurialPolicy()), dice=0.0)
    assert outcome.letter is not None
    return outcome.letter


def test_a_job_with_attempts_left_or_a_result_makes_no_letter():
    policy = Policy(dead_letters=BurialPolicy())
    patient = job(opts={"attempts": 3})

    assert decide(patient, Raised(ValueError("no")), policy, dice=0.0).kind == "retry"
    assert decide(job(), Returned(1), policy, dice=0.0).kind == "completed"


@pytest.mark.parametrize(
    ("error", "fields", "cause"),
    [
        (ValueError("x"), {}, "attempts"),
        (UnrecoverableError("x"), {}, "unrecoverable"),
        (JobCancelledError("x"), {}, "cancelled"),
        (FailedChildrenError("x"), {}, "child"),
        (UnrecoverableError("child a:b:c failed"), {"defa": "child a:b:c failed"}, "child"),
        (
            UnrecoverableError(burying.STALLED_TOO_OFTEN),
            {"defa": burying.STALLED_TOO_OFTEN},
            "stalled",
        ),
        (UnrecoverableError(burying.STARTED_TOO_OFTEN), {}, "stalled"),
    ],
)
def test_the_cause_is_one_word(error, fields, cause):
    """DLQ-32 (C-13)."""
    assert cause_of(job(**fields), error, str(error)) == cause


def test_stalled_jobs_make_no_letter_when_they_are_left_out():
    error = UnrecoverableError(burying.STALLED_TOO_OFTEN)
    stalled = job(defa=burying.STALLED_TOO_OFTEN)

    only_failed = BurialPolicy(include_stalled=False)

    assert letter_of(stalled, error, str(error), "r", "[]", only_failed) is None
    assert letter_of(job(), ValueError("x"), "x", "r", "[]", only_failed) is not None


def test_a_fingerprint_is_the_type_and_the_innermost_frame():
    def fail() -> None:
        raise KeyError("amount")

    def call() -> None:
        fail()

    with pytest.raises(KeyError) as first:
        call()
    with pytest.raises(KeyError) as second:
        fail()

    found = fingerprint(first.value, "attempts")
    assert found == fingerprint(second.value, "attempts")
    assert found.startswith("KeyError@test_dead_letters.py:")
    assert found.endswith(".fail")
    assert fingerprint(ValueError("never raised"), "stalled") == "ValueError@stalled"


def test_a_fingerprint_can_stand_between_quotes():
    strange = type('Wei"rd\\ Ünï\n', (Exception,), {})

    found = fingerprint(strange("x"), "attempts")

    assert json.loads(f'"{found}"') == found == "Wei_rd___n__@attempts"
    assert len(fingerprint(type("X" * 500, (Exception,), {})(), "attempts")) == 160


def read(letter: Letter | None) -> tuple[dict, dict]:
    """The metadata and the note, as far as they come from the worker."""
    assert letter is not None
    texts = (letter.trouble.metadata, letter.trouble.note)
    assert all(text.startswith(",") for text in texts)
    metadata, note = (json.loads(f"{{{text[1:]}}}") for text in texts)
    return metadata, note


def test_a_letter_says_what_happened_to_its_job():
    """DLQ-14: what is not the job's own of the eight fields of the source, and ours."""
    metadata, _ = read(
        letter_of(
            job(opts={"attempts": 1}, atm=2),
            raised(ValueError("x")),
            'ETIMEDOUT "é"\n?',
            'ValueError: ETIMEDOUT "é"\n?',
            '["first","second"]',
            BurialPolicy(),
        )
    )

    assert metadata == {
        "sourceQueue": "orders",
        "failedReason": 'ETIMEDOUT "é"\n?',
        "stacktrace": ["first", "second"],
        "attemptsMade": 3,
        "originalOpts": {"attempts": 1},
        "errorType": "ValueError",
        "fingerprint": "ValueError@test_dead_letters.py:raised",
        "cause": "attempts",
    }


def test_a_note_has_what_scripts_cannot_read_in_the_data():
    opts = {"attempts": 1, "priority": 3, "delay": 7, "lane": "a", "orderMs": 9}
    error = raised(ValueError("ETIMEDOUT"))

    letter = letter_of(
        job(opts=opts), error, "ETIMEDOUT", "ValueError: ETIMEDOUT", "[]", BurialPolicy()
    )
    _, note = read(letter)

    assert json.loads(note.pop("opts")) == {
        "attempts": 1,
        "priority": 3,
        "lane": "a",
        "orderMs": 9,
    }
    assert note == {
        "source": "orders",
        "why": "valueerror: etimedout",
        "fp": "ValueError@test_dead_letters.py:raised",
        "priority": 3,
        "delay": 7,
        "lane": "a",
        "order_ms": 9,
    }


def test_a_priority_that_was_changed_later_is_noted():
    _, note = read(letter_of(job(priority=4), ValueError("x"), "x", "r", "[]", BurialPolicy()))

    assert note["priority"] == 4


def test_the_usual_options_are_not_noted():
    usual = job(opts={"attempts": 0})

    _, note = read(letter_of(usual, ValueError("x"), "x", "r", "[]", BurialPolicy()))

    assert note == {"source": "orders", "why": "r", "fp": "ValueError@attempts"}


@pytest.mark.parametrize("options", [b"[1", b'{"attempts":', b""])
def test_options_that_are_no_object_do_not_spoil_the_metadata(options):
    broken = Job("bull", "orders", "j1", {b"name": b"x", b"data": b"{}", b"opts": options})

    letter = letter_of(broken, ValueError("x"), "x", "r", "[]", BurialPolicy())
    metadata, note = read(letter)

    assert metadata["originalOpts"] == {}
    assert json.loads(note["opts"]) == {}
    assert letter.own["at"] == "0"


def test_an_error_without_words_is_known_by_its_type():
    letter = letter_of(job(), raised(ValueError()), "", "ValueError", "[]", BurialPolicy())

    assert read(letter)[0]["failedReason"] == "ValueError"


def test_data_that_are_no_json_are_marked():
    letter = letter_of(job(b'{"a":'), ValueError("x"), "x", "r", "[]", BurialPolicy())

    assert letter is not None
    assert letter.own == {"at": "5", "is_special": True, "is_raw": True}


@pytest.mark.parametrize("field", ["deid", "x.group", "x.lane", "x.replays"])
def test_jobs_that_have_more_than_most_are_marked(field):
    letter = letter_of(job(**{field: "1"}), ValueError("x"), "x", "r", "[]", BurialPolicy())

    assert letter is not None
    assert letter.own["is_special"] is True


@pytest.mark.parametrize(
    ("job_id", "is_special"), [("a:b-1 é", False), ('a"', True), ("a\\", True)]
)
def test_ids_that_json_must_escape_are_marked(job_id, is_special):
    odd = Job("bull", "orders", job_id, {b"name": b"x", b"data": b"{}"})

    letter = letter_of(odd, ValueError("x"), "x", "r", "[]", BurialPolicy())

    assert letter is not None
    assert letter.own.get("is_special", False) is is_special


def test_a_source_that_is_kept_gets_its_traces_too():
    command = buried(job(), error=raised(ValueError("no")), keep_source=True)

    (trouble,) = command.args["troubles"]
    assert json.loads(trouble["stacktrace"])[0].endswith("ValueError: no\n")
    assert command.args["outcomes"][0]["is_special"] is True


def next_life(first: Job) -> tuple[dict, str | None]:
    """The options of a replayed job, and the idempotency key that it had chosen."""
    _, note = read(letter_of(first, ValueError("x"), "x", "r", "[]", BurialPolicy()))
    return json.loads(note["opts"]), note.get("key")


def test_replay_options_are_those_of_the_job_without_its_ties():
    """C-16."""
    opts = dict.fromkeys(burying.NOT_REPLAYED, 1) | {"attempts": 3, "lane": "a", "kl": 5}

    assert next_life(job(opts=opts)) == ({"attempts": 3, "lane": "a", "kl": 5}, None)
    chosen = job(opts={"attempts": 1, "idempotencyKey": "mine"})
    assert next_life(chosen) == ({"attempts": 1}, "mine")


@pytest.mark.parametrize(
    "data",
    [None, 1, [], "x", {}, {"_dlqMeta": 1}, {"_dlqMeta": {}}, {"_dlqMeta": {"sourceQueue": 1}}],
)
def test_what_has_no_usable_metadata_is_no_dead_letter(data):
    assert metadata_in(data) is None


def test_metadata_are_typed_and_unknown_ones_ignored():
    meta = metadata_in(
        {
            "_dlqMeta": {
                "sourceQueue": "orders",
                "attemptsMade": 2,
                "somethingNew": True,
                "history": [
                    {
                        "deadLetteredAt": 1,
                        "replayedAt": 2,
                        "deadLetterJobId": "1",
                        "originalJobId": "j",
                        "repaired": True,
                    }
                ],
            }
        }
    )

    assert meta is not None
    assert (meta.source_queue, meta.attempts_made) == ("orders", 2)
    assert meta.history[0].is_repaired
    assert meta.history[0].by is None


@pytest.mark.parametrize(
    ("data", "original"),
    [
        ({"a": 1, "_dlqMeta": {}}, {"a": 1}),
        ({"_dlqMeta": {}}, {}),
        ({"_dlqData": [1], "_dlqMeta": {}}, [1]),
        ({"_dlqData": 1, "b": 2, "_dlqMeta": {}}, {"_dlqData": 1, "b": 2}),
        ([1], [1]),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_the_data_without_the_metadata(data, original):
    assert without_metadata(data) == original


def test_a_filter_says_what_the_script_needs():
    """DLQ-24."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    wanted = Filter.of(name="a", failed_reason="STRASSE ß", since=moment, until=5)

    assert wanted.args() == {
        "name": "a",
        "failed_reason": "strasse ss",
        "since": 1893456000000,
        "before": 5,
    }
    assert Filter.of().args() == {}


def test_a_filter_refuses_what_it_does_not_know():
    with pytest.raises(UnknownOptionError, match="did you mean 'failed_reason'"):
        Filter.of(failed_reasons="x")  # type: ignore[call-arg]
    with pytest.raises(InvalidOptionError, match="fingerprint"):
        Filter.of(fingerprint=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["name", "failed_reason", "source_queue"])
def test_a_filter_refuses_an_empty_text(option):
    """Each reason contains it, so it meant all letters: a variable that is not set deleted them."""
    with pytest.raises(InvalidOptionError, match=f"{option}='' is empty"):
        Filter.of(**{option: ""})


def test_a_run_of_a_version_that_took_empty_texts_is_understood():
    parse = dead_letters.interrupted(KEYS, "purge", "jx").parse
    text = b'{"is_done":false,"offset":3,"anchor":"7","count":2,"examined":5,"not_after":99}'

    found = parse([b"wait", b"12", text, b'{"failed_reason":"","source_queue":"","since":7}'])

    assert found is not None
    assert found.wanted.args() == {"failed_reason": "", "source_queue": "", "since": 7}
    assert found.wanted.at(1000) == found.wanted


def test_an_empty_fingerprint_is_that_of_letters_without_one():
    told = {"sourceQueue": "orders", "failedReason": "ETIMEDOUT"}
    without, with_one = (
        metadata_in({"_dlqMeta": meta}) for meta in (told, {**told, "fingerprint": "x"})
    )

    assert without is not None
    assert with_one is not None
    assert Filter.of(fingerprint="").admits(without)
    assert not Filter.of(fingerprint="").admits(with_one)
    assert Filter.of(fingerprint="").args() == {"fingerprint": ""}


def test_a_filter_looks_at_letters_of_others():
    meta = metadata_in({"_dlqMeta": {"sourceQueue": "orders", "failedReason": "ETIMEDOUT"}})

    assert meta is not None
    assert Filter.of(failed_reason="timed").admits(meta)
    assert Filter.of(source_queue="orders").admits(meta)
    assert not Filter.of(source_queue="refunds").admits(meta)
    assert not Filter.of(fingerprint="x").admits(meta)
    assert not Filter.of(failed_reason="refused").admits(meta)


def test_a_filter_finds_letters_of_others_by_the_type_of_their_error_too():
    told = {"sourceQueue": "orders", "failedReason": "ETIMEDOUT", "errorType": "ConnectionError"}
    meta = metadata_in({"_dlqMeta": told})

    assert meta is not None
    assert Filter.of(failed_reason="connectionerror").admits(meta)
    assert Filter.of(failed_reason="ConnectionError: etimed").admits(meta)
    assert not Filter.of(failed_reason="ValueError").admits(meta)


def test_the_type_of_an_error_is_noted_where_the_reason_does_without():
    error = HandlerTimeoutError("the handler took longer than 5 ms")
    words = str(error)

    _, note = read(letter_of(job(), error, words, words, "[]", BurialPolicy()))

    assert note["why"] == "handlertimeouterror: the handler took longer than 5 ms"


def result(**changes: object) -> Slice:
    values = {"is_done": False, "offset": 3, "anchor": "7", "count": 2, "examined": 5}
    return Slice(**{**values, "not_after": 99, **changes})  # type: ignore[arg-type]


def test_a_walk_goes_on_where_its_last_slice_ended():
    walk = after(Walk(done=10, step=4), result())

    assert walk == Walk(offset=3, anchor="7", not_after=99, done=12, step=5)


def test_a_walk_goes_over_to_the_next_place():
    ended = result(is_done=True, next="paused")

    assert after(Walk(done=1), ended) == Walk(place="paused", not_after=99, done=3, step=1)
    assert not ended.is_last
    assert result(is_done=True).is_last


def test_letters_that_the_client_took_out_are_counted():
    walk = after(Walk(), result(asked=["7"], kept="6"), taken_apart={"7"})

    assert (walk.offset, walk.anchor, walk.done) == (2, "6", 3)


@pytest.mark.parametrize(
    ("taken", "place"),
    [("", "8"), ("8", "7"), ("78", "6"), ("5", "8"), ("578", "6"), ("3578", "6")],
)
def test_a_walk_knows_its_place_by_the_letter_that_was_left_last(taken, place):
    last = result(offset=9, anchor="8", asked=["3", "5", "7", "8"], kept="6", asked_before=2)

    walk = after(Walk(), last, taken_apart=set(taken))

    assert (walk.offset, walk.anchor) == (9 - len(taken), place)


def test_a_slice_can_be_looked_at_again():
    assert again(Walk(offset=1, anchor="2"), result()) == Walk(
        offset=1, anchor="2", not_after=99, done=2, step=1
    )


def test_the_last_run_is_remembered_by_verb_and_filter():
    one = dead_letters.latest_key(KEYS, "replay", Filter.of(name="a"))
    hour, two = timedelta(hours=1), timedelta(hours=2)

    assert one == dead_letters.latest_key(KEYS, "replay", Filter.of(name="a"))
    assert one != dead_letters.latest_key(KEYS, "purge", Filter.of(name="a"))
    assert one != dead_letters.latest_key(KEYS, "replay", Filter.of(name="b"))
    assert one.startswith("bull:orders-dlq:toril:replay-of-")
    keys = [dead_letters.latest_key(KEYS, "replay", Filter.of(since=s)) for s in (hour, hour, two)]
    assert keys[0] == keys[1] != keys[2]


def test_a_run_is_remembered_by_its_name():
    run = dead_letters.Run("replay", "jx", Filter())

    assert run.keys(KEYS)["sweep"] == "bull:orders-dlq:toril:replay-jx"


def test_durations_become_times_when_a_filter_is_used():
    said = Filter.of(since=timedelta(hours=1), until=timedelta(seconds=1), name="a")

    assert said.is_relative
    assert said.at(10_000_000) == Filter.of(since=6_400_000, until=9_999_000, name="a")
    assert not said.at(10_000_000).is_relative
    assert Filter.of_args(said.at(10_000_000).args()) == said.at(10_000_000)
    with pytest.raises(InvalidOptionError, match="negative"):
        Filter.of(since=timedelta(seconds=-1))


def test_a_run_is_resumed_from_what_the_server_remembers():
    parse = dead_letters.interrupted(KEYS, "replay", "jx").parse
    text = b'{"is_done":false,"offset":3,"anchor":"7","count":2,"examined":5,"not_after":99}'

    found = parse([b"wait", b"12", text, b'{"name":"a","before":7}'])

    assert found is not None
    assert found.walk == Walk(offset=3, anchor="7", not_after=99, done=12, step=0)
    assert found.wanted == Filter.of(name="a", until=7)
    assert parse([None, None, None, None]) is None
    over = text.replace(b"false", b"true")
    assert parse([b"wait", b"12", over, b"{}"]) is None
    asked = parse([b"wait", b"12", over[:-1] + b',"next":"delayed","asked":["5"]}', b"{}"])
    assert asked is not None
    assert asked.walk == Walk(not_after=99, done=12)
    next_place = parse([b"wait", b"12", over[:-1] + b',"next":"delayed"}', b"{}"])
    assert next_place is not None
    assert next_place.walk == Walk(place="delayed", not_after=99, done=12, step=0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-1, DeadLetterNotFoundError),
        (-111, JobLockedError),
        (-115, TooManyReplaysError),
        (-113, RefusedError),
    ],
)
def test_each_refusal_has_its_error(code, error):
    """DLQ-22."""
    command = replaying.replay(KEYS, "7", "new", "orders")

    with pytest.raises(error, match="'7'"):
        command.parse(code)
    assert command.parse(b"new") == "new"
    assert command.parse(1) is None


def test_pages_count_from_either_end():
    """DLQ-18."""
    wait, prioritized = "bull:orders-dlq:wait", "bull:orders-dlq:prioritized"

    def words(start: int, end: int, counts: list[int], *, oldest_first: bool = False) -> list:
        plan = dead_letters.page(KEYS, start, end, oldest_first=oldest_first)
        assert [command.words[0] for command in next(plan)] == ["LLEN", "LLEN", "ZCARD", "ZCARD"]
        return [command.words for command in plan.send(counts)]

    alone = [20, 0, 0, 0]
    assert words(10, 14, alone) == [("LRANGE", wait, 10, 14)]
    assert words(10, 14, alone, oldest_first=True) == [("LRANGE", wait, 5, 9)]
    assert words(10, -1, alone, oldest_first=True) == [("LRANGE", wait, 0, 9)]
    mixed = [3, 0, 2, 0]
    both = [("LRANGE", wait, 1, 2), ("ZREVRANGE", prioritized, 0, 1)]
    assert words(1, 9, mixed) == both
    assert words(0, 3, mixed, oldest_first=True) == both
    with pytest.raises(InvalidOptionError):
        next(dead_letters.page(KEYS, -1, 5, oldest_first=False))


def test_a_page_is_read_from_all_places():
    def page(*, oldest_first: bool) -> list[str]:
        plan = dead_letters.page(KEYS, 0, -1, oldest_first=oldest_first)
        next(plan)
        plan.send([2, 0, 1, 0])
        with pytest.raises(StopIteration) as end:
            plan.send([["2", "1"], ["p"]])
        return end.value.value

    assert page(oldest_first=False) == ["2", "1", "p"]
    assert page(oldest_first=True) == ["p", "1", "2"]
    empty = dead_letters.page(KEYS, 0, -1, oldest_first=True)
    next(empty)
    with pytest.raises(StopIteration) as end:
        empty.send([0, 0, 0, 0])
    assert end.value.value == []


def test_the_keys_of_the_target_are_declared_only_when_a_job_goes_there():
    """Plain calls do not pay for the feature."""
    source = Keys("bull", "orders")
    take = Take(count=1, token="t", lock_ms=1000)
    dead = decide(job(), Raised(ValueError("x")), Policy(dead_letters=BurialPolicy()), dice=0.0)

    plain = settle(source, [], take, flight="f", request=1, dead_letters=KEYS)
    moving = settle(
        source, [Settled("j1", "t", dead, job())], take, flight="f", request=1, dead_letters=KEYS
    )

    assert not any(key.startswith(KEYS.base) for key in plain.keys)
    assert "dead_letters" not in plain.args
    names = [name for name in moving.script.key_names if name.startswith(FOREIGN)]
    assert moving.keys[-len(names) :] == (
        KEYS.base,
        *(f"{KEYS.base}:{name.removeprefix(FOREIGN)}" for name in names[1:]),
    )
    assert len(moving.keys) == len(plain.keys) + len(names)


def test_hash_tags():
    assert hash_tag("{bull}:orders") == "bull"
    assert hash_tag("bull:{a}{b}") == "a"
    assert hash_tag("bull:{}:x") is None
    assert hash_tag("bull:orders") is None
    assert hash_tag("bull:}{") is None


def test_the_options_name_a_queue():
    """DLQ-02."""
    assert DeadLetterOptions.of("dlq").queue_name == "dlq"
    given = DeadLetterOptions("dlq", include_stalled=False)
    assert DeadLetterOptions.of(given) is given
    with pytest.raises(InvalidOptionError, match="on_dead_letter"):
        DeadLetterOptions("dlq", on_dead_letter="hook")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("member", "owner"),
    [
        (None, None),
        (b"bull:{a}orders:groups:g1:m0", None),
        (b"bull:{b}orders:groups:g1:m0", "{b}orders"),
        (b"bull:{b}orders:compensation:groups:g1:c0", "{b}orders:compensation"),
        (b"other:{b}orders:groups:g1:m0", None),
        (b"nonsense", None),
    ],
)
def test_a_letter_says_which_group_elsewhere_it_belongs_to(member, owner):
    found = dead_letters.group_elsewhere(Keys("bull", "{a}letters"), "7").parse(member)

    assert (found and found[0].name) == owner
    assert found is None or found[1] == member.decode()


def test_a_group_elsewhere_says_which_id_its_job_gets_or_refuses_it():
    target = Keys("bull", "{b}orders")
    command = replaying.judge(KEYS, "m", "7", "letters", "new", target, force=True)

    assert command.args["target"] == "bull:{b}orders"
    assert command.args["force"] is True
    assert command.parse(b"old") == "old"
    with pytest.raises(InvalidGroupStateError):
        command.parse(Refusal.WRONG_GROUP_STATE)


META = {"sourceQueue": "orders", "failedReason": "No"}


@pytest.mark.parametrize(
    "data",
    [
        {"n": 1, "_dlqMeta": META},
        {"_dlqMeta": META, "n": 1},
        {"_dlqData": [1], "_dlqMeta": META},
        {"n": {"_dlqMeta": {"sourceQueue": "inner"}}, "_dlqMeta": META},
        {"_dlqMeta": {"sourceQueue": "earlier"}, "text": '"_dlqMeta"', "x_dlqMeta": 5},
    ],
)
def test_metadata_are_found_in_the_end_of_the_data_as_in_all_of_them(data):
    text = json.dumps(data).encode()

    found = metadata_at_end(text[text.index(b'"_dlqMeta"') :])

    assert found is not None
    assert metadata_in(json.loads(found)) == metadata_in(data)


def test_what_is_nested_or_cut_or_no_metadata_is_not_found_in_the_end():
    nested = json.dumps({"n": {"_dlqMeta": META}}).encode()
    repaired = b'x"},"sourceQueue":"orders","failedReason":"No"}}'

    assert metadata_at_end(nested) is None
    assert metadata_at_end(b'{"_dlqMeta":5}') is None
    assert metadata_at_end(b'"_dlqMeta":{' * 1000) is None
    assert metadata_at_end(b"") is None
    assert metadata_at_end(repaired) is None
    assert metadata_in(json.loads(metadata_at_end(repaired, b'"replays":2,') or b"")) == (
        metadata_in({"_dlqMeta": {**META, "replays": 2}})
    )
