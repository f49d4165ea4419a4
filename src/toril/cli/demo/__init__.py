"""``toril demo``: a short show of the whole, in acts.

Everything is real: an embedded Valkey, queues, and workers in this process.
"""
