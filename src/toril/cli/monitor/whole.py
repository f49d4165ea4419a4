"""One job or one group, whole: what Enter opens, read again as long as it is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from toril.cli import groups as group_command
from toril.cli import job as job_command
from toril.cli.monitor.rows import member_line
from toril.cli.printing import text_of
from toril.cli.shown import Shown
from toril.client.connection import Connection
from toril.client.queue import Queue
from toril.errors import TorilError
from toril.protocol import groups

MOST_LOG_ROWS = 100
MOST_TEXT = 64 * 1024
"""Of each part so many characters are shown; ``toril job`` prints all of them."""


class WholeScreen(ModalScreen[None]):
    """Everything there is to say, to be scrolled through."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back", key_display="Esc"),
        Binding("down,j", "scroll(1)", "Down", show=False),
        Binding("up,k", "scroll(-1)", "Up", show=False),
        Binding("space,pagedown", "page(1)", "Page down", key_display="space"),
        Binding("b,pageup", "page(-1)", "Page up", key_display="b"),
    ]

    def __init__(self, read: Callable[[], Awaitable[Shown]], interval_s: float) -> None:
        super().__init__()
        self._read = read
        self._interval_s = interval_s
        self._is_reading = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="whole"):
            yield Static("Reading…", id="text")
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(self._interval_s, self._look)
        self._look()

    def _look(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._look_once()

    @work(group="whole")
    async def _look_once(self) -> None:
        try:
            text = await self._read()
        except TorilError as error:
            text = Shown("no answer: ", "bold red").append(" ".join(str(error).split()))
        finally:
            self._is_reading = False
        for static in self.query("#text").results(Static):
            static.update(text)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(None)

    def action_scroll(self, lines: int) -> None:
        self.query_one("#whole").scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        whole = self.query_one("#whole")
        whole.scroll_relative(y=pages * max(whole.size.height - 1, 1), animate=False)


async def whole_job(queue: Queue, job_id: str) -> Shown:
    """Where a job is and why, its attempts, stack traces, data and log."""
    found, state = await queue.get_job(job_id), await queue.get_state(job_id)
    if found is None or state is None:
        return Shown(f"Job {job_id!r} is gone: it was removed when it was done, or by somebody.")
    logs = await queue.get_job_logs(job_id, -MOST_LOG_ROWS, -1)
    text = _facts(job_command.facts_of(found, state, await queue.explain(job_id)))
    # What went wrong comes before what was asked for.
    parts = job_command.parts_of(found, logs)
    traces = [part for part in parts if part[0].startswith("Failed attempt")]
    for title, words in [*reversed(traces), *(part for part in parts if part not in traces)]:
        text.append_lines("\n").append(title, "bold")
        text.append_lines(f"\n{_cut(words).rstrip()}\n", "red" if title[0] == "F" else "")
    return text


async def whole_group(connection: Connection, queue: Queue, group_id: str) -> Shown:
    """Where a group is and why, and each of its members."""
    # Read where it was seen: the public calls search all queues for a group that is gone.
    parts = queue.partitions
    found = await connection.run_all([groups.read(part.keys, group_id) for part in parts])
    owned = [(part, one) for part, one in zip(parts, found, strict=True) if one is not None]
    if not owned:
        return Shown(f"Group {group_id!r} is gone.")
    owner, group = owned[0]
    text = _facts(group_command.facts_of(group))
    if group.needs_a_person:
        text.append_lines("\n")
        text.append("This group needs a person.", "bold red")
        text.append(f" toril groups show {queue.name} {group.id} says what to do.").append_lines(
            "\n"
        )
    text.append_lines("\n").append("Members", "bold")
    for member in await connection.follow(groups.members(owner.keys, group_id)):
        text.append_lines("\n").append(f"{member.job_id} in {member.queue_name}: ")
        text.append_text(member_line([member]))
    return text


def _facts(facts: list[tuple[str, Any]]) -> Shown:
    known = [(name, text_of(value)) for name, value in facts if value is not None]
    width = max(len(name) for name, _ in known)
    text = Shown()
    for name, value in known:
        text.append(name.ljust(width), "bold").append("  ")
        text.append_lines(f"{_cut(value)}\n", "red" if name == "failed" else "")
    return text


def _cut(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:MOST_TEXT]}… ({len(text):,} characters in all)"
