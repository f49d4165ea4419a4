"""Copy the comparison of ``benchmarks/RESULTS.md`` into the README, so that both say the same.

python tools/readme_numbers.py            write
python tools/readme_numbers.py --check    only say whether they differ
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"

COLUMNS = ("add, one by one", "add, bulk", "drain", "pick-up p50 / p99, ms")
LEFT_OUT = ("Toril on uvloop",)
PART = re.compile(r"(?<=<!-- numbers -->\n).*?(?=<!-- /numbers -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    text = README.read_text()
    assert PART.search(text), "README.md has no place for the numbers"
    wanted = PART.sub(lambda _: numbers(RESULTS.read_text()), text)
    if "--check" in arguments:
        print("readme: the numbers match the results" if text == wanted else DIFFER)
        return int(text != wanted)
    README.write_text(wanted)
    return 0


DIFFER = "readme: the numbers do not match the results; run tools/readme_numbers.py"


def numbers(results: str) -> str:
    """The first table of the results that compares Toril with its peers, with fewer columns."""
    server = re.search(r"^## (.+)$", results, re.MULTILINE)
    table = re.search(r"^\|[^\n]*add, one by one.*?(?=\n\n|\Z)", results, re.MULTILINE | re.DOTALL)
    day = re.search(r"\d{4}-\d\d-\d\d", results)
    if not (server and table and day):
        raise ValueError("RESULTS.md has no comparison")
    rows = [_cells(line) for line in table[0].splitlines()]
    heading = rows[0]
    kept = [0, *(heading.index(name) for name in COLUMNS)]
    lines = [
        "| " + " | ".join(row[index] for index in kept) + " |"
        for row in rows
        if row[0] not in LEFT_OUT
    ]
    source = (
        f"Jobs per second on {server[1]}, {day[0]}; in brackets how many times as fast Toril is."
    )
    return "\n".join([*lines, "", source, ""])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
