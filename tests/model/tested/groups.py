from __future__ import annotations

FOUND: dict[str, str] = {}

EQUIVALENT: dict[str, str] = {
    'rooms/groups: without redis.call("ZREM", openGroups(owner), id)': "a group that is forgotten has ended, and was taken out of the open ones then",
}
