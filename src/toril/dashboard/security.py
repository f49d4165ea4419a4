"""Who may look, who may change, and what a browser is told not to do.

S1  without a password and without ``authenticate``, only this machine is served
S2  the Host of a request is one that was allowed: a name that was rebound to us is refused
S3  what changes something is a POST from our own page, with the token of the session
S4  a page runs no script but our files, is framed by nobody and is stored nowhere
S5  a password is compared in constant time, and guessed at only a few times a minute
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from toril.errors import InvalidOptionError

COOKIE = "toril-dashboard"
SESSION_S = 12 * 3600
MOST_SESSIONS = 10_000
SHORTEST_PASSWORD = 8

GUESSES = 5
"""Wrong passwords from one address in ``GUESSES_S``."""
GUESSES_OF_ALL = 50
GUESSES_S = 60.0
MOST_ADDRESSES = 10_000

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": a browser then says "Origin: null" of our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Role(StrEnum):
    """What somebody may do."""

    READ = "read"
    OPERATE = "operate"


@dataclass(frozen=True)
class User:
    """Somebody who was let in: the name is written beside each change."""

    name: str
    role: Role = Role.READ

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "role", Role(self.role))
        except ValueError:
            raise InvalidOptionError(
                f"role={self.role!r} of user {self.name!r} is not a role; use 'read' or 'operate'"
            ) from None

    @property
    def may_operate(self) -> bool:
        return self.role is Role.OPERATE


Answer = User | Response | None
Authenticate = Callable[[Request], Answer | Awaitable[Answer]]
"""Says who makes a request: a ``User``, None to refuse, or a response such as a redirect."""


class Refusal(Exception):
    """A request that is not served; ``status`` and ``reason`` are what the page says."""

    def __init__(self, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class Guard:
    """Judges every request before a page sees it."""

    def __init__(
        self,
        *,
        authenticate: Authenticate | None,
        password: str | None,
        read_only: bool,
        allowed_hosts: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if authenticate is not None and password is not None:
            raise InvalidOptionError("give authenticate= or password=, not both")
        if password is not None and len(password) < SHORTEST_PASSWORD:
            raise InvalidOptionError(
                "the dashboard's password is too short;"
                f" use at least {SHORTEST_PASSWORD} characters"
            )
        if isinstance(allowed_hosts, str):
            raise InvalidOptionError("allowed_hosts= is a list of names, not one string")
        self._authenticate = authenticate
        self._password = None if password is None else _digest(password)
        self._read_only = read_only
        self._hosts = frozenset(name.lower().strip("[]") for name in allowed_hosts)
        self._clock = clock
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._guesses = Guesses(clock)

    @property
    def has_login(self) -> bool:
        return self._password is not None

    def check_host(self, request: Request) -> None:
        """S1 and S2."""
        name = host_name(request)
        if not name:
            raise self._unknown(request.headers.get("host", ""))
        if self._authenticate is None and self._password is None:
            client = request.client.host if request.client else ""
            if not is_loopback(client) or any(one in request.headers for one in _FORWARDED):
                raise Refusal(
                    403,
                    "Without a password the dashboard serves this machine only, and no proxy."
                    " Give it a password, or authenticate=.",
                )
        if self._hosts and name in self._hosts:
            return
        if self._authenticate is not None:
            # The app around it knows its own names; with a list it is held to that.
            if self._hosts:
                raise self._unknown(name)
            return
        if name in _LOCAL_NAMES or (self._password is not None and _is_address(name)):
            return
        raise self._unknown(name)

    def _unknown(self, name: str) -> Refusal:
        return Refusal(421, f"The dashboard does not answer to the host name {name[:80]!r}.")

    async def user_of(self, request: Request) -> User | Response | None:
        """Who makes the request, or None when somebody has to log in first."""
        user: User | Response | None
        if self._authenticate is not None:
            answer = self._authenticate(request)
            user = await answer if inspect.isawaitable(answer) else answer
            if user is not None and not isinstance(user, (User, Response)):
                raise InvalidOptionError(
                    f"authenticate= returned {type(user).__name__};"
                    " it returns a toril.dashboard.User, a response, or None"
                )
        elif self._password is not None:
            user = User("password", Role.OPERATE) if self._has_session(request) else None
        else:
            user = User("local", Role.OPERATE)
        if self._read_only and isinstance(user, User):
            return User(user.name, Role.READ)
        return user

    def may_listen_on(self, request: Request) -> bool:
        """Is the session of an open page still there? After a logout it is told nothing more."""
        return self._password is None or self._has_session(request)

    def person(self, request: Request, user: User, session: str) -> str:
        """Whom the open pages of a request count for."""
        return session if self._authenticate is None else f"user {user.name}"

    def _has_session(self, request: Request) -> bool:
        ends = self._sessions.get(request.cookies.get(COOKIE, ""))
        return ends is not None and ends > self._clock()

    def log_in(self, request: Request, password: str) -> str | None:
        """A new session for whoever knows the password; None for others, who may not try often."""
        address = request.client.host if request.client else ""
        self._guesses.check(address)
        if self._password is None or not hmac.compare_digest(_digest(password), self._password):
            self._guesses.note(address)
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = self._clock() + SESSION_S
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def log_out(self, request: Request) -> None:
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def check_change(self, request: Request, token: str, user: User | None) -> None:
        """S3; without a user it is the login that is checked."""
        check_same_origin(request)
        session = request.cookies.get(COOKIE, "")
        if not session or not hmac.compare_digest(token.encode(), csrf_token(session).encode()):
            raise Refusal(
                403, "The form belongs to another session. Reload the page and try again."
            )
        if user is not None and not user.may_operate:
            raise Refusal(403, "You can look, but you cannot change anything here.")


class Guesses:
    """Wrong passwords of the last minute, by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=GUESSES_OF_ALL)

    def check(self, address: str) -> None:
        """Refuse who has guessed too often, right or wrong."""
        now = self._clock()
        mine = self._by_address.get(address, deque())
        for times, most in ((mine, GUESSES), (self._all, GUESSES_OF_ALL)):
            if len(times) >= most and now - times[0] < GUESSES_S:
                wait_s = int(GUESSES_S - (now - times[0])) + 1
                raise Refusal(
                    429, f"Too many wrong passwords. Try again in {wait_s} seconds.", wait_s
                )

    def note(self, address: str) -> None:
        now = self._clock()
        self._by_address.setdefault(address, deque(maxlen=GUESSES)).append(now)
        self._by_address.move_to_end(address)
        if len(self._by_address) > MOST_ADDRESSES:
            self._by_address.popitem(last=False)
        self._all.append(now)


