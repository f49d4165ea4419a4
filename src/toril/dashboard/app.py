"""The ASGI app: its pages, what they are given, and what happens before a page sees a request."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from toril.client.connection import Connection, Target
from toril.dashboard import actions, showing
from toril.dashboard.actions import ACTIONS, Context, Form
from toril.dashboard.audit import AuditLog
from toril.dashboard.exporting import FORMATS, file_name, written
from toril.dashboard.folding import NotFound
from toril.dashboard.operations import Operations
from toril.dashboard.reading import MINUTES, Desk, Wanted
from toril.dashboard.redacting import Redact, Redactor
from toril.dashboard.security import (
    COOKIE,
    Authenticate,
    Guard,
    Refusal,
    User,
    csrf_token,
    set_cookie,
    with_headers,
)
from toril.errors import ServerError, TorilError
from toril.protocol.groups import GroupState
from toril.protocol.keys import check_prefix
from toril.protocol.reading import STATES

MOST_BODY = 4 * 1024 * 1024
MOST_FIELDS = 2000
PATIENCE_S = 1.0
MOST_PAGES_LIVE = 1000
MOST_PAGES_LIVE_OF_ONE = 200
"""So that nobody alone keeps all others out."""
LISTENER_CHECKED_S = 30.0
"""So often it is asked whether somebody with an open page may still look."""

Page = Callable[[Request], Awaitable[Response]]


def dashboard(
    *,
    connection: Target = None,
    prefix: str = "bull",
    authenticate: Authenticate | None = None,
    password: str | None = None,
    read_only: bool = False,
    allowed_hosts: Iterable[str] = (),
    redact: Redact | None = None,
) -> ASGIApp:
    """The dashboard as an ASGI app, to be served alone or mounted in another.

    ``authenticate`` gets each request and says who makes it: a ``User`` with a role, None to
    refuse, or a response such as a redirect to a login.  Instead of it, ``password`` asks for one.
    Without either only requests from this machine are served.  ``read_only`` lets nobody change
    anything.
    ``allowed_hosts`` are names by which the dashboard is reached.  ``redact`` hides parts of
    payloads: names of fields, or a function of a field's name and value, or True for all.
    """
    check_prefix(prefix)
    guard = Guard(
        authenticate=authenticate,
        password=password,
        read_only=read_only,
        allowed_hosts=allowed_hosts,
    )
    return Dashboard(connection, prefix, guard, Redactor(redact))


class Dashboard:
    """Opens the connection with the first request, so that mounting needs no lifespan."""

    def __init__(self, target: Target, prefix: str, guard: Guard, redactor: Redactor) -> None:
        self._target = target
        self._prefix = prefix
        self._guard = guard
        self._redactor = redactor
        self._pages: Pages | None = None
        self._files = _Files(directory=Path(__file__).parent / "static")
        self._app = Starlette(
            routes=[
                # No Mount: behind a proxy that takes a path away, it would look for /static twice.
                Route("/static/{path:path}", self._file, methods=["GET", "HEAD"]),
                Route("/{path:path}", self._serve, methods=["GET", "HEAD", "POST"]),
            ],
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, with_headers(send) if scope["type"] == "http" else send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

    async def close(self) -> None:
        """Stop what runs beside the pages, and close the connection if it is ours."""
        if self._pages is not None:
            pages, self._pages = self._pages, None
            await pages.close()

    async def _file(self, request: Request) -> Response:
        path = request.path_params["path"]
        if "\0" in path:
            raise HTTPException(404)
        return await self._files.get_response(path, request.scope)

    async def _serve(self, request: Request) -> Response:
        if self._pages is None:
            self._pages = Pages(self._target, self._prefix, self._guard, self._redactor)
        return await self._pages.serve(request)


class _Files(StaticFiles):
    """Our own files, which a browser may keep and asks for anew."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


