"""Very many dead letters, written by a script of this program in the same form as by Toril.

Every other one is named ``half``, and one in a hundred has the fingerprint ``RARE``, spread evenly,
which is the worst case: a filter has to take letters out all over the list.
"""

from __future__ import annotations

import json

import redis
from clock import chunks

SOURCE = "bench"
RARE = "TimeoutError@bank.py:call"

FILL = """#!lua
local base, member, note, rare = KEYS[1], ARGV[3], ARGV[4], ARGV[5]
local ids = {}
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  redis.call("HSET", base .. ":" .. number, "name", number % 2 == 0 and "half" or "other",
    "data", '{"n":' .. number .. member .. "}", "opts", '{"attempts":0}',
    "timestamp", 1700000000000 + number, "delay", "0", "priority", "0",
    "x.letter", number % 100 == 50 and rare or note)
  ids[#ids + 1] = number
end
redis.call("LPUSH", base .. ":wait", unpack(ids))
redis.call("INCRBY", base .. ":id", #ids)
"""

METADATA = {
    "originalJobId": "j1",
    "originalTimestamp": 1_700_000_000_000,
    "deadLetteredAt": 1_700_000_000_000,
    "sourceQueue": SOURCE,
    "failedReason": "Connection refused",
    "stacktrace": ["Traceback (most recent call last):\n" + '  File "bank.py", line 1\n' * 4],
    "attemptsMade": 3,
    "originalOpts": {"attempts": 3},
}


def forge(url: str, count: int, queue: str = "bench-dlq") -> None:
    """Put ``count`` dead letters into ``queue``."""
    metadata = _compact(METADATA)
    note = {
        "size": len(metadata),
        "source": SOURCE,
        "why": "connectionerror: connection refused",
        "fp": "ConnectionError@bank.py:call",
        "opts": _compact({"attempts": 3}),
    }
    texts = [f',"_dlqMeta":{metadata}', _compact(note), _compact({**note, "fp": RARE})]
    with redis.Redis.from_url(url, socket_timeout=120) as client:
        write = client.register_script(FILL)
        for part in chunks(count):
            write([f"bull:{queue}"], [part[0] + 1, part[-1] + 1, *texts])


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
