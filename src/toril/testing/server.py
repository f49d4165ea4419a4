"""The server of a test process: started on first use, stopped when the process ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading

from toril.client import embedded

_guard = threading.Lock()
_servers: dict[int, str] = {}


def server_url() -> str:
    """The URL of this process's own server; ``TORIL_TEST_URL`` names another one to use.

    It is the embedded server, in a directory of its own: in a parallel test run every process has
    one.
    """
    given = os.environ.get("TORIL_TEST_URL")
    if given:
        return given
    with _guard:
        process = os.getpid()
        if process not in _servers:
            directory = tempfile.mkdtemp(prefix="toril-test-")
            server = embedded.start(directory)
            _servers[process] = server.url

            def stop() -> None:
                if os.getpid() == process:
                    server.close()
                    shutil.rmtree(directory, ignore_errors=True)

            atexit.register(stop)
        return _servers[process]
