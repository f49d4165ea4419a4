"""A shop on Flask: views block, so they use the blocking side of a task.

    flask --app flask_shop:web run            the web server
    toril worker flask_shop:app               the tasks, in a separate process

Needs ``pip install 'toril[cli,embedded]' flask``.
"""

from __future__ import annotations

import os

from flask import Flask, abort

from toril import App
from toril.sync import Queue

app = App(
    connection=os.environ.get("TORIL_URL", "embedded:"),
    prefix=os.environ.get("EXAMPLE_PREFIX", "bull"),
    queue="shop",
    attempts=3,
)


@app.task
def charge(order: int) -> str:
    return f"order {order} is paid"


web = Flask(__name__)


@web.post("/orders/<int:order>")
def checkout(order: int) -> tuple[dict[str, str], int]:
    # The order's number as the job's id: a request that is sent twice charges once.
    handle = charge.using(job_id=f"charge-{order}").sync.enqueue(order)
    return {"job": handle.id}, 202


@web.get("/jobs/<job_id>")
def look(job_id: str) -> dict[str, object]:
    with Queue("shop", connection=app.connection, prefix=app.prefix) as queue:
        job = queue.get_job(job_id)
        if job is None:
            abort(404)
        return {"state": queue.get_state(job_id), "result": job.return_value}
