"""Logins with the users of the cluster, and the sessions that follow them.

The console has no users of its own: it opens the connections of a session with the name and password that
were typed in, so that the cluster decides who may log in and, by its ACLs, what the session can read. Name
and password stay in the memory of this process until the session ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelog.client.errors import AuthenticationFailedError, ClientError, MechanismRefusedError
from tidelog.console.cluster_access import ClusterAccess
from tidelog.console.cluster_reader import Connect
from tidelog.console.core.failed_logins import FailedLogins
from tidelog.console.core.sessions import Sessions, TooManySessionsError
from tidelog.console.events import ENDED
from tidelog.model.errors import KafkaError
from tidelog.model.instants import MonotonicMs

MAX_LOGINS: Final = 4
"""The most logins that are checked at a time. Each has a connection to a broker."""
FAILURE_DELAY_S: Final = 1.0
"""The time by which the answer to a wrong login is delayed. It occupies one of MAX_LOGINS meanwhile."""
MAX_FORM_BYTES: Final = 8_192
MAX_FORM_S: Final = 10.0
MAX_NAME_CHARACTERS: Final = 255
TOKEN_BYTES: Final = 32
SWEEP_S: Final = 30.0
"""The time between two searches for sessions that have expired."""
COOKIE: Final = "tidelog-session"
SECURE_COOKIE: Final = "__Host-tidelog-session"
"""With this prefix, browsers accept the cookie only over TLS, from this host and for all paths."""
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
OPEN_PATHS: Final = frozenset({LOGIN_PATH, "/livez"})
"""The paths that need no session, besides those of the script and the style sheet."""

_WRONG: Final = "The cluster does not accept this user name and password."
_FOREIGN: Final = (
    "The form was not sent by a page of this console. Open the console at its own address. A proxy in front "
    "of it must pass the Host header on, and --behind-tls-proxy must say whether it terminates TLS."
)

Render = Callable[[str, Mapping[str, Any], int], Response]
ConnectAs = Callable[[str, str], Connect]
"""Returns how to connect as the user with this name and password."""


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """The way in which users log in. `is_https` is true if browsers reach the console over TLS, also through
    a proxy.
    """

    connect_as: ConnectAs
    is_https: bool
    failure_delay_s: float = FAILURE_DELAY_S


class BadFormError(Exception):
    """The body of a request is not the login form."""


class Login:
    """The login page, its routes, and the sessions."""

    def __init__(
        self,
        options: LoginOptions,
        open_access: Callable[[Connect, str], ClusterAccess],
        render: Render,
        monotonic: Callable[[], MonotonicMs],
        new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
    ) -> None:
        """`open_access` returns an access for the user of this name that has not connected yet."""
        self._options = options
        self._open_access = open_access
        self._render = render
        self._monotonic = monotonic
        self._new_token = new_token
        self._sessions: Sessions[ClusterAccess] = Sessions()
        self._failed = FailedLogins()
        self._logins = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._cookie = SECURE_COOKIE if options.is_https else COOKIE

    def close(self) -> None:
        """Ends all sessions, and returns when their calls have ended."""
        for access in self._sessions.end_all():
            access.end(waits=True)

    def routes(self) -> list[Route]:
        return [
            Route(LOGIN_PATH, self._form, methods=["GET"]),
            Route(LOGIN_PATH, self._log_in, methods=["POST"]),
            Route(LOGOUT_PATH, self._log_out, methods=["POST"]),
        ]

    def access_of(self, scope: Scope) -> ClusterAccess | None:
        """Returns the access of the session to which a request belongs, None if there is none."""
        token = Request(scope).cookies.get(self._cookie)
        if token is None:
            return None
        is_use = not scope["path"].startswith("/events/")
        session = self._sessions.find(token, self._monotonic(), is_use=is_use)
        if session is None or session.value.has_ended:
            self._end(token)
            return None
        return session.value

    # -- pages

    async def _form(self, request: Request) -> Response:
        return self._page("", request.query_params.get("next", "/"), "", 200)

    async def _log_in(self, request: Request) -> Response:
        if not self._is_own(request):
            return self._page("", "/", _FOREIGN, 403)
        try:
            form = await _form_of(request)
        except BadFormError as error:
            return self._page("", "/", str(error), 400)
        user, password, target = form.get("user", ""), form.get("password", ""), form.get("next", "/")
        if not user or not password:
            return self._page(user, target, "Type in a user name and a password.", 400)
        if len(user) > MAX_NAME_CHARACTERS or not user.isprintable() or "\0" in password:
            return self._page("", target, _WRONG, 403)
        source = (request.client.host if request.client else "", user)
        if self._logins >= MAX_LOGINS:
            return self._page(user, target, "Too many users log in at the same time. Try again.", 503)
        wait_ms = self._failed.begin(source, self._monotonic())
        if wait_ms:
            text = f"Too many logins have failed. Try again in {-(-wait_ms // 1000)} s."
            return self._page(user, target, text, 429)
        self._logins += 1
        try:
            return await self._check(request, source, password, target)
        finally:
            self._logins -= 1

    async def _check(self, request: Request, source: tuple[str, str], password: str, target: str) -> Response:
        """Connects with a name and a password, and begins a session if the cluster accepts them."""
        user = source[1]
        access = self._open_access(self._options.connect_as(user, password), user)
        is_kept = False
        try:
            try:
                await access.run(access.reader.open)
            except MechanismRefusedError as error:
                self._failed.did_not_fail(source)
                return self._page(user, target, f"Nobody can log in: {error}.", 502)
            except AuthenticationFailedError:
                await asyncio.sleep(self._options.failure_delay_s)
                return self._page(user, target, _WRONG, 403)
            except (ClientError, KafkaError) as error:
                self._failed.did_not_fail(source)
                text = f"The login was not checked: {str(error).rstrip('.')}."
                return self._page(user, target, text, 502)
            self._failed.did_not_fail(source)
            self._end(request.cookies.get(self._cookie, ""))
            token = self._new_token()
            try:
                ended = self._sessions.begin(token, user, access, self._monotonic())
            except TooManySessionsError:
                return self._page(user, target, "Too many users are logged in. Try again later.", 503)
            is_kept = True
        finally:
            if not is_kept:
                access.end()
        for each in ended:
            each.end()
        self._sweep_later()
        response = RedirectResponse(local_path(target), 303)
        response.set_cookie(
            self._cookie, token, path="/", secure=self._options.is_https, httponly=True, samesite="strict"
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        if not self._is_own(request):
            return self._page("", "/", _FOREIGN, 403)
        self._end(request.cookies.get(self._cookie, ""))
        response = RedirectResponse(LOGIN_PATH, 303)
        response.delete_cookie(
            self._cookie, path="/", secure=self._options.is_https, httponly=True, samesite="strict"
        )
        return response

    def _page(self, user: str, target: str, error: str, status: int) -> Response:
        values = {
            "title": "Log in",
            "section": "",
            "typed": user,
            "next": local_path(target),
            "error": error,
        }
        return self._render("login.html", values, status)

    def _is_own(self, request: Request) -> bool:
        """Says whether a page of this console sent a form. Browsers add the header Origin to each POST."""
        scheme = "https" if self._options.is_https else "http"
        return request.headers.get("origin", "").lower() == f"{scheme}://{request.headers['host']}".lower()

    # -- sessions

    def _end(self, token: str) -> None:
        access = self._sessions.end(token)
        if access is not None:
            access.end()

    def _sweep_later(self) -> None:
        if self._sweep is None and len(self._sessions):
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._end_expired)

    def _end_expired(self) -> None:
        self._sweep = None
        for access in self._sessions.end_expired(self._monotonic()):
            access.end()
        self._sweep_later()


class SessionGate:
    """Lets only requests of a session pass, and gives them `request.state.access`."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        access = self._login.access_of(scope)
        scope.setdefault("state", {})["access"] = access
        if access is not None or path in OPEN_PATHS or path.startswith("/static/"):
            await self._app(scope, receive, send)
        elif path.startswith("/events/"):
            await StreamingResponse(_ended(), media_type="text/event-stream")(scope, receive, send)
        else:
            target = scope["raw_path"].decode("latin-1")
            if scope["query_string"]:
                target += f"?{scope['query_string'].decode('latin-1')}"
            address = LOGIN_PATH if target == "/" else f"{LOGIN_PATH}?{urlencode({'next': target})}"
            await RedirectResponse(address, 303)(scope, receive, send)


async def _ended() -> Any:
    yield ENDED


def local_path(target: str) -> str:
    """Returns a path of this console to which a browser may be sent, which is `/` for other addresses."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\", LOGIN_PATH, LOGOUT_PATH))
    return target if is_local and target.isprintable() and "\\" not in target else "/"


async def _form_of(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises BadFormError."""
    if Headers(scope=request.scope).get("content-type", "").partition(";")[0].strip() != (
        "application/x-www-form-urlencoded"
    ):
        raise BadFormError("The request is not a form.")
    body = bytearray()
    try:
        async with asyncio.timeout(MAX_FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM_BYTES:
                    raise BadFormError(f"The form has more than {MAX_FORM_BYTES} bytes.")
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=8)
    except TimeoutError:
        raise BadFormError(f"The form did not arrive within {MAX_FORM_S:.0f} s.") from None
    except (ClientDisconnect, ValueError):
        raise BadFormError("The form is damaged. Load the page again.") from None
    return {name: values[0] for name, values in fields.items()}
