# Written by tools/unasync.py from src/toril/client/families.py: change that file instead.
"""The part of a queue that knows the children of its jobs."""

from __future__ import annotations

from typing import Any

from toril.protocol import families
from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.keys import Keys
from toril.sync.connection import Connection


class QueueFamilies:
    """Reading about the children of a job; each is named by its full key, ``prefix:queue:id``."""

    keys: Keys
    _connection: Connection

    def get_children_values(self, job_id: str) -> dict[str, Any]:
        """What the completed children of a job returned."""
        return self._connection.follow(families.children_values(self.keys, job_id))

    def get_failed_children(self, job_id: str) -> dict[str, str]:
        """Why children failed that did not fail their parent."""
        return self._connection.follow(families.failed_children(self.keys, job_id))

    def get_dependencies(self, job_id: str) -> Dependencies:
        """All children of a job, by outcome."""
        return self._connection.follow(families.dependencies(self.keys, job_id))

    def get_dependencies_count(self, job_id: str) -> DependenciesCount:
        """How many children of a job have each outcome."""
        return self._connection.follow(families.dependencies_count(self.keys, job_id))
