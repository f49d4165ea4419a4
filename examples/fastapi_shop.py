"""A shop on FastAPI: requests enqueue jobs, and a worker charges.

    uvicorn fastapi_shop:api                  the web server
    toril worker fastapi_shop:app             the tasks, in a separate process

Needs ``pip install 'toril[cli,embedded]' fastapi uvicorn``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from toril import App, Context, Queue
from toril.errors import JobRemovedError

app = App(
    connection=os.environ.get("TORIL_URL", "embedded:"),
    prefix=os.environ.get("EXAMPLE_PREFIX", "bull"),
    queue="shop",
    attempts=3,
)


@app.task
async def charge(ctx: Context, order: int) -> str:
    await ctx.report(50)
    await receipt.enqueue(order)
    return f"order {order} is paid"


@app.task
def receipt(order: int) -> str:
    return f"receipt of order {order}"


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with app:
        yield


def shop_queue() -> Queue:
    return app.queue("shop")


api = FastAPI(lifespan=lifespan)


@api.post("/orders/{order}", status_code=202)
async def checkout(order: int) -> dict[str, str]:
    # The order's number as the job's id: a request that is sent twice charges once.
    handle = await charge.using(job_id=f"charge-{order}").enqueue(order)
    return {"job": handle.id}


@api.get("/jobs/{job_id}")
async def look(job_id: str, queue: Annotated[Queue, Depends(shop_queue)]) -> dict[str, object]:
    state = await queue.get_state(job_id)
    if state is None:
        raise HTTPException(404, "no such job")
    try:
        value = await queue.wait_for(job_id) if state == "completed" else None
    except JobRemovedError:
        raise HTTPException(404, "no such job") from None
    return {"state": state, "result": value}
