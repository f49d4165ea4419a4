"""The numbers Toril sets out to reach, and whether a run reached them. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from measuring import SWEEPS, TORIL, Results, Subject

NODE = "bullmq6"
GROUPMQ = "groupmq"
PASS, MISS, OPEN = "pass", "miss", "not measured"
NOTHING = "-"


@dataclass(frozen=True)
class Bar:
    """One promise: what is compared, the least that is accepted, what was measured."""

    what: str
    target: str
    seen: str
    verdict: str


def judge(results: Results, subjects: Iterable[Subject]) -> list[Bar]:
    """Every bar, in the order in which users care."""
    peers = [subject for subject in subjects if not subject.is_toril]
    toril = _Medians(results, TORIL)
    node = _Medians(results, NODE)
    groupmq = _Medians(results, GROUPMQ)
    best_python = _best(results, [peer.name for peer in peers if not peer.is_node])
    drained = toril.rate("drain")
    return [
        _times(
            "drain, one worker, concurrency 100, against BullMQ 6", drained, node.rate("drain"), 2.8
        ),
        *(
            _times(
                f"drain, concurrency {concurrency}, against BullMQ 6",
                toril.rate(f"drain_{concurrency}"),
                node.rate(f"drain_{concurrency}"),
                least,
            )
            for concurrency, least in ((1, 1.3), (10, 2.2))
        ),
        _at_most(
            "server time of a call that settles one job and takes one, of BullMQ 6's",
            _ratio(results, "drain_1", "server_us"),
            0.9,
            "x",
        ),
        _share(
            "drain of handlers that wait 5 ms, of a bare loop of the same waits",
            toril.rate("drain_5ms"),
            results.median(TORIL, "drain_5ms", "bare_rate"),
            84,
        ),
        _times(
            "the same drain against BullMQ 6's", toril.rate("drain_5ms"), node.rate("drain_5ms"), 1
        ),
        _times("drain, concurrency 100, against the best Python peer", drained, best_python, 15),
        _share("drain as a share of the floor", drained, toril.rate("floor"), 60),
        _times("`add`, one by one, against BullMQ 6", toril.rate("add"), node.rate("add"), 1.3),
        _times(
            "`add` from 100 tasks against BullMQ 6's addBulk",
            toril.rate("add_concurrent"),
            node.rate("add_bulk"),
            2,
        ),
        _times(
            "`add_bulk` against BullMQ 6's addBulk",
            toril.rate("add_bulk"),
            node.rate("add_bulk"),
            3,
        ),
        _pick_up("idle pick-up, p50", results, peers, "p50"),
        _pick_up("idle pick-up, p99", results, peers, "p99"),
        *(
            _at_most(
                f"idle pick-up, {figure}, in ms",
                results.median(TORIL, "latency", figure),
                most,
                " ms",
            )
            for figure, most in (("p50", 0.45), ("p99", 1.2))
        ),
        *(
            _times(
                f"lanes, drain of {lanes} lanes, against GroupMQ",
                toril.rate(measure),
                groupmq.rate(measure),
                least,
            )
            for measure, lanes, least in (("lanes", "100", 1.3), ("many_lanes", "10,000", 1.2))
        ),
        _share(
            "groups of 3 with compensation maps, of the plain drain",
            toril.rate("groups"),
            drained,
            60,
        ),
        _share("dead-lettering, of the plain drain", toril.rate("dead_letters"), drained, 70),
        _at_most(
            "`enqueue` of a task: client's CPU above `add` with the same payload",
            results.median(TORIL, "task_enqueue", "extra_percent"),
            15,
            " %",
        ),
        _share(
            "drain of a no-op task, of a plain handler",
            results.median(TORIL, "task_drain", "share_percent"),
            100,
            90,
        ),
        *_growths(results),
        *_sweeps(results),
        _at_most(
            "idle worker: calls per 5 s and connection",
            results.median(TORIL, "idle", "calls"),
            1,
            "",
        ),
        _at_most("idle worker: CPU", results.median(TORIL, "idle", "cpu_percent"), 0.5, " %"),
        _at_most(
            "server memory per waiting job, 50-byte payload",
            results.median(TORIL, "memory", "bytes"),
            350,
            " bytes",
        ),
    ]


@dataclass(frozen=True)
class _Medians:
    results: Results
    subject: str

    def rate(self, measure: str) -> float | None:
        return self.results.median(self.subject, measure)


def _best(results: Results, names: Iterable[str]) -> float | None:
    rates = [rate for name in names if (rate := results.median(name, "drain"))]
    return max(rates, default=None)


def _ratio(results: Results, measure: str, figure: str) -> float | None:
    """Ours as a multiple of BullMQ 6's."""
    ours, theirs = (results.median(name, measure, figure) for name in (TORIL, NODE))
    return None if not ours or not theirs else ours / theirs


def _times(what: str, ours: float | None, theirs: float | None, least: float) -> Bar:
    target = f"at least {least:g}x"
    if not ours or not theirs:
        return Bar(what, target, NOTHING, OPEN)
    return Bar(what, target, f"{ours / theirs:.2f}x", PASS if ours / theirs >= least else MISS)


def _share(what: str, part: float | None, whole: float | None, least: float) -> Bar:
    target = f"at least {least:g} %"
    if not part or not whole:
        return Bar(what, target, NOTHING, OPEN)
    share = 100 * part / whole
    return Bar(what, target, f"{share:.0f} %", PASS if share >= least else MISS)


def _at_most(what: str, seen: float | None, most: float, unit: str) -> Bar:
    target = f"at most {most:g}{unit}"
    if seen is None:
        return Bar(what, target, NOTHING, OPEN)
    return Bar(what, target, f"{seen:.3g}{unit}", PASS if seen <= most else MISS)


def _pick_up(what: str, results: Results, peers: Iterable[Subject], figure: str) -> Bar:
    ours = results.median(TORIL, "latency", figure)
    theirs = {
        peer.label: seen for peer in peers if (seen := results.median(peer.name, "latency", figure))
    }
    if ours is None or not theirs:
        return Bar(what, "the best peer's", NOTHING, OPEN)
    best = min(theirs, key=theirs.__getitem__)
    limit = theirs[best]
    if figure == "p50":
        target, reached = f"below {best}'s {limit:.2f} ms", ours < limit
    else:
        target, reached = f"at most {best}'s {limit:.2f} ms", ours <= limit
    return Bar(what, target, f"{ours:.2f} ms", PASS if reached else MISS)


def _growths(results: Results) -> list[Bar]:
    sizes = {"growth": "waiting", "growth_lanes": "lanes", "growth_dead_letters": "dead letters"}
    figures = {"add_ratio": "`add`", "cycle_ratio": "take and finish"}
    return [
        _at_most(
            f"growth of {what}, p50, 1,000 to {results.sizes.of(measure):,} {things}",
            results.median(TORIL, measure, figure),
            1.10,
            "x",
        )
        for measure, things in sizes.items()
        for figure, what in figures.items()
    ]


def _sweeps(results: Results) -> list[Bar]:
    figures = [seen for name in SWEEPS for seen in results.figures.get((TORIL, name), [])]
    complete = len(figures) == len(SWEEPS)

    def worst(figure: str) -> float | None:
        return max(seen[figure] for seen in figures) if complete else None

    return [
        _at_most("bulk operations: time per job, a tenth to all", worst("growth"), 1.25, "x"),
        _at_most("bulk operations: longest script", worst("longest_ms"), 10, " ms"),
        _at_most("bulk operations: other clients' p99", worst("p99"), 20, " ms"),
    ]
