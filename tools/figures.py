"""Draw ``docs/figures``; with ``--check`` only say which are out of date.

Boxes and arrows on a grid.  The colours are variables: on its own, a figure follows the system's
light or dark theme; inline in a page of the site, it follows the page's switch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parent.parent / "docs" / "figures"
STYLE = """\
svg.figure { --ink: #1f2933; --faint: #9aa5b1; --paper: #ffffff; --tint: #e3f4f1; --mark: #00796b; }
@media (prefers-color-scheme: dark) {
  svg.figure { --ink: #e4e7eb; --faint: #7b8794; --paper: #1f2430; --tint: #18383a; --mark: #4db6ac; }
}"""
FONT = "font-family: system-ui, sans-serif"


class Figure:
    """A drawing: boxes first, arrows between them, words where they are needed."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def area(self, x: int, y: int, w: int, h: int, label: str = "") -> None:
        """A dashed frame around what belongs together."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="none"'
            f' stroke="var(--faint)" stroke-dasharray="4 4"/>'
        )
        if label:
            self.text(x + 10, y + 18, label, size=12, anchor="start", colour="var(--faint)")

    def box(self, x: int, y: int, w: int, h: int, *lines: str, strong: bool = False) -> None:
        """A box with a title and, below it, smaller lines."""
        stroke, width = ("var(--mark)", 2) if strong else ("var(--ink)", 1)
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6"'
            f' fill="var({"--tint" if strong else "--paper"})"'
            f' stroke="{stroke}" stroke-width="{width}"/>'
        )
        top = y + h / 2 - (len(lines) - 1) * 8 + 5
        for number, line in enumerate(lines):
            bold = number == 0
            self.text(
                x + w / 2,
                top + number * 16,
                line,
                size=14 if bold else 12,
                bold=bold and len(lines) > 1,
            )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 12,
        anchor: str = "middle",
        bold: bool = False,
        colour: str = "var(--ink)",
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}'
            f' fill="{colour}">{escape(words)}</text>'
        )

    def arrow(
        self,
        *points: tuple[int, int],
        label: str = "",
        at: tuple[int, int] | None = None,
        anchor: str = "middle",
        dashed: bool = False,
    ) -> None:
        """An arrow through some points, with words next to it."""
        path = " ".join(f"{'M' if n == 0 else 'L'}{x} {y}" for n, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="var(--ink)" stroke-width="1.3"{dash}'
            f' marker-end="url(#{self.marker})"/>'
        )
        if label:
            (x0, y0), (x1, y1) = points[0], points[-1]
            x, y = at or ((x0 + x1) // 2, (y0 + y1) // 2 - 6)
            for number, line in enumerate(label.split("\n")):
                self.text(x, y + number * 14, line, anchor=anchor)

    @property
    def marker(self) -> str:
        return "tip-" + "".join(letter for letter in self.title.lower() if letter.isalpha())[:24]

    def draw(self) -> str:
        tip = (
            f'<defs><marker id="{self.marker}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            f' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--ink)"/></marker></defs>'
        )
        head = (
            f'<svg class="figure" xmlns="http://www.w3.org/2000/svg" role="img"'
            f' viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' style="{FONT}" aria-label="{escape(self.title)}">'
        )
        return "\n".join(
            [
                head,
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                tip,
                *self.parts,
                "</svg>",
                "",
            ]
        )


def architecture() -> Figure:
    f = Figure(760, 430, "The parts of Toril and who talks to whom")
    f.area(10, 10, 230, 190, "your service")
    f.box(30, 40, 190, 40, "code that enqueues")
    f.box(30, 95, 190, 40, "Queue, App, flows")
    f.box(30, 150, 190, 40, "Outbox")
    f.box(30, 240, 190, 46, "your database", "orders and outbox rows")
    f.box(30, 350, 190, 46, "Relay", "any number of them")
    f.box(310, 150, 140, 100, "Redis", "or Valkey", "queues, locks,", "events", strong=True)
    f.area(520, 10, 230, 190, "worker processes")
    f.box(540, 40, 190, 40, "Worker: takes and settles")
    f.box(540, 95, 190, 40, "your handlers")
    f.box(540, 150, 190, 40, "lease, sweep, schedules")
    f.box(540, 240, 190, 46, "Node BullMQ", "same queues, same layout")
    f.box(540, 350, 190, 46, "operators", "CLI, monitor, dashboard")
    f.arrow((125, 80), (125, 95))
    f.arrow((220, 115), (310, 180), label="add", at=(282, 142))
    f.arrow((125, 190), (125, 240), label="commit", at=(132, 220), anchor="start")
    f.arrow((125, 286), (125, 350), label="claim rows", at=(132, 324), anchor="start")
    f.arrow((220, 373), (345, 250), label="add, by the row's id", at=(300, 330), anchor="start")
    f.arrow((540, 60), (440, 150), label="take, settle", at=(466, 96))
    f.arrow((635, 80), (635, 95))
    f.arrow((540, 170), (450, 195), label="renew", at=(492, 176))
    f.arrow((540, 263), (450, 225))
    f.arrow((540, 373), (415, 250))
    return f


def walk() -> Figure:
    f = Figure(760, 330, "One job's walk from add to its end")
    f.box(10, 20, 120, 46, "added", "one script")
    f.box(190, 20, 130, 46, "waiting", "or in its lane")
    f.box(190, 130, 130, 46, "delayed", "until it is due")
    f.box(400, 20, 130, 46, "active", "locked, renewed", strong=True)
    f.box(620, 20, 130, 46, "completed", "with its result")
    f.box(620, 130, 130, 46, "failed", "with its reason")
    f.box(620, 240, 130, 46, "dead letter", "in another queue")
    f.box(400, 240, 130, 46, "worker died", "its lock expires")
    f.box(190, 240, 130, 46, "waiting-children", "of a flow")
    f.arrow((130, 43), (190, 43))
    f.arrow((70, 66), (70, 153), (190, 153), label="delay", at=(112, 146))
    f.arrow((255, 130), (255, 66), label="due", at=(262, 102), anchor="start")
    f.arrow((320, 43), (400, 43), label="take", at=(360, 36))
    f.arrow((530, 43), (620, 43), label="returned", at=(575, 36))
    f.arrow((530, 58), (620, 145), label="the last\nattempt failed", at=(572, 122), anchor="end")
    f.arrow((685, 176), (685, 240), label="or", at=(692, 212), anchor="start")
    f.arrow((430, 66), (430, 153), (320, 153), label="retry", at=(394, 146))
    f.arrow((465, 66), (465, 240), dashed=True)
    f.arrow(
        (400, 275), (355, 275), (355, 50), (320, 50), label="sweep", at=(362, 222), anchor="start"
    )
    f.arrow(
        (190, 263),
        (160, 263),
        (160, 52),
        (190, 52),
        label="children\nare done",
        at=(154, 210),
        anchor="end",
    )
    f.arrow((685, 286), (685, 310), (20, 310), (20, 66), label="replay", at=(350, 304))
    return f


def groups() -> Figure:
    f = Figure(760, 330, "The states of a group")
    f.box(20, 130, 130, 46, "ACTIVE", "its jobs run", strong=True)
    f.box(20, 20, 160, 46, "BLOCKED", "failed after the pivot")
    f.box(600, 60, 140, 46, "COMPLETED", "all jobs are done")
    f.box(290, 130, 160, 46, "COMPENSATING", "undoing what was done")
    f.box(600, 130, 140, 46, "FAILED", "nothing is left of it")
    f.box(270, 260, 200, 46, "FAILED_COMPENSATION", "a person must decide")
    f.arrow((45, 130), (45, 66))
    f.arrow(
        (100, 66),
        (100, 130),
        label="retry_group, resolve_group",
        at=(112, 92),
        anchor="start",
    )
    f.arrow(
        (130, 130),
        (130, 112),
        (560, 112),
        (560, 83),
        (600, 83),
        label="every job completed",
        at=(430, 106),
    )
    f.arrow(
        (150, 158), (290, 158), label="a job failed for good,\nor it was cancelled", at=(220, 136)
    )
    f.arrow((450, 153), (600, 153), label="all is undone", at=(525, 146))
    f.arrow(
        (85, 176),
        (85, 230),
        (670, 230),
        (670, 176),
        label="… and nothing had been done",
        at=(185, 246),
    )
    f.arrow((345, 176), (345, 260), label="an undo failed\nfor good", at=(338, 200), anchor="end")
    f.arrow((400, 260), (400, 176), label="retry_compensation", at=(407, 205), anchor="start")
    f.arrow((470, 283), (715, 283), (715, 176), label="resolve_group", at=(592, 276))
    return f


def lanes() -> Figure:
    f = Figure(760, 250, "Lanes: one job of each runs, in order")
    for row, (name, jobs) in enumerate(
        (("user:42", ("1", "2", "3")), ("user:7", ("1", "2")), ("user:9", ("1", "2", "3", "4")))
    ):
        y = 30 + row * 62
        f.text(118, y + 25, f'lane="{name}"', anchor="end", size=13)
        for column, job in enumerate(reversed(jobs)):
            x = 300 - (len(jobs) - 1 - column) * 55 + (55 if len(jobs) == 4 else 0)
            f.box(x - (55 if len(jobs) == 4 else 0), y, 44, 40, job, strong=job == "1")
        f.arrow((344, y + 20), (470, 110), label="its head" if row == 0 else "", at=(410, 52))
    f.text(118, 225, "no lane", anchor="end", size=13)
    for column in range(4):
        f.box(135 + column * 55, 205, 44, 34, "·")
    f.arrow((344, 222), (470, 130))
    f.box(470, 85, 120, 70, "in turn", "a job of each", "lane, then others")
    f.arrow((590, 120), (640, 120))
    f.box(640, 85, 110, 70, "workers", "one job of a", "lane at a time")
    return f


def outbox() -> Figure:
    f = Figure(760, 250, "The outbox: a job exactly if the transaction commits")
    f.box(10, 90, 130, 60, "your service")
    f.area(190, 20, 190, 210, "one transaction")
    f.box(210, 55, 150, 50, "INSERT the order")
    f.box(210, 120, 150, 50, "INSERT the job", "as an outbox row")
    f.text(285, 200, "commit: both", size=13, bold=True)
    f.text(285, 218, "rollback: neither", size=13)
    f.box(470, 120, 100, 50, "Relay", "claims rows", strong=True)
    f.box(650, 120, 100, 50, "Redis", "the job, once")
    f.arrow((140, 120), (190, 120))
    f.arrow((360, 145), (470, 145), label="FOR UPDATE\nSKIP LOCKED", at=(428, 164))
    f.arrow((570, 138), (650, 138), label="add", at=(610, 131))
    f.arrow((650, 156), (570, 156), label="known id:\nnot again", at=(610, 174))
    f.arrow((520, 120), (520, 70), (380, 70), label="mark as sent", at=(450, 63))
    return f


FIGURES = {
    "architecture": architecture,
    "walk": walk,
    "group-states": groups,
    "lanes": lanes,
    "outbox": outbox,
}


def main() -> int:
    stale = [
        name
        for name, make in FIGURES.items()
        if not (path := TARGET / f"{name}.svg").exists() or path.read_text() != make().draw()
    ]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/figures/{name}.svg is out of date; run make format")
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for name in stale:
        (TARGET / f"{name}.svg").write_text(FIGURES[name]().draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
