"""Toril beside real BullMQ: both read and write the same queues, and must agree."""