def check_same_origin(request: Request) -> None:
    """A browser says where a form comes from; one that says nothing is no browser of ours."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_ours = site == "same-origin"
    else:
        is_ours = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours:
        raise Refusal(
            403,
            "The request does not come from a page of this dashboard."
            " If it is behind a proxy, let the proxy forward the Host header.",
        )


def csrf_token(session: str) -> str:
    """The token of the forms of a session: nobody who lacks the cookie knows it."""
    return hashlib.sha256(f"toril dashboard form {session}".encode()).hexdigest()


def set_cookie(response: Response, request: Request, session: str) -> None:
    response.set_cookie(
        COOKIE,
        session,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="strict",
        secure=is_over_tls(request),
    )


def is_over_tls(request: Request) -> bool:
    """Does the browser speak TLS, with us or with the proxy in front of us?

    Anybody can send the header; all it does is to keep a cookie from plain connections.
    """
    told = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    forwarded = request.headers.get("forwarded", "").partition(",")[0].lower().replace('"', "")
    is_told = told == "https" or "proto=https" in re.split(r"\s*;\s*", forwarded)
    return request.url.scheme == "https" or is_told


def with_headers(send: Send) -> Send:
    """S4, for every response whatever made it."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return guarded


def host_name(request: Request) -> str:
    """The name in the Host header, without its port; empty when it is none."""
    hosts = request.headers.getlist("host")
    found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if found is None or int(found[3] or 0) > 65_535:
        return ""  # a proxy may read another name out of it than we do
    return (found[1] or found[2]).lower()


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    """Nobody can rebind a number."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
