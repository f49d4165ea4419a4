"""Who is let in, what they may do, and what a browser is told: each attacked."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Mount

from tests.dashboard.conftest import HOST, Visitor
from tests.helpers import wait_until
from toril import InvalidInputError, Queue
from toril.dashboard import Role, User, dashboard
from toril.dashboard.actions import ACTIONS
from toril.dashboard.security import COOKIE, GUESSES, GUESSES_OF_ALL, Guard, Guesses, Refusal

Visit = Callable[..., Visitor]
PASSWORD = "correct horse"


@pytest.fixture
async def queue(queue: Queue) -> Queue:
    await queue.add("charge", {"card": "41111111", "deep": [{"Token": "s3cret"}]}, job_id="one")
    return queue


async def log_in(visitor: Visitor, password: str = PASSWORD) -> httpx.Response:
    await visitor.get("/login")
    return await visitor.post("/login", password=password)


# ---------------------------------------------------------------------------- who is let in


async def test_without_a_password_only_this_machine_is_served(visit: Visit):
    for address in ("192.0.2.7", "10.0.0.1", "testclient", ""):
        assert (await visit((address, 1)).get("/")).status_code == 403, address
    for address in ("127.0.0.1", "127.8.8.8", "::1"):
        assert (await visit((address, 1)).get("/")).status_code == 200, address


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
async def test_a_proxy_on_this_machine_does_not_open_it_to_others(visit: Visit, header: str):
    assert (await visit().get("/", headers={header: "192.0.2.7"})).status_code == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8787",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "",
        "[::",
        "a@localhost:x",
    ],
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(visit: Visit, host: str):
    for visitor in (visit(), visit(password=PASSWORD)):
        for path in ("/", "/login", "/live"):
            answer = await visitor.get(path, headers={"Host": host})
            assert answer.status_code == 421, (host, path)


async def test_names_that_were_allowed_are_answered_to(visit: Visit):
    visitor = visit(password=PASSWORD, allowed_hosts=["Jobs.example.com"])
    for host in (
        "jobs.example.com",
        "JOBS.EXAMPLE.COM:8443",
        "localhost",
        "10.1.2.3:80",
        "[::1]:1",
    ):
        assert (await visitor.get("/login", headers={"Host": host})).status_code == 200, host
    assert (await visit().get("/", headers={"Host": "10.1.2.3"})).status_code == 421


async def test_nothing_is_shown_before_the_password(visit: Visit, queue: Queue):
    visitor = visit(("192.0.2.7", 1), password=PASSWORD)
    for path in ("/", "/queue?queue=pay", "/job?queue=pay&id=one", "/log", "/nothing"):
        answer = await visitor.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login"
    assert (await visitor.get("/live")).status_code == 401
    assert (await visitor.do("pause", queue="pay")).status_code == 401
    assert not await queue.is_paused()

    assert (await log_in(visitor, "wrong horse")).status_code == 401
    before = visitor.http.cookies[COOKIE]
    answer = await log_in(visitor)

    assert answer.status_code == 303
    assert visitor.http.cookies[COOKIE] != before, "a session that somebody planted is not kept"
    assert "pay" in (await visitor.get("/")).text
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie

    session = visitor.http.cookies[COOKIE]
    await visitor.post("/logout")
    visitor.http.cookies.set(COOKIE, session, domain="127.0.0.1")
    assert (await visitor.get("/")).status_code == 303, "a session that was ended is over"


async def test_over_https_the_cookie_is_for_https_only(visit: Visit):
    visitor = visit(password=PASSWORD)
    answer = await visitor.get(f"https://{HOST}/login")

    assert "secure" in answer.headers["set-cookie"].lower()


async def test_passwords_are_compared_in_constant_time(
    visit: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
):
    """By their hashes, which are equally long: how long a guess takes tells nothing."""
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def noting(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return bool(real(one, other))

    visitor = visit(password="long enough")
    await visitor.get("/login")
    monkeypatch.setattr(hmac, "compare_digest", noting)
    for guess in ("", "l", "long enoug", "x" * 1000):
        await visitor.post("/login", password=guess)

    assert compared.count((32, 32)) == 4


async def test_a_session_ends(visit: Visit):
    now = [0.0]
    guard = Guard(
        authenticate=None,
        password=PASSWORD,
        read_only=False,
        allowed_hosts=(),
        clock=lambda: now[0],
    )

    def request(cookie: str = "") -> Request:
        headers = [(b"cookie", f"{COOKIE}={cookie}".encode())]
        return Request({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)})

    session = guard.log_in(request(), PASSWORD)
    assert session is not None
    assert await guard.user_of(request(session)) is not None
    now[0] = 12 * 3600.0 + 1
    assert await guard.user_of(request(session)) is None


async def test_passwords_are_guessed_at_only_a_few_times_a_minute(visit: Visit):
    visitor = visit(("192.0.2.7", 1), password=PASSWORD)
    for _ in range(GUESSES):
        assert (await log_in(visitor, "guess")).status_code == 401

    refused = await log_in(visitor)

    assert refused.status_code == 429, "and the right one is not tried either"
    assert int(refused.headers["retry-after"]) <= 61
    other = Visitor(visitor.app, ("192.0.2.8", 1))
    assert (await log_in(other)).status_code == 303, "others are not locked out by one"
    await other.http.aclose()


def test_many_addresses_together_do_not_guess_more():
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    for number in range(GUESSES_OF_ALL):
        guesses.check(f"192.0.2.{number}")
        guesses.note(f"192.0.2.{number}")
    with pytest.raises(Refusal, match="Too many"):
        guesses.check("198.51.100.1")
    now[0] = 61.0
    guesses.check("198.51.100.1")


def test_what_would_be_unsafe_is_refused_at_the_start():
    for wrong in (
        {"password": "short"},
        {"password": ""},
        {"password": PASSWORD, "authenticate": lambda request: None},
        {"allowed_hosts": "localhost"},
        {"redact": "card"},
    ):
        with pytest.raises(InvalidInputError):
            dashboard(**wrong)
    with pytest.raises(InvalidInputError):
        User("ann", "admin")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- roles


async def test_the_app_around_it_says_who_may_what(url: str, prefix: str, queue: Queue):
    async def current(request: Request) -> Any:
        who = request.headers.get("x-user")
        if who == "stranger":
            return RedirectResponse("/sign-in")
        return {"ann": User("ann", Role.OPERATE), "bob": User("bob", "read")}.get(who or "")  # type: ignore[arg-type]

    inner = dashboard(connection=url, prefix=prefix, authenticate=current)
    visitor = Visitor(Starlette(routes=[Mount("/toril", inner)]), ("192.0.2.7", 1))
    http = visitor.http

    assert (await http.get("/toril/")).status_code == 401
    away = await http.get("/toril/", headers={"x-user": "stranger"})
    assert (away.status_code, away.headers["location"]) == (307, "/sign-in")
    page = await http.get("/toril/queue?queue=pay", headers={"x-user": "bob", "Host": "any.name"})
    assert page.status_code == 200
    assert 'action="/toril/do/' not in page.text.replace(
        'action="/toril/do/retry" class="list"', ""
    )
    assert 'href="/toril/static/style.css"' in page.text
    assert (await http.get("/toril/static/style.css")).status_code == 200

    await http.get("/toril/", headers={"x-user": "ann"})
    from toril.dashboard.security import csrf_token

    token = csrf_token(next(one.value for one in http.cookies.jar if one.name == COOKIE))
    sent = {"token": token, "queue": "pay", "back": "/queue?queue=pay"}
    for who, status in (("bob", 403), ("", 401), ("ann", 303)):
        answer = await http.post(
            "/toril/do/pause", data=sent, headers={"x-user": who, "Sec-Fetch-Site": "same-origin"}
        )
        assert answer.status_code == status, who
        assert await queue.is_paused() is (who == "ann")
    assert answer.headers["location"].startswith("/toril/queue?queue=pay&said=")
    log = await http.get("/toril/log", headers={"x-user": "bob"})
    assert re.search(r"ann.*pause the queue", log.text, re.DOTALL)
    await http.aclose()
    await inner.close()  # type: ignore[attr-defined]


async def test_nobody_changes_anything_where_all_may_only_read(visit: Visit, queue: Queue):
    visitor = visit(read_only=True)
    for verb in ACTIONS:
        assert (await visitor.do(verb, queue="pay", id="one")).status_code == 403, verb
    for path in ("/queue?queue=pay", "/job?queue=pay&id=one", "/schedules"):
        page = (await visitor.get(path)).text
        assert "Remove" not in page, path


# ---------------------------------------------------------------------------- forged requests


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.com"},
        {"Origin": "null"},
        {"Origin": f"http://{HOST}.evil.com"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": f"http://{HOST}"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=str,
)
async def test_a_form_of_another_page_changes_nothing(
    visit: Visit, queue: Queue, headers: dict[str, str]
):
    visitor = visit()
    await visitor.get("/")
    for verb in ACTIONS:
        answer = await visitor.post(f"/do/{verb}", queue="pay", id="one", headers=headers)
        assert answer.status_code == 403, verb
    assert not await queue.is_paused()


async def test_a_form_without_the_token_of_the_session_changes_nothing(visit: Visit, queue: Queue):
    visitor, other = visit(), visit()
    await visitor.get("/")
    await other.get("/")
    for token in ("", "x", other.token, visitor.http.cookies[COOKIE], "é" * 64):
        assert (await visitor.do("pause", queue="pay", token=token)).status_code == 403
    visitor.http.cookies.clear()
    answer = await visitor.post("/do/pause", queue="pay")
    assert answer.status_code == 403
    assert not await queue.is_paused()

    await visitor.get("/")
    headers = {"Origin": f"http://{HOST}"}
    assert (await visitor.post("/do/pause", queue="pay", headers=headers)).status_code == 303
    assert await queue.is_paused()


async def test_only_a_form_changes_anything(visit: Visit, queue: Queue):
    visitor = visit()
    await visitor.get("/")
    same = {"Sec-Fetch-Site": "same-origin"}
    sent = {"token": visitor.token, "queue": "pay"}

    assert (await visitor.get("/do/pause", params=sent)).status_code == 404
    assert (await visitor.http.post("/do/pause", json=sent, headers=same)).status_code == 415
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert (await visitor.http.request(method, "/do/pause")).status_code == 405
    big = await visitor.do("add", queue="pay", name="n", data="x" * 5_000_000)
    assert big.status_code == 413
    many = await visitor.http.post(
        "/do/pause",
        content="a=1&" * 5000,
        headers={**same, "Content-Type": "application/x-www-form-urlencoded"},
    )
    assert many.status_code == 400
    assert not await queue.is_paused()


@pytest.mark.parametrize(
    "back",
    [
        "//evil.com",
        "https://evil.com",
        "/\\evil.com",
        "evil",
        "/a\r\nSet-Cookie: x=1",
        "/\t/evil.com",
        "/ü",
    ],
)
async def test_nobody_is_sent_elsewhere_afterwards(visit: Visit, queue: Queue, back: str):
    answer = await visit().do("pause", queue="pay", back=back)

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/?said=")


# -------------------------------------------------------------------------- what a browser is told


async def test_every_answer_tells_the_browser_what_not_to_do(visit: Visit, queue: Queue):
    visitor = visit()
    answers = [
        await visitor.get("/"),
        await visitor.get("/nothing"),
        await visitor.get("/static/app.js"),
        await visitor.get("/static/../app.py"),
        await visitor.do("pause", queue="pay"),
        await visitor.get("/", headers={"Host": "evil.com"}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
    assert answers[0].headers["cache-control"] == "no-store"
    assert answers[3].status_code == 404


# ---------------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    "redact",
    [["card", "TOKEN"], True, lambda name, value: "hidden" if name in ("card", "Token") else value],
    ids=["names", "all", "a function"],
)
async def test_what_is_masked_is_nowhere(visit: Visit, queue: Queue, url: str, redact: Any):
    visitor = visit(redact=redact)
    await queue.cancel("one")
    for path in ("/", "/queue?queue=pay", "/job?queue=pay&id=one"):
        page = (await visitor.get(path)).text
        assert "41111111" not in page
        assert "s3cret" not in page
    assert "Edit and retry" not in page
    refused = await visitor.do("edit-retry", queue="pay", id="one", data='{"card": "•••"}')
    assert refused.status_code == 400
    job = await queue.get_job("one")
    assert job is not None
    assert job.data["card"] == "41111111"


# ---------------------------------------------------------------------------- behind a proxy


async def test_files_are_found_behind_a_proxy_that_takes_a_path_away(url: str, prefix: str):
    """The server is told the path as root_path; whether the proxy removes it or not, it works."""
    app: Any = dashboard(connection=url, prefix=prefix)
    for path in ("/static/app.js", "/tools/toril/static/app.js"):
        transport = httpx.ASGITransport(app=app, root_path="/tools/toril")
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as browser:
            answer = await browser.get(path)
            page = await browser.get(path.replace("static/app.js", ""))
            assert answer.status_code == 200, path
            assert "javascript" in answer.headers["content-type"]
            assert '"/tools/toril/static/app.js"' in page.text
            for odd in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "%00", "", "vendor"):
                missing = await browser.get(path.replace("app.js", odd))
                assert "import" not in missing.text, odd
    await app.close()


@pytest.mark.parametrize(
    ("header", "value", "is_secure"),
    [
        ("X-Forwarded-Proto", "https", True),
        ("X-Forwarded-Proto", "HTTPS, http", True),
        ("X-Forwarded-Proto", "http, https", False),
        ("Forwarded", 'for=1.2.3.4; proto="https";by=x', True),
        ("Forwarded", "for=1.2.3.4;proto=http", False),
    ],
)
async def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_only(
    visit: Visit, header: str, value: str, is_secure: bool
):
    answer = await visit(password=PASSWORD).get("/login", headers={header: value})

    assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


@pytest.mark.parametrize("host", ["", "a b", "a@b", "localhost:99999", "[::1", "a/b", "\\evil"])
async def test_a_host_that_is_no_name_is_refused_whoever_asks(url: str, prefix: str, host: str):
    """Also where the app around the dashboard says who may look."""
    app: Any = dashboard(connection=url, prefix=prefix, authenticate=lambda _: User("anna"))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url=f"http://{HOST}"
    ) as browser:
        answer = await browser.get("/", headers={"Host": host})
        twice = await browser.get("/", headers=[("Host", HOST), ("Host", "evil.example")])
    await app.close()

    assert (answer.status_code, twice.status_code) == (421, 421)


# ---------------------------------------------------------------------------- open pages


async def stream_of(app: Any, cookie: str) -> tuple[asyncio.Task[None], list[Any]]:
    """An open page: what it is sent arrives in the list."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", HOST.encode()), (b"cookie", f"{COOKIE}={cookie}".encode())]
    scope = {"type": "http", "method": "GET", "path": "/live", "raw_path": b"/live"}
    scope |= {"query_string": b"", "headers": headers, "client": ("127.0.0.1", 1)}
    scope |= {"scheme": "http", "root_path": "", "server": ("127.0.0.1", 8787)}
    task = asyncio.create_task(app(scope, asyncio.Event().wait, send))
    await wait_until(lambda: bool(sent))
    return task, sent


