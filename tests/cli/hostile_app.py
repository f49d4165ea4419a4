"""An app whose schedules are looked at beside hostile ones."""

from __future__ import annotations

import os

from toril import App, every

app = App(prefix=os.environ.get("TORIL_PREFIX", "bull"), queue="hostile")


@app.task(schedule=every(days=1))
def daily() -> None: ...
