# Written by tools/unasync.py from src/toril/client/views.py: change that file instead.
"""A queue's methods by topic, under short names: ``queue.lanes.pause("user:42")``.

The methods of the queue itself remain; these are the same ones.
"""

from __future__ import annotations

from toril.sync.dead_letters import QueueDeadLetters
from toril.sync.groups import QueueGroups
from toril.sync.lanes import QueueLanes
from toril.sync.schedulers import QueueSchedulers


class LaneView:
    """The lanes of a queue: look, pause, limit."""

    def __init__(self, queue: QueueLanes) -> None:
        self.list = queue.get_lanes
        self.count = queue.get_lane_count
        self.get = queue.get_lane
        self.jobs = queue.get_lane_jobs
        self.pause = queue.pause_lane
        self.resume = queue.resume_lane
        self.drain = queue.drain_lane
        self.recover = queue.recover_lanes
        self.set_concurrency = queue.set_lane_concurrency
        self.set_rate_limit = queue.set_lane_rate_limit
        self.set_weight = queue.set_lane_weight


class DeadLetterView:
    """The dead letters of a queue: look, group, replay, purge."""

    def __init__(self, queue: QueueDeadLetters) -> None:
        self.count = queue.get_dead_letter_count
        self.total = queue.get_dead_lettered_total
        self.list = queue.get_dead_letter_jobs
        self.peek = queue.peek_dead_letter
        self.summary = queue.get_dead_letter_summary
        self.replay = queue.replay_dead_letter
        self.replay_all = queue.replay_all_dead_letters
        self.purge = queue.purge_dead_letters


class GroupView:
    """The groups that a queue owns."""

    def __init__(self, queue: QueueGroups) -> None:
        self.list = queue.get_groups
        self.get = queue.get_group_state
        self.jobs = queue.get_group_jobs
        self.wait_for = queue.wait_for_group
        self.cancel = queue.cancel_group
        self.results = queue.get_group_results
        self.timeline = queue.get_group_timeline
        self.complete_member = queue.complete_member
        self.fail_member = queue.fail_member
        self.retry = queue.retry_group
        self.retry_compensation = queue.retry_compensation
        self.resolve = queue.resolve_group
        self.clean = queue.clean_groups
        self.reconcile = queue.reconcile_groups


class SchedulerView:
    """The schedulers of a queue, which add its repeating jobs."""

    def __init__(self, queue: QueueSchedulers) -> None:
        self.upsert = queue.upsert_job_scheduler
        self.get = queue.get_job_scheduler
        self.list = queue.get_job_schedulers
        self.count = queue.get_job_scheduler_count
        self.remove = queue.remove_job_scheduler
        self.pause = queue.pause_job_scheduler
        self.resume = queue.resume_job_scheduler
        self.change = queue.change_job_scheduler
        self.run = queue.run_job_scheduler