async def test_an_open_page_is_told_nothing_after_the_logout(visit: Visit, queue: Queue):
    visitor = visit(password=PASSWORD)
    await visitor.get("/login")
    await visitor.post("/login", password=PASSWORD)
    task, sent = await stream_of(visitor.app, visitor.http.cookies[COOKIE])
    await wait_until(lambda: any(b"tick" in one.get("body", b"") for one in sent))

    await visitor.post("/logout")
    told = len(sent)
    await queue.add("a", {})

    await asyncio.wait_for(task, 60)
    assert not any(b"tick" in one.get("body", b"") for one in sent[told:])


async def test_one_person_cannot_use_up_all_streams(
    visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.app.MOST_PAGES_LIVE_OF_ONE", 2)
    app = visit().app
    greedy = [await stream_of(app, "greedy") for _ in range(3)]
    other = await stream_of(app, "other")

    assert [sent[0]["status"] for _, sent in greedy] == [200, 200, 503]
    assert other[1][0]["status"] == 200

    for task, _ in [*greedy, other]:
        task.cancel()
    await asyncio.gather(*(task for task, _ in [*greedy, other]), return_exceptions=True)
    again = await stream_of(app, "greedy")
    assert again[1][0]["status"] == 200
    again[0].cancel()
    await asyncio.gather(again[0], return_exceptions=True)
