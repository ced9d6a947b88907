"""The routes of the console. All but those of the login are GET, so that the console can change nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.console.cluster_access import MAX_SUBJECTS, ClusterAccess, Reading
from tidelog.console.core.isr_history import SAMPLE_INTERVAL_MS
from tidelog.console.core.record_query import LIMITS, STARTS, FilterError, RecordQuery, cursor_text
from tidelog.console.core.record_scan import Budget
from tidelog.console.core.record_text import ShownRecord
from tidelog.console.login import ENDED, Login, LoginOptions, SessionGate, event
from tidelog.console.page_reader import Connect
from tidelog.console.readings import denial_text, is_denial, is_not_found
from tidelog.console.record_decoder import NO_SCHEMAS, RecordDecoder
from tidelog.console.record_search import RecordsFound, find_record, find_records
from tidelog.console.rendering import HERE, Renderer
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError
from tidelog.model.fair_budget import BudgetUse, FairBudget, Holding
from tidelog.observe.number_texts import time_text

MAX_VIEWERS: Final = 64
"""The most pages that receive live updates at a time. Users share them fairly."""
MAX_SUBJECTS_OF_A_SESSION: Final = 64
"""The most readings that are kept for a session."""
TOPICS_A_PAGE: Final = 200
MAX_SEARCHES: Final = 3
"""The most searches for records at a time. Users share them fairly: one alone may have two."""
_STOP_CHECK_S: Final = 0.25
SECURITY_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": (
        b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    # With no-referrer, browsers would send `Origin: null` with the login form.
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


DEFAULT_BUDGET: Final = Budget()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LivePage:
    """A page whose content is read again and again. `subject` identifies what viewers can share."""

    path: str
    title: Callable[[Request], str]
    template: str
    subject: Callable[[Request], Hashable]
    read: Callable[[ClusterAccess, Request], Callable[[], Any]]
    section: str
    values: Callable[[Request, Any], Mapping[str, Any]] = lambda request, value: {}


class SecurityHeaders:
    """Adds SECURITY_HEADERS to each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS.items()]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class NoLogin:
    """Gives all requests the same access."""

    def __init__(self, app: ASGIApp, access: ClusterAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["access"] = self._access
        await self._app(scope, receive, send)


class Console:
    """The pages of one cluster. `is_stopping` tells streams of live updates to end.

    `way` is how the console connects for everybody, or how each user logs in.
    """

    def __init__(
        self,
        way: Connect | LoginOptions,
        *,
        interval_ms: int,
        budget: Budget = DEFAULT_BUDGET,
        schemas: RecordDecoder = NO_SCHEMAS,
        sample_interval_ms: int = SAMPLE_INTERVAL_MS,
        is_stopping: Callable[[], bool] = lambda: False,
        wall: Callable[[], WallMs] = lambda: WallMs(time.time_ns() // 1_000_000),
        monotonic: Callable[[], MonotonicMs] = lambda: MonotonicMs(time.monotonic_ns() // 1_000_000),
    ) -> None:
        self._wall = wall
        self._interval_ms = interval_ms
        self._searchers = ThreadPoolExecutor(MAX_SEARCHES, "console-search")
        self._searches = FairBudget(MAX_SEARCHES)
        self._monotonic = monotonic
        self._budget = budget
        self._schemas = schemas
        self._sample_interval_ms = sample_interval_ms
        self._renderer = Renderer()
        self._is_stopping = is_stopping
        self._viewers = FairBudget(MAX_VIEWERS)
        self._gate: Middleware
        if isinstance(way, LoginOptions):
            self._everybody = None
            self._login: Login | None = Login(
                way, self._session_access, self._page_without_access, wall, monotonic
            )
            self._gate = Middleware(SessionGate, login=self._login)
        else:
            self._everybody = ClusterAccess(way, interval_ms, wall, monotonic, max_subjects=MAX_SUBJECTS)
            self._login = None
            self._gate = Middleware(NoLogin, access=self._everybody)

    def start(self) -> None:
        """Begins to sample the health of the cluster. With a login, the console has no user of its own."""
        if self._everybody is not None:
            self._everybody.sample_health(self._sample_interval_ms)

    def close(self) -> None:
        self._searchers.shutdown(wait=True, cancel_futures=True)
        if self._everybody is not None:
            self._everybody.end(waits=True)
        if self._login is not None:
            self._login.close()

    def _session_access(self, connect: Connect, user: str, can_log_out: bool) -> ClusterAccess:
        return ClusterAccess(
            connect,
            self._interval_ms,
            self._wall,
            self._monotonic,
            user=user,
            can_log_out=can_log_out,
            max_subjects=MAX_SUBJECTS_OF_A_SESSION,
        )

    def application(self, allowed_hosts: list[str]) -> Starlette:
        """Returns the application. `allowed_hosts` are the host names by which browsers may call it: a page
        of another site that resolves its own name to this address is refused.
        """
        routes: list[BaseRoute] = []
        for page in (*self._cluster_pages(), *self._group_pages()):
            routes.append(Route(page.path, self._page_of(page), methods=["GET"]))
            events = Route(f"/events{page.path}", self._events_of(page))
            events.methods = {"GET"}  # Starlette adds HEAD, whose answer would have no end
            routes.append(events)
        routes.append(Route("/topics/{topic}/records", self._records, methods=["GET"]))
        routes.append(Route("/topics/{topic}/records/{partition}/{offset}", self._record, methods=["GET"]))
        routes.append(Mount("/static", StaticFiles(directory=HERE / "static")))
        routes.append(Route("/livez", _live, methods=["GET"]))
        routes.append(Route("/metrics", self._metrics, methods=["GET"]))
        if self._login is not None:
            routes += self._login.routes()
        application = Starlette(
            routes=routes,
            middleware=[
                Middleware(SecurityHeaders),
                Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False),
                self._gate,
            ],
            exception_handlers={404: self._not_found},
        )
        # It would lead from https to http behind a proxy that terminates TLS.
        application.router.redirect_slashes = False
        return application

    def _cluster_pages(self) -> list[LivePage]:
        return [
            LivePage(
                "/",
                lambda request: "Overview",
                "overview.html",
                lambda request: "overview",
                lambda access, request: access.reader.overview,
                "overview",
            ),
            LivePage(
                "/topics",
                lambda request: "Topics",
                "topics.html",
                lambda request: "topics",
                lambda access, request: access.reader.topics,
                "topics",
                _chosen_topics,
            ),
            LivePage(
                "/topics/{topic}",
                lambda request: f"Topic {request.path_params['topic']}",
                "topic.html",
                lambda request: ("topic", request.path_params["topic"]),
                lambda access, request: lambda: access.reader.topic(request.path_params["topic"]),
                "topics",
            ),
            LivePage(
                "/settings",
                lambda request: "Settings",
                "settings.html",
                lambda request: ("settings", _broker_id(request)),
                lambda access, request: lambda: access.reader.settings(_broker_id(request)),
                "settings",
            ),
        ]

    def _group_pages(self) -> list[LivePage]:
        return [
            LivePage(
                "/groups",
                lambda request: "Groups",
                "groups.html",
                lambda request: "groups",
                lambda access, request: lambda: access.reader.run(access.groups.groups),
                "groups",
            ),
            LivePage(
                "/group",
                lambda request: f"Group {_group_id(request)}",
                "group.html",
                lambda request: ("group", _group_id(request)),
                lambda access, request: (
                    lambda: access.reader.run(
                        lambda cluster: access.groups.group(cluster, _group_id(request))
                    )
                ),
                "groups",
            ),
            LivePage(
                "/transactions",
                lambda request: "Open transactions",
                "transactions.html",
                lambda request: "transactions",
                lambda access, request: lambda: access.reader.run(access.groups.transactions),
                "transactions",
            ),
        ]

    # -- pages

    def _page_of(self, page: LivePage) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            reading = await self._read(page, request)
            return self._respond(
                request,
                "live_page.html",
                {
                    "title": page.title(request),
                    "section": page.section,
                    "fragment": page.template,
                    "events": f"/events{request.url.path}?{request.url.query}",
                    "interval_s": self._interval_ms / 1000,
                    **self._values(page, request, reading),
                },
                _status_of(reading),
            )

        return show

    def _events_of(self, page: LivePage) -> Callable[[Request], Awaitable[Response]]:
        async def stream(request: Request) -> Response:
            events = self._events(page, request)
            if await anext(events, None) is None:
                return Response("The console has too many viewers.", 503, media_type="text/plain")
            return StreamingResponse(events, media_type="text/event-stream")

        return stream

    async def _events(self, page: LivePage, request: Request) -> AsyncIterator[str]:
        """Yields an empty text once the viewer has a place, then the content of the page after each reading,
        but only its time if the content is the same. After the end of the session, it yields that. It ends
        when the place is needed for a user who has fewer of them.
        """
        access = _access_of(request)
        is_evicted = False

        def evict() -> None:
            nonlocal is_evicted
            is_evicted = True

        place = Holding(evict, self._now_s)
        if not self._viewers.resize(place, _sharer_of(request), 1, self._now_s()):
            return
        try:
            yield ""
            shown = ""
            while not (self._is_stopping() or is_evicted):
                reading = await self._read(page, request)
                if access.has_ended:
                    yield ENDED
                    return
                fragment = self._renderer.render(page.template, self._values(page, request, reading))
                if fragment != shown:
                    shown = fragment
                    yield event("fragment", fragment)
                yield event("read", time_text(reading.read_at_ms))
                for _ in range(max(1, int(self._interval_ms / 1000 / _STOP_CHECK_S))):
                    await asyncio.sleep(_STOP_CHECK_S)
                    if self._is_stopping() or access.has_ended or is_evicted:
                        break
        finally:
            self._viewers.forget(place, self._now_s())

    def _now_s(self) -> float:
        return self._monotonic() / 1000

    async def _read(self, page: LivePage, request: Request) -> Reading[Any]:
        access = _access_of(request)
        return await access.readings.get(page.subject(request), page.read(access, request))

    def _values(self, page: LivePage, request: Request, reading: Reading[Any]) -> dict[str, Any]:
        values = {} if reading.value is None else page.values(request, reading.value)
        user = _access_of(request).user
        return {
            "reading": reading,
            "value": reading.value,
            "error": None if reading.error is None else _text_of(reading.error, user),
            "denied": [denial_text(error, user) for error in getattr(reading.value, "denied", ())],
            **values,
        }

    # -- records

    async def _records(self, request: Request) -> Response:
        """Shows the records that a search finds within the budget."""
        name = request.path_params["topic"]
        fields = dict(request.query_params)
        values: dict[str, Any] = {
            "title": f"Records of {name}",
            "section": "topics",
            "topic": name,
            "fields": fields,
            "starts": STARTS,
            "limits": LIMITS,
            "budget": self._budget,
            "found": None,
            "error": None,
            "older": None,
        }
        try:
            query = RecordQuery.parse(fields)
        except FilterError as problem:
            return self._respond(
                request, "records.html", {**values, "query": None, "error": str(problem)}, 400
            )
        values["query"] = query

        def search(cluster: Cluster, silent: set[int]) -> RecordsFound:
            decode = self._schemas.of_topic(name)
            return find_records(cluster, name, query, self._budget, self._monotonic, silent, decode=decode)

        found, error, status = await self._search(request, search)
        if found is not None:
            kept = {key: text for key, text in fields.items() if text and key != "from"}
            values["next"] = _continuing(kept, found.positions)
            if found.older is not None:
                values["older"] = _continuing(kept, found.older)
        return self._respond(request, "records.html", {**values, "found": found, "error": error}, status)

    async def _record(self, request: Request) -> Response:
        """Shows one record with its whole content."""
        name = request.path_params["topic"]
        fields = {key: request.path_params[key] for key in ("partition", "offset")}
        try:
            query = RecordQuery.parse({**fields, "start": "offset"})
        except FilterError as problem:
            return await self._not_found(request, problem)
        partition, offset = query.partition, query.offset

        def search(cluster: Cluster, silent: set[int]) -> ShownRecord | None:
            decode = self._schemas.of_topic(name)
            return find_record(cluster, name, query, self._monotonic, silent, decode=decode)

        record, error, status = await self._search(request, search)
        is_found = record is not None and record.offset == offset
        values = {
            "title": f"Record {offset} of {name}, partition {partition}",
            "section": "topics",
            "topic": name,
            "partition": partition,
            "offset": offset,
            "record": record if is_found else None,
            "next_offset": None if record is None else record.offset,
            "error": error,
        }
        status = 404 if status == 200 and not is_found else status
        return self._respond(request, "record.html", values, status)

    async def _search(
        self, request: Request, search: Callable[[Cluster, set[int]], T]
    ) -> tuple[T | None, str | None, int]:
        """Runs a search on a connection of its own. Returns its result, an error and a status."""
        access = _access_of(request)
        place = Holding(progressed_s=self._now_s)
        if not self._searches.resize(place, _sharer_of(request), 1, self._now_s()):
            return None, "Other searches are running. Try again when one has ended.", 503
        try:
            found = await access.search(self._searchers, search)
        except (ClientError, KafkaError) as error:
            return None, f"{_text_of(error, access.user)}.", _status_of_error(error)
        finally:
            self._searches.forget(place, self._now_s())
        return found, None, 200

    async def _metrics(self, request: Request) -> Response:
        """Shows the budgets of the console to Prometheus. It says nothing about users and the cluster."""
        uses = {"console_viewers": self._viewers.use, "console_searches": self._searches.use}
        if self._login is not None:
            uses["console_sessions"] = self._login.sessions_use
        return PlainTextResponse(_metrics_text(uses))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return self._respond(
            request,
            "message.html",
            {"title": "Not found", "section": "", "message": f"There is no page {request.url.path}."},
            404,
        )

    def _respond(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> HTMLResponse:
        access: ClusterAccess | None = request.state.access
        if access is None:
            return self._page_without_access(template, values, status)
        whose = {"has_access": True, "user": access.user, "can_log_out": access.can_log_out}
        return HTMLResponse(self._renderer.render(template, {**whose, **values}), status)

    def _page_without_access(self, template: str, values: Mapping[str, Any], status: int) -> HTMLResponse:
        page = self._renderer.render(template, {"has_access": False, "user": "", **values})
        return HTMLResponse(page, status)


async def _live(request: Request) -> Response:
    """Answers the probes of Kubernetes. It says nothing about the cluster."""
    return PlainTextResponse("ok\n")


def _metrics_text(uses: Mapping[str, BudgetUse]) -> str:
    """Returns budgets, by name, in Prometheus' text format and under the names that brokers use."""
    lines = []
    for name, kind, values in (
        ("held", "gauge", {budget: use.held for budget, use in uses.items()}),
        ("total", "gauge", {budget: use.total for budget, use in uses.items()}),
        ("evictions_total", "counter", {budget: use.evicted_total for budget, use in uses.items()}),
    ):
        lines.append(f"# TYPE tidelog_budget_{name} {kind}")
        lines += [f'tidelog_budget_{name}{{budget="{budget}"}} {value}' for budget, value in values.items()]
    return "\n".join(lines) + "\n"


def _access_of(request: Request) -> ClusterAccess:
    access: ClusterAccess = request.state.access
    return access


def _sharer_of(request: Request) -> Hashable:
    """Returns who shares viewers and searches with others: a user, or an address if the console has no
    login.
    """
    return _access_of(request).sharer or (request.client.host if request.client is not None else "")


def _text_of(error: ClientError | KafkaError, user: str) -> str:
    """Returns one sentence without its period."""
    if isinstance(error, KafkaError) and is_denial(error):
        return denial_text(error, user)
    return str(error).rstrip(".")


def _status_of(reading: Reading[Any]) -> int:
    if reading.value is not None or reading.error is None:
        return 200
    return _status_of_error(reading.error)


def _status_of_error(error: ClientError | KafkaError) -> int:
    if is_denial(error):
        return 403
    return 404 if is_not_found(error) else 502


def _continuing(fields: Mapping[str, str], positions: Mapping[int, int]) -> str:
    """Returns the query of a search that continues at these offsets. The text of thousands of partitions must
    be an address that servers accept.
    """
    return urlencode({**fields, "from": cursor_text(positions)}, safe=":,")


def _group_id(request: Request) -> str:
    return request.query_params.get("id", "")


def _broker_id(request: Request) -> int | None:
    text = request.query_params.get("broker", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _page_number(request: Request) -> int:
    text = request.query_params.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def _chosen_topics(request: Request, value: Any) -> Mapping[str, Any]:
    """Returns the topics of one page of the list, of those whose names contain the search text."""
    search = request.query_params.get("q", "").strip()
    shows_internal = request.query_params.get("internal") == "1"
    found = [row for row in value.rows if search in row.name and (shows_internal or not row.is_internal)]
    page_count = max(1, -(-len(found) // TOPICS_A_PAGE))
    page = min(_page_number(request), page_count)
    return {
        "search": search,
        "shows_internal": shows_internal,
        "rows": found[(page - 1) * TOPICS_A_PAGE : page * TOPICS_A_PAGE],
        "found_count": len(found),
        "page": page,
        "page_count": page_count,
    }
