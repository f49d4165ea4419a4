"""Every page, as it is sent: what is on it, and what it costs."""

from __future__ import annotations

from collections.abc import Callable

from tests.dashboard.conftest import Visitor
from tests.dashboard.world import World


async def test_every_page_is_served_whole(visit: Callable[..., Visitor], shop: World):
    visitor = visit()

    for path in shop.paths:
        answer = await visitor.get(path)

        assert answer.status_code == 200, (path, answer.text[-400:])
        assert answer.text.rstrip().endswith("</html>"), path
        assert "<script>" not in answer.text
        assert "style=" not in answer.text, path
        assert " onclick" not in answer.text, path
