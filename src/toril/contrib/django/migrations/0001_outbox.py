"""Creates the outbox table, which ``ENQUEUE = "outbox"`` writes to."""

from __future__ import annotations

from typing import Any

from django.db import migrations, router

from toril.contrib.django.outbox import VENDORS
from toril.outbox.schema import DEFAULT_NAME, quoted, table_sql


class CreateOutbox(migrations.operations.base.Operation):
    """Creates the usual outbox table; does nothing on databases that cannot have one."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The table has no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        """Create it, unless another migration of this database already did."""
        connection = schema_editor.connection
        if not self._is_for(app_label, connection):
            return
        if DEFAULT_NAME not in connection.introspection.table_names():
            for statement in table_sql(connection.vendor):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        """Drop it, with the rows that no relay has sent."""
        connection = schema_editor.connection
        if self._is_for(app_label, connection):
            table = quoted(connection.vendor, DEFAULT_NAME)
            schema_editor.execute(f"DROP TABLE {table}", params=None)

    def describe(self) -> str:
        """What ``migrate --plan`` shows."""
        return f"Create the outbox table {DEFAULT_NAME}"

    def _is_for(self, app_label: str, connection: Any) -> bool:
        return connection.vendor in VENDORS and router.allow_migrate(connection.alias, app_label)


class Migration(migrations.Migration):
    """The outbox."""

    initial = True
    operations = [CreateOutbox()]  # noqa: RUF012 (as Django reads it)
