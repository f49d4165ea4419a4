"""A Toril worker in a process of its own, so that a test can kill it.

``python -m tests.interop.toril_worker '{"url": …, "prefix": …, "queue": …, "behaviours": …}'``
prints ``ready`` when it runs and ``holding <id>`` when a handler hangs.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.interop.scripted import ScriptedHandler
from tests.interop.toril_side import make_worker


def say(*words: str) -> None:
    print(*words, flush=True)


async def main(config: dict) -> None:
    handler = ScriptedHandler(config["behaviours"], on_hold=lambda job_id: say("holding", job_id))
    worker = make_worker(
        config["queue"], handler, config["url"], config["prefix"], **config["options"]
    )
    say("ready")
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
