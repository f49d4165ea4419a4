"""The small program of docs/coming-from.md, in Celery's words and in ours."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import runpy
from pathlib import Path

from toril import Queue

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def programs() -> tuple[str, str]:
    celery, ours = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if block.startswith("# shop.py")
    ]
    return celery, ours


def lines_of(program: str) -> int:
    return sum(bool(line.strip()) for line in program.splitlines())


def test_the_port_of_the_celery_program_is_no_longer():
    celery, ours = programs()

    assert "from celery import" in celery
    assert lines_of(ours) <= lines_of(celery)


async def test_the_port_of_the_celery_program_runs(url, prefix, tmp_path, capsys):
    _, program = programs()
    home = f'App(connection="{url}", prefix="{prefix}")'
    path = tmp_path / "shop.py"
    path.write_text(program.replace('App(connection="redis://localhost")', home))
    spec = importlib.util.spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    running = asyncio.create_task(shop.app.run())
    try:
        await asyncio.to_thread(runpy.run_path, str(path), run_name="__main__")
    finally:
        await shop.app.close()
        await running

    assert capsys.readouterr().out == "order 1: 9.99 charged\n"
    async with Queue("default", connection=url, prefix=prefix) as queue:
        (report,) = await queue.get_job_schedulers()
        assert report.cron == "0 3 * * *"
        await queue.obliterate(force=True)