class _Stream(StreamingResponse):
    """Events for one page; ``leave`` is called when it is over, even if it never began."""

    def __init__(self, told: AsyncIterator[str], leave: Callable[[], None]) -> None:
        super().__init__(told, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


class Pages:
    """All pages over one connection."""

    def __init__(self, target: Target, prefix: str, guard: Guard, redactor: Redactor) -> None:
        self._guard = guard
        self._prefix = prefix
        self._owns = not isinstance(target, Connection)
        self._connection = (
            target
            if isinstance(target, Connection)
            else Connection(target, client_name="toril-dashboard", patience_s=PATIENCE_S)
        )
        self._desk = Desk(self._connection, prefix, redactor)
        self._audit = AuditLog(self._connection, prefix)
        self._operations = Operations()
        self._templates = showing.make_environment()
        self._live: Counter[str] = Counter()
        self._gets: dict[str, Page] = {
            "": self._overview,
            "queue": self._queue,
            "job": self._job,
            "search": self._search,
            "dead-letters": self._letters,
            "groups": self._groups,
            "group": self._group,
            "lanes": self._lanes,
            "lane": self._lane,
            "schedules": self._schedules,
            "workers": self._workers,
            "flow": self._flow,
            "log": self._log,
            "export": self._export,
            "live": self._events,
        }

    async def close(self) -> None:
        await self._operations.close()
        await self._desk.close()
        if self._owns:
            await self._connection.close()

    async def serve(self, request: Request) -> Response:
        """Judge a request, then give it to its page; whatever goes wrong is a page as well."""
        request.state.session = request.cookies.get(COOKIE) or secrets.token_urlsafe(32)
        request.state.user = request.state.said = None
        try:
            response = await self._answer(request)
        except Refusal as error:
            response = self._failure(request, error.status, error.reason)
            if error.retry_after_s is not None:
                response.headers["Retry-After"] = str(error.retry_after_s)
        except NotFound as error:
            response = self._failure(request, 404, str(error))
        except ServerError as error:
            response = self._failure(request, 503, f"The server cannot be used: {error}")
        except TorilError as error:
            response = self._failure(request, actions.refusal_status(error), str(error))
        if COOKIE not in request.cookies and "set-cookie" not in response.headers:
            set_cookie(response, request, request.state.session)
        return response

    async def _answer(self, request: Request) -> Response:
        self._guard.check_host(request)
        path = request.path_params["path"].strip("/")
        if path == "login" and self._guard.has_login:
            return await self._login(request)
        user = await self._guard.user_of(request)
        if isinstance(user, Response):
            return user
        if user is None:
            if not self._guard.has_login:
                raise Refusal(401, "You have no access here.")
            if request.method == "POST" or path == "live":
                raise Refusal(401, "Your session has ended; log in again.")
            return RedirectResponse(showing.link(_root(request), "/login"), 303)
        request.state.user = user
        if request.method == "POST":
            return await self._post(request, path, user)
        page = self._gets.get(path)
        if page is None:
            raise NotFound("There is no such page.")
        request.state.said = await self._said(request)
        return await page(request)

    # ------------------------------------------------------------------------ changes

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._show(request, "login.html", is_wrong=False)
        form = await _form(request)
        self._guard.check_change(request, form.text("token"), None)
        session = self._guard.log_in(request, form.text("password"))
        if session is None:
            return self._show(request, "login.html", status=401, is_wrong=True)
        response = RedirectResponse(_root(request) + "/", 303)
        set_cookie(response, request, session)
        return response

    async def _post(self, request: Request, path: str, user: User) -> Response:
        form = await _form(request)
        if path == "logout":
            self._guard.check_change(request, form.text("token"), None)
            self._guard.log_out(request)
            response = RedirectResponse(_root(request) + "/", 303)
            response.delete_cookie(COOKIE, path=_root(request) or "/")
            return response
        self._guard.check_change(request, form.text("token"), user)
        verb = path.removeprefix("do/")
        prepare = ACTIONS.get(verb)
        if prepare is None or verb == path:
            raise NotFound("There is no such action.")
        find = self._desk.folding.maybe if verb == "add" else self._desk.known
        queue = await find(form.needed("queue"))
        context = Context(self._desk, self._audit, self._operations, user, form, queue)
        change = await prepare(context)
        if change.question is not None and form.text("confirmed") != change.question.answer:
            fields = [
                (name, value)
                for name, values in form.fields.items()
                if name not in ("token", "confirmed")
                for value in values
            ]
            return self._show(
                request,
                "confirm.html",
                question=change.question,
                verb=verb,
                fields=fields,
                back=_inside(form.text("back")),
                queue=queue.name,
            )
        note = await actions.make(context, change)
        if verb == "add":
            self._desk.finder.forget()
        back = _inside(form.text("back"))
        mark = "&" if "?" in back else "?"
        said = showing.link("", "", said=note, said_of=queue.name)
        return RedirectResponse(f"{_root(request)}{back}{mark}{said[1:]}", 303)

    # ------------------------------------------------------------------------ pages

    async def _overview(self, request: Request) -> Response:
        part = request.query_params.get("q", "")
        return self._show(
            request,
            "overview.html",
            overview=await self._desk.overview(part),
            health=await self._desk.health(),
            part=part,
            minutes=MINUTES,
        )

    async def _queue(self, request: Request) -> Response:
        query = request.query_params
        name = query.get("queue", "")
        page = await self._desk.queue_page(name)
        state = query.get("state") or next(
            (one for one in ("failed", "active", "waiting", "delayed") if page.counts.get(one)),
            "waiting",
        )
        wanted = _wanted(query)
        return self._show(
            request,
            "queue.html",
            queue=name,
            page=page,
            state=state,
            states=STATES,
            wanted=wanted,
            found=await self._desk.jobs(name, state, _number(query.get("start")), wanted),
            operations=self._operations.of(name),
        )

    async def _export(self, request: Request) -> Response:
        query = request.query_params
        name, state, form = query.get("queue", ""), query.get("state", ""), query.get("as", "")
        if form not in FORMATS:
            raise NotFound("Lists can be exported as json or csv.")
        letters = None
        if state == "dead-letters":
            letters = actions.letter_filter(Form({key: [one] for key, one in query.items()}))
        found = await self._desk.export(name, state, _wanted(query), letters)
        title = file_name(name, state, form)
        return StreamingResponse(
            written(form, found),
            media_type=FORMATS[form],
            headers={"Content-Disposition": f'attachment; filename="{title}"'},
        )

    async def _job(self, request: Request) -> Response:
        name, job_id = request.query_params.get("queue", ""), request.query_params.get("id", "")
        return self._show(
            request,
            "job.html",
            queue=name,
            page=await self._desk.job_page(name, job_id),
            as_json=showing.as_json,
        )

    async def _search(self, request: Request) -> Response:
        job_id = request.query_params.get("q", "").strip()
        queues = await self._desk.find_job(job_id) if job_id else []
        if len(queues) == 1:
            return RedirectResponse(
                showing.link(_root(request), "/job", queue=queues[0], id=job_id), 303
            )
        part = job_id.lower()
        names = [name for name in await self._desk.finder.names() if part and part in name.lower()]
        return self._show(request, "search.html", wanted=job_id, queues=queues, names=names[:50])

    async def _letters(self, request: Request) -> Response:
        name = request.query_params.get("queue", "")
        if not name:
            queues = await self._desk.letter_queues()
            left_out = await self._desk.left_out()
            return self._show(request, "letter_queues.html", queues=queues, left_out=left_out)
        form = Form({key: [value] for key, value in request.query_params.items()})
        return self._show(
            request,
            "letters.html",
            queue=name,
            page=await self._desk.letters(
                name, actions.letter_filter(form), _number(form.text("start"))
            ),
            wanted={key: form.text(key) for key in actions.LETTER_FILTERS},
            operations=self._operations.of(name),
        )

    async def _groups(self, request: Request) -> Response:
        name, state = request.query_params.get("queue", ""), request.query_params.get("state", "")
        if state and state not in list(GroupState):
            raise NotFound(f"Groups have no state {state!r}.")
        return self._show(
            request,
            "groups.html",
            queue=name,
            state=state,
            states=[one.value for one in GroupState],
            page=await self._desk.groups(name, state, _number(request.query_params.get("start"))),
            left_out=0 if name else await self._desk.left_out(),
        )

    async def _group(self, request: Request) -> Response:
        query = request.query_params
        name, group_id = query.get("queue", ""), query.get("id", "")
        start, step = _number(query.get("start")), _number(query.get("step"))
        page = await self._desk.group(name, group_id, start, step)
        return self._show(request, "group.html", queue=name, page=page)

    async def _lanes(self, request: Request) -> Response:
        name = request.query_params.get("queue", "")
        if not name:
            overview = await self._desk.overview()
            rows = [row for row in overview.rows if row.glance.lanes]
            left_out = overview.left_out
            return self._show(request, "lane_queues.html", rows=rows, left_out=left_out)
        by = "oldest" if request.query_params.get("by") == "oldest" else ""
        page = await self._desk.lanes(name, by)
        return self._show(request, "lanes.html", queue=name, page=page, by=by)

    async def _lane(self, request: Request) -> Response:
        query = request.query_params
        name = query.get("queue", "")
        page = await self._desk.lane(name, query.get("lane", ""), _number(query.get("start")))
        return self._show(request, "lane.html", queue=name, page=page, lane=page.lane)

    async def _schedules(self, request: Request) -> Response:
        name = request.query_params.get("queue", "")
        return self._show(
            request,
            "schedules.html",
            queue=name,
            rows=await self._desk.schedules(name),
            left_out=0 if name else await self._desk.left_out(),
        )

    async def _workers(self, request: Request) -> Response:
        name = request.query_params.get("queue", "")
        rows = await self._desk.workers(name)
        left_out = 0 if name else await self._desk.left_out()
        return self._show(request, "workers.html", queue=name, rows=rows, left_out=left_out)

    async def _flow(self, request: Request) -> Response:
        name, job_id = request.query_params.get("queue", ""), request.query_params.get("id", "")
        page = await self._desk.flow(name, job_id)
        return self._show(request, "flow.html", queue=name, page=page)

    async def _log(self, request: Request) -> Response:
        folded = await self._desk.folding.all()
        names = dict.fromkeys([*folded.parts, *(row.name for row in folded.rows)])
        entries = await self._audit.newest([*names])
        return self._show(
            request,
            "log.html",
            entries=entries,
            operations=self._operations.of(),
            left_out=folded.left_out,
        )

    async def _events(self, request: Request) -> Response:
        person = self._guard.person(request, request.state.user, request.state.session)
        if self._live.total() >= MOST_PAGES_LIVE or self._live[person] >= MOST_PAGES_LIVE_OF_ONE:
            raise Refusal(503, "Too many pages are open.")

        if request.method == "HEAD":
            raise Refusal(405, "The event stream is read with GET.")

        async def stream() -> AsyncIterator[str]:
            checked_at = time.monotonic()
            async for told in self._desk.pulse.listen():
                if time.monotonic() - checked_at >= LISTENER_CHECKED_S:
                    checked_at = time.monotonic()
                    if not isinstance(await self._guard.user_of(request), User):
                        return
                if not self._guard.may_listen_on(request):
                    return
                yield told

        def leave() -> None:
            self._live[person] -= 1
            if not self._live[person]:
                del self._live[person]

        # Counted when it is let in: many who come at once find each other counted.
        self._live[person] += 1
        return _Stream(stream(), leave)

    # ------------------------------------------------------------------------ showing

    async def _said(self, request: Request) -> Any:
        """The note of the change that led to this page."""
        note = request.query_params.get("said", "")
        name = request.query_params.get("said_of", "")
        if not note or not name:
            return None
        return await self._audit.one(self._desk.queue(name).name, note)

    def _show(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        user = request.state.user
        given = {
            "root": _root(request),
            "here": _here(request),
            "this_page": _here(request, but=()),
            "user": user,
            "may_operate": user is not None and user.may_operate,
            "has_login": self._guard.has_login,
            "token": csrf_token(request.state.session),
            "prefix": self._prefix,
            "queue": "",
            "said": request.state.said,
            "left_out": 0,
            **values,
        }
        text = self._templates.get_template(template).render(given)
        return HTMLResponse(text.encode("utf-8", "replace"), status)

    def _failure(self, request: Request, status: int, reason: str) -> Response:
        return self._show(request, "failure.html", status=status, reason=reason, code=status)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _here(request: Request, *, but: tuple[str, ...] = ("said", "said_of")) -> str:
    """The path and the query of this page inside the dashboard, without what was said on it."""
    query = {name: value for name, value in request.query_params.items() if name not in but}
    return showing.link("", "/" + quote(str(request.path_params.get("path", ""))), **query)


def _inside(path: str) -> str:
    """A path of this dashboard; whatever leads elsewhere becomes its front page."""
    is_ours = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_ours and path.isprintable() and path.isascii() and " " not in path else "/"


def _wanted(query: QueryParams) -> Wanted:
    return Wanted(
        query.get("name", ""),
        query.get("id", ""),
        query.get("lane", ""),
        query.get("group", ""),
        query.get("text", ""),
        _number(query.get("minutes")),
    )


def _number(text: str | None) -> int:
    text = text or ""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0


async def _form(request: Request) -> Form:
    if request.headers.get("content-type", "").partition(";")[0] != (
        "application/x-www-form-urlencoded"
    ):
        raise Refusal(415, "Only the dashboard's own forms are accepted.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise Refusal(413, f"The form is larger than {MOST_BODY:,} bytes.")
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="replace"
        )
    except ValueError as error:
        raise Refusal(400, "The form cannot be read.") from error
    return Form(fields)
