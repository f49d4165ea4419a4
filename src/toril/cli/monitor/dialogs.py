"""What the monitor shows above everything else: its help, and questions."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from toril.cli.shown import Shown

HELP = """\
[b]Toril monitor[/]

[b]↑ ↓[/]      choose a row     [b]Tab[/]  between queues and what is below
[b]1[/] Active [b]2[/] Lanes [b]3[/] Groups [b]4[/] Dead letters [b]5[/] Events [b]6[/] Failed
[b]Enter[/]    the whole job or group: why, attempts, stack trace, data, log
[b]p[/]        pause the chosen queue, or let it go on
[b]r[/]        replay the chosen kind of dead letters, or retry the failed job
[b]x[/]        purge the chosen kind of dead letters
[b]space[/]    freeze the screen, to read
[b]+ -[/]      look more or less often
[b]?[/]        this help      [b]q[/]  quit

⏸: paused   !: groups that need a person, see 3
wait: ready to run   run: running   later: delayed, or with children
jobs/s: finished per second   waited, ran: medians of the last look
Dead letters are in the dead letter queue: choose that one, then 4.
Each look costs the server the same, however many jobs there are.
"""


class HelpScreen(ModalScreen[None]):
    """The keys, and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter,space", "dismiss", "Close")
    ]

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(HELP)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(None)


class ConfirmScreen(ModalScreen[bool]):
    """A question that ``y`` answers with yes, and every other way out with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str, which: str = "") -> None:
        super().__init__()
        self.question = question
        self.which = which

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Shown(self.question), id="question")
            if self.which:
                yield Static(Shown(self.which), id="which")
            yield Static("\n[b]y[/] yes   [b]n[/] no")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
