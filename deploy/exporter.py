"""Serve what the queues hold to Prometheus, from one process for all workers.

Settings: ``TORIL_URL``, ``TORIL_PREFIX``, ``TORIL_QUEUES`` and ``TORIL_DEAD_LETTER_QUEUES`` (names
with commas between them), ``TORIL_EXPORTER_PORT``.
"""

from __future__ import annotations

import os
import signal
import threading

from prometheus_client import start_http_server

from toril.contrib.prometheus import QueueCollector


def names(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def main() -> None:
    collector = QueueCollector(
        names("TORIL_QUEUES"),
        dead_letter_queues=names("TORIL_DEAD_LETTER_QUEUES"),
        prefix=os.environ.get("TORIL_PREFIX", "bull"),
    )
    start_http_server(int(os.environ.get("TORIL_EXPORTER_PORT", "9101")))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    collector.close()


if __name__ == "__main__":
    main()
