"""``toril monitor``: queues, full screen and live, at a fixed cost to the server."""
