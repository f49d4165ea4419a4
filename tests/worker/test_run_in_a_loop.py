from __future__ import annotations

import pytest

import toril


async def test_run_in_a_running_loop_says_what_to_do(url, prefix):
    worker = toril.Worker("q", lambda job: None, connection=url, prefix=prefix)

    with pytest.raises(toril.errors.RunningLoopError, match=r"await worker\.run\(\)"):
        toril.run(worker)
