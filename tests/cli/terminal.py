"""A real terminal for programs that need one: tmux, whose screen can be read back."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self


class Terminal:
    """Runs a command in a terminal of its own; gone with the ``with`` block."""

    def __init__(
        self, command: list[str], env: dict[str, str], *, width: int = 80, height: int = 24
    ) -> None:
        self._directory = tempfile.mkdtemp(prefix="toril-tmux-")
        self._command = command
        self._env = env
        self._size = ["-x", str(width), "-y", str(height)]

    @staticmethod
    def is_available() -> bool:
        return shutil.which("tmux") is not None

    def __enter__(self) -> Self:
        words = ["env", *(f"{name}={value}" for name, value in self._env.items()), *self._command]
        # Without its own line at the bottom, the program has the whole screen.
        start = ("new-session", "-d", *self._size, shlex.join(words))
        self._tmux("start-server", ";", "set-option", "-g", "status", "off", ";", *start)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._directory, ignore_errors=True)

    def screen(self, *, colours: bool = False) -> str:
        """What stands on the screen now."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []), check=False)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    @property
    def is_running(self) -> bool:
        return bool(self._tmux("list-sessions", check=False))

    def _tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(Path(self._directory) / "s"), "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=check,
        )
        return done.stdout
