"""Names on the wire that several checks use."""

FINISHED = ("completed", "failed")
WAITING = ("wait", "prioritized")
PLACE_EVENTS = {
    b"waiting": ("wait", "prioritized", "paused"),
    b"delayed": ("delayed",),
    b"active": ("active",),
    b"completed": ("completed", None),
    b"failed": ("failed", None),
    b"waiting-children": ("waiting-children",),
    b"removed": (None,),
}
"""Where a job is after the last of these events."""

GROUP_EVENTS = {
    "COMPENSATING": b"group:compensating",
    "COMPLETED": b"group:completed",
    "FAILED": b"group:failed",
    "FAILED_COMPENSATION": b"group:failed",
    "BLOCKED": b"group:blocked",
}


def is_forced_elsewhere(job: dict[str, str]) -> bool:
    """Is this a job whose group is in another slot, and whose retry was forced? It has told its
    group and may run; nothing else is left of it."""
    return " " in job.get("x.toldGroup", "") and "x.turned" not in job
