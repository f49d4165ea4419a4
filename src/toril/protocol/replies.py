"""What an error of the server or of the socket means for the command that met it."""

from __future__ import annotations

from enum import Enum


class Trouble(Enum):
    """What to do about an error."""

    UNKNOWN_SCRIPT = "send the script's source"
    NOT_NOW = "the server refused before doing anything; the same command may succeed soon"
    GHOST = "a newer call of its flight was made, so this one was not; it needs another flight"
    FORGOTTEN = "whether the command ran is not remembered any more"
    OUT_OF_MEMORY = "the server takes no more data"
    LOST = "the connection broke; whether the command ran is unknown"
    WRONG = "a mistake in the command or the data"


_NOT_NOW = (
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "READONLY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "NOREPLICAS",
    "UNBLOCKED",
    "MISCONF",
)
_NOT_NOW_CLASSES = frozenset(
    {
        "BusyLoadingError",
        "ReadOnlyError",
        "MasterDownError",
        "ClusterDownError",
        "TryAgainError",
        "MovedError",
        "AskError",
        "SlotNotCoveredError",
        "MasterNotFoundError",
        "MaxClientsError",
    }
)
_LOST_CLASSES = frozenset(
    {"ConnectionError", "TimeoutError", "ClusterError", "RedisClusterException", "InvalidResponse"}
)


def classify(error: BaseException) -> Trouble:
    """Sort an error of the client library by its class names and its first word."""
    names = {cls.__name__ for cls in type(error).__mro__}
    message = str(error)
    if "NoScriptError" in names or message.startswith("NOSCRIPT"):
        return Trouble.UNKNOWN_SCRIPT
    if message.startswith("GHOST"):
        return Trouble.GHOST
    if message.startswith("FORGOTTEN"):
        return Trouble.FORGOTTEN
    if "OutOfMemoryError" in names or message.startswith("OOM"):
        return Trouble.OUT_OF_MEMORY
    if names & _NOT_NOW_CLASSES or message.startswith(_NOT_NOW):
        return Trouble.NOT_NOW
    if names & _LOST_CLASSES or isinstance(error, OSError):
        return Trouble.LOST
    return Trouble.WRONG
