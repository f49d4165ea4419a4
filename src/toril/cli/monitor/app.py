"""The screen of the monitor: a table of queues, and below it one view of the chosen one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Literal

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static, Tab, Tabs

from toril.cli.monitor import rows
from toril.cli.monitor.dialogs import ConfirmScreen, HelpScreen
from toril.cli.monitor.letters import LetterSurvey
from toril.cli.monitor.rows import Rows
from toril.cli.monitor.table import Table
from toril.cli.monitor.watcher import QueueWatch, View, Watcher
from toril.cli.monitor.whole import WholeScreen, whole_group, whole_job
from toril.cli.shown import Shown
from toril.cli.values import counted
from toril.client.connection import Connection
from toril.client.queue import Queue
from toril.errors import TorilError
from toril.protocol.visible_text import visible

SHORTEST_INTERVAL_S = 0.2
LONGEST_INTERVAL_S = 60.0
WHOLE_EVERY_S = 1.0
"""A whole job may be large, so it is not read more often."""

_TITLES = {
    View.ACTIVE: ("Active", rows.ACTIVE_COLUMNS),
    View.LANES: ("Lanes", rows.LANE_COLUMNS),
    View.GROUPS: ("Groups", rows.GROUP_COLUMNS),
    View.LETTERS: ("Dead letters", rows.LETTER_COLUMNS),
    View.EVENTS: ("Events", rows.EVENT_COLUMNS),
    View.FAILED: ("Failed", rows.FAILED_COLUMNS),
}


_NOTHING = {
    View.ACTIVE: "Nothing runs in this queue.",
    View.LANES: "No lane of this queue has jobs. active lanes: none",
    View.GROUPS: "This queue owns no groups.",
    View.LETTERS: "No dead letters here; choose a dead letter queue above.",
    View.EVENTS: "No event of this queue is remembered.",
    View.FAILED: "No failed job is kept in this queue.",
}


class MonitorApp(App[None]):
    """Looks at the server again and again, and shows what it sees."""

    TITLE = "Toril monitor"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #status { height: 1; background: $primary; color: $text; padding: 0 1; }
    #status.trouble { background: $error; }
    #queues { height: 35%; min-height: 5; }
    #summary { height: auto; max-height: 2; padding: 0 1; background: $boost; }
    #view { height: 1fr; }
    #note { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    ModalScreen { align: center middle; }
    #dialog {
        width: auto; max-width: 78; height: auto; max-height: 22;
        padding: 1 2; border: round $primary; background: $surface;
    }
    #dialog Static { width: auto; }
    #whole { height: 1fr; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Help", key_display="?"),
        *(
            Binding(str(number), f"view('{view}')", _TITLES[view][0], show=False)
            for number, view in enumerate(View, 1)
        ),
        Binding("p", "pause", "Pause"),
        Binding("r", "again", "Again"),
        Binding("x", "purge", "Purge"),
        Binding("space", "freeze", "Freeze"),
        Binding("plus,equals_sign", "faster", "Faster", show=False),
        Binding("minus", "slower", "Slower", show=False),
    ]

    # Kept, not searched for: messages about a table still come while the screen is being closed.
    _queue_table: DataTable[object]
    _view_table: DataTable[object]

    def __init__(
        self, watcher: Watcher, connection: Connection, *, label: str, interval_s: float
    ) -> None:
        super().__init__()
        self.watcher = watcher
        self.view = View.ACTIVE
        self.ticks = 0
        self._connection = connection
        self._label = label
        self._interval_s = interval_s
        self._is_frozen = False
        self._is_looking = False
        self._looks_again = False
        self._looked_at: str | None = None
        self._updated = "never"
        self._trouble = ""

    def compose(self) -> ComposeResult:
        self._queue_table = Table(id="queues", cursor_type="row", zebra_stripes=True)
        self._view_table = Table(id="view", cursor_type="row")
        yield Static(id="status")
        yield self._queue_table
        yield Static(id="summary")
        yield Tabs(
            *(
                Tab(f"{number} {title}", id=view.value)
                for number, (view, (title, _)) in enumerate(_TITLES.items(), 1)
            ),
            active=View.ACTIVE.value,
        )
        yield self._view_table
        yield Static(id="note")
        yield Footer()

    async def on_mount(self) -> None:
        self._queue_table.add_columns(*rows.QUEUE_COLUMNS)
        self._show_columns()
        self.query_one(Tabs).can_focus = False
        self._queue_table.focus()
        self._timer = self.set_interval(self._interval_s, self._look_in_time)
        self._look_now()

    # ------------------------------------------------------------------ looking

    def _look_in_time(self) -> None:
        """One more look, unless the server has not answered the last one yet."""
        if not self._is_looking:
            # Noted here: on a busy machine the timer may strike again before the look begins.
            self._is_looking = True
            self._look()

    def _look_now(self) -> None:
        """Something else is to be seen: look at once, or as soon as the look under way is over."""
        self._looks_again = self._is_looking
        self._look_in_time()

    @work(group="look")
    async def _look(self) -> None:
        try:
            await self._look_once()
            while self._looks_again:
                self._looks_again = False
                await self._look_once()
        finally:
            self._is_looking = False

    async def _look_once(self) -> None:
        if self._is_frozen:
            return
        try:
            self._looked_at = self._chosen_name
            await self.watcher.tick(self._looked_at, self.view, self._chosen_group)
        except TorilError as error:
            self._trouble = f"no answer: {' '.join(str(error).split())}"
        except Exception as error:  # noqa: BLE001 (what a strange server says belongs on the screen)
            self._trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            self._trouble = ""
            self._updated = f"{datetime.now(UTC).astimezone():%H:%M:%S}"
            self.ticks += 1
        self._show()

    def _show(self) -> None:
        if not self.query("#status"):
            return  # the answer came when the screen was being taken down
        every = f"every {self._interval_s:g}s" if not self._is_frozen else "frozen"
        more = f"  (+{self.watcher.left_out} queues)" if self.watcher.left_out else ""
        if self.watcher.is_searching:
            more += "  still looking for queues"
        line = f"{self._label}  prefix {self.watcher.prefix}{more}  {every}"
        status = self.query_one("#status", Static)
        status.set_class(bool(self._trouble), "trouble")
        status.update(Shown(self._trouble or f"{line}  last update {self._updated}"))
        fill(
            self._queue_table, rows.queue_rows(list(self.watcher.queues.values()), self.size.width)
        )
        self._show_view()

    def _show_view(self) -> None:
        watch = self._chosen
        self.query_one("#summary", Static).update(rows.summary_line(watch, self.size.width))
        fill(self._view_table, self._view_rows(watch))
        self.query_one("#note", Static).update(self._note())

    def _view_rows(self, watch: QueueWatch | None) -> Rows:
        details = self.watcher.details
        match self.view:
            case View.ACTIVE:
                return rows.active_rows(details.active, int(time.time() * 1000), self.size.width)
            case View.LANES:
                return rows.lane_rows(details.lanes)
            case View.GROUPS:
                return rows.group_rows(details.groups)
            case View.LETTERS:
                return rows.letter_rows(self.watcher.letters)
            case View.EVENTS:
                return rows.event_rows(watch)
            case View.FAILED:
                return rows.failed_rows(details.failed, self.size.width)

    def _note(self) -> Shown:
        if not self.watcher.queues:
            if self.watcher.is_searching:
                return Shown("Looking for queues…")
            return Shown(f"There is no queue under the prefix {self.watcher.prefix!r} yet.")
        if not self._view_table.row_count and self.view is not View.LETTERS:
            return Shown(_NOTHING[self.view])
        if self.view is View.GROUPS:
            return rows.member_line(self.watcher.details.members)
        if self.view is View.LETTERS:
            letters = self.watcher.letters
            if letters is None or not letters.is_complete:
                return Shown("counting…")
            return Shown(_about(letters, any_counted=bool(self._view_table.row_count)))
        if self.view is View.LANES:
            held = [lane.name for lane in self.watcher.details.lanes if lane.holders]
            return Shown(f"active lanes: {', '.join(held[:20]) or 'none'}")
        return Shown()

    # ------------------------------------------------------------------ choosing

    @property
    def _chosen_name(self) -> str | None:
        return chosen_key(self._queue_table) or next(iter(self.watcher.queues), None)

    @property
    def _chosen(self) -> QueueWatch | None:
        return self.watcher.queues.get(self._chosen_name or "")

    @property
    def _chosen_group(self) -> str | None:
        return chosen_key(self._view_table) if self.view is View.GROUPS else None

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        # Filling the table moves the cursor too: only another queue is news.
        if event.data_table.id == "queues" and self._chosen_name != self._looked_at:
            self._look_now()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter on a queue goes to what is below; on a row there, it shows the whole of it."""
        if event.data_table.id == "queues":
            self._view_table.focus()
            return
        watch, key = self._chosen, event.row_key.value
        if watch is None or key is None:
            return
        queue = self._queue(watch.label)
        if self.view is View.GROUPS:
            read = partial(whole_group, self._connection, queue, key)
        elif job_id := self._job_of_row(watch, key):
            read = partial(whole_job, queue, job_id)
        else:
            return
        self.push_screen(WholeScreen(read, max(self._interval_s, WHOLE_EVERY_S)))

    def _job_of_row(self, watch: QueueWatch, key: str) -> str | None:
        """The job that a row of the view is about."""
        match self.view:
            case View.LANES:
                lane = next((one for one in self.watcher.details.lanes if one.name == key), None)
                return None if lane is None else next(iter(lane.holders), lane.head)
            case View.LETTERS:
                groups = self.watcher.letters.groups if self.watcher.letters else {}
                return groups[key].example if key in groups else None
            case View.EVENTS:
                return next((one.job_id for one in watch.events if one.id == key), None)
            case _:
                return key

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        if event.tab.id and event.tab.id != self.view.value:
            self._open(View(event.tab.id))

    def action_view(self, view: str) -> None:
        self.query_one(Tabs).active = view

    def _open(self, view: View) -> None:
        self.view = view
        self._show_columns()
        self._look_now()

    def _show_columns(self) -> None:
        self._view_table.clear(columns=True)
        self._view_table.add_columns(*_TITLES[self.view][1])

    # ------------------------------------------------------------------ doing

    def tell(self, words: str, severity: Literal["information", "error"] = "information") -> None:
        """Show words for a moment."""
        self.notify(visible(words), severity=severity, markup=False)

    async def action_help(self) -> None:
        await self.push_screen(HelpScreen())

    def action_freeze(self) -> None:
        self._is_frozen = not self._is_frozen
        self._show()
        if not self._is_frozen:
            self._look_now()

    def action_faster(self) -> None:
        self._change_interval(max(self._interval_s / 2, SHORTEST_INTERVAL_S))

    def action_slower(self) -> None:
        self._change_interval(min(self._interval_s * 2, LONGEST_INTERVAL_S))

    def _change_interval(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._timer.stop()
        self._timer = self.set_interval(interval_s, self._look_in_time)
        self._show()

    def _queue(self, label: str) -> Queue:
        """The queue of a row, with all of its partitions."""
        watch = self.watcher.queues[label]
        return Queue(
            watch.name,
            connection=self._connection,
            prefix=self.watcher.prefix,
            partitions=len(watch.queues),
        )

    def action_pause(self) -> None:
        watch = self._chosen
        if watch is None or watch.glance is None:
            return
        is_paused = watch.glance.is_paused
        question = "Let queue {!r} go on?" if is_paused else "Pause queue {!r}?"

        async def change(queue: Queue) -> str:
            await (queue.resume() if is_paused else queue.pause())
            return f"{watch.label} {'goes on' if is_paused else 'is paused'}"

        self._ask(question.format(watch.label), watch.label, change)

    def action_again(self) -> None:
        """Replay a kind of dead letters, or retry a job that failed."""
        if self.view is not View.FAILED:
            self._act_on_letters("Replay", _replay)
            return
        watch, job_id = self._chosen, chosen_key(self._view_table)
        if watch is None or job_id is None:
            return

        async def change(queue: Queue) -> str:
            await queue.retry(job_id, reset_attempts=True)
            return f"job {job_id} runs again"

        self._ask(f"Retry 1 job of {watch.label!r}?", watch.label, change, job_id)

    def action_purge(self) -> None:
        self._act_on_letters("Purge", _purge)

    def _act_on_letters(self, verb: str, act: Callable[[Queue, str, int], Awaitable[int]]) -> None:
        survey = self.watcher.letters
        kind = chosen_key(self._view_table) if self.view is View.LETTERS else None
        if survey is None or kind is None or kind not in survey.groups:
            self.tell("Choose a kind of dead letters first: 4, then Tab and ↑ ↓.")
            return
        group = survey.groups[kind]

        async def change(queue: Queue) -> str:
            # What died after the count is not what was asked about.
            done = await act(queue, kind, group.last + 1)
            return f"{verb}: {counted(done, 'dead letter')}"

        label = survey.label
        self._ask(
            f"{verb} {counted(group.count, 'dead letter')} of {label!r}?", label, change, kind
        )

    @work(group="change")
    async def _ask(
        self,
        question: str,
        label: str,
        change: Callable[[Queue], Awaitable[str]],
        which: str = "",
    ) -> None:
        if not await self.push_screen_wait(ConfirmScreen(question, which)):
            return
        if label not in self.watcher.queues:  # the question may have been open for long
            self.tell(f"Nothing was done: queue {label!r} is gone.", severity="error")
            return
        queue = self._queue(label)
        try:
            self.tell(await change(queue))
        except TorilError as error:
            self.tell(" ".join(str(error).split()), severity="error")
        finally:
            await queue.close()
        self._look_now()


def _about(letters: LetterSurvey, *, any_counted: bool) -> str:
    """What the view of dead letters does not show."""
    if not letters.others:
        return "r replays, x purges the chosen kind" if any_counted else _NOTHING[View.LETTERS]
    others = counted(letters.others, "other job")
    look = f"toril dlq summary {letters.label}"
    if any_counted:
        return f"r replays, x purges the chosen kind. {others} not counted; {look} looks at all"
    return f"No dead letters here that a Toril worker wrote, and {others}; {look} looks at these"


async def _replay(queue: Queue, fingerprint: str, until: int) -> int:
    return await queue.replay_all_dead_letters(fingerprint=fingerprint, until=until)


async def _purge(queue: Queue, fingerprint: str, until: int) -> int:
    return await queue.purge_dead_letters(fingerprint=fingerprint, until=until)


def fill(table: DataTable[object], wanted: Rows) -> None:
    """Let the table show these rows; the cursor stays on its row, wherever that moves."""
    current = [key.value for key in table.rows]
    if current == list(wanted):
        for index, cells in enumerate(wanted.values()):
            for column, cell in enumerate(cells):
                place = Coordinate(index, column)
                if table.get_cell_at(place) != cell:
                    table.update_cell_at(place, cell, update_width=True)
        return
    chosen = chosen_key(table)
    scrolled = table.scroll_y
    table.clear()
    for key, cells in wanted.items():
        table.add_row(*cells, key=key)
    if chosen in wanted:
        table.move_cursor(row=list(wanted).index(chosen), scroll=False)
    table.scroll_to(y=scrolled, animate=False)


def chosen_key(table: DataTable[object]) -> str | None:
    """The key of the row under the cursor."""
    if not table.row_count or not table.is_valid_coordinate(table.cursor_coordinate):
        return None
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
