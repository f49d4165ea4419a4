"""A private MariaDB: its own directory, a Unix socket, nobody else's configuration.

Needs `mariadbd` (Debian: apt install mariadb-server-core), which starts in a moment on an empty
directory when it is told to do without its tables of users.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pymysql

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0

# Like Debian's own configuration: keys are compared without regard to case unless a table says
# otherwise. A time zone with summer time, as servers have it that nobody put on UTC.
OPTIONS = (
    "--no-defaults",
    "--skip-networking",
    "--skip-grant-tables",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=2",
)
TIME_ZONE = "CET-1CEST,M3.5.0,M10.5.0/3"


def find_binary() -> str | None:
    """Where the server is; an ordinary user's PATH has no sbin."""
    return shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class MariaDb:
    """One server; its data outlives `stop`, so that `start` finds it again."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="toril-mariadb-"))
        (self.directory / "data").mkdir()

    @property
    def url(self) -> str:
        """What follows the driver in a URL of SQLAlchemy."""
        return f"root@localhost/toril?unix_socket={self.directory}/mariadb.sock"

    def start(self) -> Self:
        command = [self.binary, *OPTIONS, f"--datadir={self.directory}/data"]
        command += [f"--socket={self.directory}/mariadb.sock", f"--pid-file={self.directory}/pid"]
        if os.getuid() == 0:
            command.append("--user=root")
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                *(command,),
                env={**os.environ, "TZ": TIME_ZONE},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """As an operator would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Stop it for good and remove its data."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with (
                    pymysql.connect(
                        unix_socket=f"{self.directory}/mariadb.sock", user="root"
                    ) as client,
                    client.cursor() as cursor,
                ):
                    cursor.execute("CREATE DATABASE IF NOT EXISTS toril")
                    return
            except pymysql.err.OperationalError:
                log = (self.directory / "server.log").read_text(errors="replace")
                assert self._process.poll() is None, f"MariaDB ended while starting:\n{log}"
                assert time.monotonic() < deadline, f"MariaDB does not answer:\n{log}"
                time.sleep(0.02)
