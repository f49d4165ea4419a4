"""Runs ``toril`` in processes that are forked from one in which everything is imported already.

The same program as ``python -m toril``, with its own arguments, environment, directory and files,
but for the second that an interpreter takes to start on a busy machine.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from toril.cli.catalogue import CATALOGUE
from toril.cli.main import run

LIMIT_S = 60


class Forks:
    """Starts the process that is forked; gone with the ``with`` block."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forks"],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate(timeout=LIMIT_S)

    def run(
        self, arguments: list[str], *, typed: str, env: dict[str, str], directory: Path
    ) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as files:
            (Path(files) / "in").write_text(typed)
            request = {"arguments": arguments, "env": env, "cwd": str(directory), "files": files}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            out, err = ((Path(files) / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(arguments, code, out, err)


def serve() -> None:
    """Fork for each request on stdin, and print how the child ended."""
    for entry in CATALOGUE.values():
        importlib.import_module(f"toril.cli.{entry.target.partition(':')[0]}")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: dict[str, object]) -> None:
    code = 1
    try:
        files = Path(str(request["files"]))
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        for number, name in enumerate(("in", "out", "err")):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
            os.dup2(os.open(files / name, flags, 0o600), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["toril", *request["arguments"]]  # type: ignore[misc]
        code = run(None)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
