"""The routes of the console. All are GET, so that the console can change nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog.console.cluster_reader import ClusterReader, Connect
from tidelog.console.rendering import HERE, Renderer, time_text
from tidelog.console.shared_reading import Reading, SharedReadings
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.instants import MonotonicMs, WallMs

MAX_VIEWERS: Final = 64
"""The most pages that receive live updates at a time."""
TOPICS_A_PAGE: Final = 200
_STOP_CHECK_S: Final = 0.25
_NOT_FOUND: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})
SECURITY_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": (
        b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True, slots=True)
class LivePage:
    """A page whose content is read again and again. `subject` identifies what viewers can share."""

    path: str
    title: Callable[[Request], str]
    template: str
    subject: Callable[[Request], Hashable]
    read: Callable[[Request], Callable[[], Any]]
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


class Console:
    """The pages of one cluster. `is_stopping` tells streams of live updates to end."""

    def __init__(
        self,
        connect: Connect,
        *,
        interval_ms: int,
        is_stopping: Callable[[], bool] = lambda: False,
        wall: Callable[[], WallMs] = lambda: WallMs(time.time_ns() // 1_000_000),
        monotonic: Callable[[], MonotonicMs] = lambda: MonotonicMs(time.monotonic_ns() // 1_000_000),
    ) -> None:
        self._reader = ClusterReader(connect, wall, monotonic)
        # One thread, because the client is not thread-safe, and so that the console asks one thing at a time.
        self._worker = ThreadPoolExecutor(1, "console-reader")
        self._readings = SharedReadings(interval_ms, self._run, wall, monotonic)
        self._renderer = Renderer()
        self._is_stopping = is_stopping
        self._viewers = 0

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._reader.close()

    def application(self, allowed_hosts: list[str]) -> Starlette:
        """Returns the application. `allowed_hosts` are the host names by which browsers may call it: a page
        of another site that resolves its own name to this address is refused.
        """
        routes: list[BaseRoute] = []
        for page in self._live_pages():
            routes.append(Route(page.path, self._page_of(page), methods=["GET"]))
            routes.append(Route(f"/events{page.path}", self._events_of(page), methods=["GET"]))
        routes.append(Mount("/static", StaticFiles(directory=HERE / "static")))
        return Starlette(
            routes=routes,
            middleware=[
                Middleware(SecurityHeaders),
                Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False),
            ],
            exception_handlers={404: self._not_found},
        )

    def _live_pages(self) -> list[LivePage]:
        reader = self._reader
        return [
            LivePage(
                "/",
                lambda request: "Overview",
                "overview.html",
                lambda request: "overview",
                lambda request: reader.overview,
                "overview",
            ),
            LivePage(
                "/topics",
                lambda request: "Topics",
                "topics.html",
                lambda request: "topics",
                lambda request: reader.topics,
                "topics",
                _chosen_topics,
            ),
            LivePage(
                "/topics/{topic}",
                lambda request: f"Topic {request.path_params['topic']}",
                "topic.html",
                lambda request: ("topic", request.path_params["topic"]),
                lambda request: lambda: reader.topic(request.path_params["topic"]),
                "topics",
            ),
            LivePage(
                "/settings",
                lambda request: "Settings",
                "settings.html",
                lambda request: ("settings", _broker_id(request)),
                lambda request: lambda: reader.settings(_broker_id(request)),
                "settings",
            ),
        ]

    # -- pages

    def _page_of(self, page: LivePage) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            reading = await self._read(page, request)
            return self._respond(
                "live_page.html",
                {
                    "title": page.title(request),
                    "section": page.section,
                    "fragment": page.template,
                    "events": f"/events{request.url.path}?{request.url.query}",
                    "interval_s": self._readings.interval_ms / 1000,
                    **self._values(page, request, reading),
                },
                _status_of(reading),
            )

        return show

    def _events_of(self, page: LivePage) -> Callable[[Request], Awaitable[Response]]:
        async def stream(request: Request) -> Response:
            if self._viewers >= MAX_VIEWERS:
                return Response("The console has too many viewers.", 503, media_type="text/plain")
            return StreamingResponse(self._events(page, request), media_type="text/event-stream")

        return stream

    async def _events(self, page: LivePage, request: Request) -> AsyncIterator[str]:
        """Yields the content of a page after each reading, but only its time if the content is the same."""
        self._viewers += 1
        try:
            shown = ""
            while not self._is_stopping():
                reading = await self._read(page, request)
                fragment = self._renderer.render(page.template, self._values(page, request, reading))
                if fragment != shown:
                    shown = fragment
                    yield _event("fragment", fragment)
                yield _event("read", time_text(reading.read_at_ms))
                for _ in range(max(1, int(self._readings.interval_ms / 1000 / _STOP_CHECK_S))):
                    await asyncio.sleep(_STOP_CHECK_S)
                    if self._is_stopping():
                        return
        finally:
            self._viewers -= 1

    async def _read(self, page: LivePage, request: Request) -> Reading[Any]:
        return await self._readings.get(page.subject(request), page.read(request))

    def _values(self, page: LivePage, request: Request, reading: Reading[Any]) -> dict[str, Any]:
        values = {} if reading.value is None else page.values(request, reading.value)
        return {
            "reading": reading,
            "value": reading.value,
            "error": None if reading.error is None else str(reading.error).rstrip("."),
            **values,
        }

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return self._respond(
            "message.html",
            {"title": "Not found", "section": "", "message": f"There is no page {request.url.path}."},
            404,
        )

    def _respond(self, template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._renderer.render(template, values), status)

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)


def _event(name: str, data: str) -> str:
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"


def _status_of(reading: Reading[Any]) -> int:
    if reading.value is not None or reading.error is None:
        return 200
    if isinstance(reading.error, KafkaError) and reading.error.code in _NOT_FOUND:
        return 404
    return 502


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
    found = [row for row in value if search in row.name and (shows_internal or not row.is_internal)]
    page = _page_number(request)
    return {
        "search": search,
        "shows_internal": shows_internal,
        "rows": found[(page - 1) * TOPICS_A_PAGE : page * TOPICS_A_PAGE],
        "found_count": len(found),
        "page": page,
        "page_count": max(1, -(-len(found) // TOPICS_A_PAGE)),
    }
