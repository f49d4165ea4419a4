"""``manage.py toril_relay``: sends what the outbox holds, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import toril
from toril.contrib.django.backend import TorilBackend
from toril.contrib.django.names import task_backends


class Command(BaseCommand):
    """Relays tasks."""

    help = "Send the tasks that the outbox holds to their queues, until SIGTERM or Ctrl-C"

    def add_arguments(self, parser: CommandParser) -> None:
        """The options of the command."""
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument(
            "--timeout", type=int, default=8000, help="ms for the batch under way at the end (8000)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        backend = task_backends[options["backend"]]
        if not isinstance(backend, TorilBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a TorilBackend")
        try:
            relay = backend.make_relay()
        except ImportError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"]:
            self.stdout.write(f"relaying the outbox of {backend.database!r}; Ctrl-C stops")
        toril.run(relay, timeout=options["timeout"])
