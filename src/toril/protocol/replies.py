"""What an error of the server or of the socket means for the command that met it.

Here, and only here, is decided what passes by itself and what never will.
"""

from __future__ import annotations

import re
from enum import Enum


class Trouble(Enum):
    """What to do about an error."""

    UNKNOWN_FUNCTION = "load our library"
    NO_FUNCTIONS = "send calls as scripts: functions are unknown or forbidden here"
    UNKNOWN_SCRIPT = "send the script's source"
    NOT_NOW = "the server refused before doing anything; the same command may succeed soon"
    GHOST = "a newer call of its flight was made, so this one was not; it needs another flight"
    FORGOTTEN = "whether the command ran is not remembered any more"
    OUT_OF_MEMORY = "the server takes no more data"
    LOST = "the connection broke; whether the command ran is unknown"
    UNUSABLE = "this server cannot serve us until somebody changes it or the address"
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

_NO_LOGIN = "it asks for a password and none was given; write redis://user:password@host"
_WRONG_LOGIN = "it does not accept the user or the password; check them in the URL"
_WRONG_SENTINEL_LOGIN = "a sentinel does not accept the password; write ?sentinel_password=…"
_NO_PERMISSION = (
    "its user may not run a command or touch a key that Toril needs; extend the user's ACL rules"
)
_TOO_OLD = "it is too old for Toril's scripts; use Redis 7.0 or Valkey 7.2, or newer"
_NO_DATABASE = "it does not have the database that the address names; check the number in the URL"
_NO_COMMAND = "it lacks a command that Toril needs; use Redis 7.0 or Valkey 7.2, or newer"
_PROTECTED = "it runs in protected mode and serves its own host only; set a password on it"
_IS_CLUSTER = (
    "it is a node of a cluster, and this touches keys in different slots; put a hash tag into the"
    " prefix, such as prefix='{bull}', or into the name of the queue, such as '{mail}'"
)
_IS_NODE = "it is a node of a cluster; write redis+cluster://host:port"
_NO_CLUSTER = "it is not a cluster; write redis:// instead of redis+cluster://"
_REPLICA = "it is a read-only replica; name the primary, or let redis+sentinel:// find it"

_UNUSABLE = (
    ("NOAUTH", _NO_LOGIN),
    ("Authentication required", _NO_LOGIN),
    ("Protocol error: unauthenticated", _NO_LOGIN),
    ("WRONGPASS", _WRONG_LOGIN),
    ("NOPERM", _NO_PERMISSION),
    ("ACL failure in script", _NO_PERMISSION),
    ("DENIED", _PROTECTED),
    ("CROSSSLOT", _IS_CLUSTER),
    ("DB index is out of range", _NO_DATABASE),
    ("invalid DB index", _NO_DATABASE),
    ("SELECT is not allowed in cluster mode", _NO_DATABASE),
    ("unknown command", _NO_COMMAND),
    ("This instance has cluster support disabled", _NO_CLUSTER),
)
"""How the answer begins, and what it means. The client library leaves out the most common codes."""
_UNUSABLE_CLASSES = {
    "AuthenticationError": _WRONG_LOGIN,
    "AuthenticationWrongNumberOfArgsError": _WRONG_LOGIN,
    "NoPermissionError": _NO_PERMISSION,
    "ClusterCrossSlotError": _IS_CLUSTER,
}
_UNKNOWN_FUNCTION = "Function not found"
_NO_FUNCTIONS = re.compile(
    r"(unknown command|no permissions to run the) ['`](fcall|function)", re.IGNORECASE
)
"""What a server without functions says, and one that does not let this user have them."""
_NO_SCRIPTS = re.compile(r"(unknown command|no permissions to run the) ['`]eval", re.IGNORECASE)
_TOO_LARGE = ("invalid bulk length", "max request size exceeded")
"""What Redis and Valkey say of a value beyond proto-max-bulk-len, and what hosted servers say."""
_COMPILER_OF_OLD = "unexpected symbol near '#'"
"""The first line of every script says ``#!lua``, which servers before 7.0 do not know."""


def why_unusable(error: BaseException) -> str:
    """Why no command will ever succeed on this server as things stand, or ""."""
    names = {cls.__name__ for cls in type(error).__mro__}
    message = str(error).removeprefix("ERR ")
    if "MasterNotFoundError" in names:
        return _WRONG_SENTINEL_LOGIN if "AuthenticationError" in message else ""
    for beginning, why in _UNUSABLE:
        if message.startswith(beginning):
            return why
    if _COMPILER_OF_OLD in message:
        return _TOO_OLD
    return next((why for name, why in _UNUSABLE_CLASSES.items() if name in names), "")


def why_not_primary(error: BaseException) -> str:
    """Why a server named by its address is the wrong one, or "".

    That may pass: a name can lead to another server soon, and a replica can be promoted.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    message = str(error)
    if "ReadOnlyError" in names or message.startswith("READONLY"):
        return _REPLICA
    if "MovedError" in names or message.startswith("MOVED"):
        return _IS_NODE
    return ""


def is_on_the_move(error: BaseException) -> bool:
    """Is the slot being moved to another node? Nothing was done, and it serves again soon."""
    return type(error).__name__ == "TryAgainError" or str(error).startswith("TRYAGAIN")


def is_too_large(error: BaseException) -> bool:
    """Is a value, or a whole request, larger than the server reads? Nothing was done."""
    return any(words in str(error) for words in _TOO_LARGE)


def forbids_scripts(error: BaseException) -> bool:
    """Does the server refuse scripts, or this user of it? There may be functions by now."""
    return _NO_SCRIPTS.search(str(error)) is not None


def classify(error: BaseException) -> Trouble:
    """Sort an error of the client library by its class names and its first word."""
    names = {cls.__name__ for cls in type(error).__mro__}
    message = str(error)
    if _UNKNOWN_FUNCTION in message:
        return Trouble.UNKNOWN_FUNCTION
    if _NO_FUNCTIONS.search(message):
        return Trouble.NO_FUNCTIONS
    if why_unusable(error):
        return Trouble.UNUSABLE
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
