"""``manage.py toril_worker``: runs the tasks of a backend until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import toril
from toril.contrib.django.backend import TorilBackend
from toril.contrib.django.names import task_backends

CONCURRENCY = 10


class Command(BaseCommand):
    """Runs tasks."""

    help = "Run the tasks of a backend of TASKS until SIGTERM or Ctrl-C"

    def add_arguments(self, parser: CommandParser) -> None:
        """The options of the command."""
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument(
            "--queue", action="append", dest="queues", help="only this queue (may be repeated)"
        )
        parser.add_argument(
            "--concurrency", type=int, help=f"tasks at a time in each queue ({CONCURRENCY})"
        )
        parser.add_argument(
            "--timeout", type=int, default=8000, help="ms that running tasks get at the end (8000)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        backend = task_backends[options["backend"]]
        if not isinstance(backend, TorilBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a TorilBackend")
        queues = options["queues"] or backend.known_queues
        for name in queues:
            if name not in backend.queues:
                raise CommandError(f"queue {name!r} is not in the QUEUES of the backend")
        size = options["concurrency"]
        given = {"concurrency": backend.worker_options.get("concurrency", CONCURRENCY)}
        if size is not None:
            given["concurrency"] = size
        workers = [backend.make_worker(name, **given) for name in queues]
        if options["verbosity"]:
            self.stdout.write(f"running the tasks of {', '.join(queues)}; Ctrl-C stops")
        toril.run(*workers, timeout=options["timeout"])
