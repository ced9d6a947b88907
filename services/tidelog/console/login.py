"""Logins with the users of the cluster, and the sessions that follow them.

The console has no users of its own: it opens the connections of a session with the login that was typed in or
that a proxy sent, so that the cluster decides who may log in and, by its ACLs, what the session can read. The
password or token stays in the memory of this process until the session ends.
"""

from __future__ import annotations

import asyncio
import hashlib
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
from tidelog.client.security import TokenLogin
from tidelog.console.cluster_access import ClusterAccess
from tidelog.console.core.sessions import LIFETIME_MS, FailedLogins, Sessions, TooManySessionsError
from tidelog.console.page_reader import Connect
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError
from tidelog.model.fair_budget import BudgetUse
from tidelog.sasl import OAUTHBEARER, PLAIN, AuthenticationError
from tidelog.sasl.login import ClientLogin, SaslLogin
from tidelog.sasl.oauthbearer import USER_CLAIM, TokenClaims

MAX_LOGINS: Final = 4
"""The most logins that are checked at a time. Each has a connection to a broker."""
FAILURE_DELAY_S: Final = 1.0
"""The time by which the answer to a wrong login is delayed. It occupies one of MAX_LOGINS meanwhile."""
MAX_FORM_BYTES: Final = 8_192
MAX_FORM_S: Final = 10.0
MAX_NAME_CHARACTERS: Final = 255
MAX_TOKEN_CHARACTERS: Final = 16_384
"""The longest bearer token. Those with the claims of many groups have some thousand characters."""
TOKEN_BYTES: Final = 32
SWEEP_S: Final = 30.0
"""The time between two searches for sessions that have expired."""
COOKIE: Final = "tidelog-session"
SECURE_COOKIE: Final = "__Host-tidelog-session"
"""With this prefix, browsers accept the cookie only over TLS, from this host and for all paths."""
LOGIN_PATH: Final = "/login"
LOGOUT_PATH: Final = "/logout"
OPEN_PATHS: Final = frozenset({LOGIN_PATH, "/livez", "/metrics"})
"""The paths that need no session, besides those of the script and the style sheet."""
_WRONG: Final = "The cluster does not accept this user name and password."
_WRONG_TOKEN: Final = "The cluster does not accept this token."
_FOREIGN: Final = (
    "The form was not sent by a page of this console. Open the console at its own address. A proxy in front "
    "of it must pass the Host header on, and --behind-tls-proxy must say whether it terminates TLS."
)
_SENT: Final = "sent "
"""The beginning of the name of a session whose requests each have a bearer token."""
Render = Callable[[str, Mapping[str, Any], int], Response]
ConnectAs = Callable[[ClientLogin], Connect]
"""Returns how to connect with this login."""
OpenAccess = Callable[[Connect, str, bool], ClusterAccess]
"""Returns an access that has not connected yet, for a user with this name who can log out or not."""


def event(name: str, data: str) -> str:
    """Returns an event as text/event-stream."""
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"


ENDED: Final = event("ended", "The session has ended.")
"""Tells a page to load itself again, which leads to the login."""


@dataclass(frozen=True, slots=True)
class LoginOptions:
    """The way in which users log in, with one SASL mechanism. `is_https` is true if browsers reach the
    console over TLS, also through a proxy. `user_claim` is the claim of a bearer token that names its user.
    """

    mechanism: str
    connect_as: ConnectAs
    is_https: bool
    user_claim: str = USER_CLAIM
    failure_delay_s: float = FAILURE_DELAY_S

    @property
    def takes_bearer_tokens(self) -> bool:
        return self.mechanism == OAUTHBEARER

    @property
    def takes_delegation_tokens(self) -> bool:
        return self.mechanism not in (OAUTHBEARER, PLAIN)


class BadFormError(Exception):
    """The body of a request is not the login form."""


class LoginRefusedError(Exception):
    """Nobody is logged in. The message is one sentence for a page with this status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Presented:
    """A login that the cluster has not checked. `user` is the name on the pages, and `source_name` the one
    for which failures are counted. `lasts_ms` is the time until the login expires.
    """

    login: ClientLogin
    user: str
    source_name: str
    wrong: str = _WRONG
    lasts_ms: int = LIFETIME_MS
    is_delegation: bool = False


class Login:
    """The login page, its routes, and the sessions."""

    def __init__(
        self,
        options: LoginOptions,
        open_access: OpenAccess,
        render: Render,
        wall: Callable[[], WallMs],
        monotonic: Callable[[], MonotonicMs],
        new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES),
    ) -> None:
        self._options = options
        self._open_access = open_access
        self._render = render
        self._wall = wall
        self._monotonic = monotonic
        self._new_token = new_token
        self._sessions: Sessions[ClusterAccess] = Sessions()
        self._opening: dict[str, asyncio.Task[ClusterAccess]] = {}
        self._failed = FailedLogins()
        self._logins = 0
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def sessions_use(self) -> BudgetUse:
        """The use of the budget of sessions, for metrics."""
        return self._sessions.budget.use

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
        request = Request(scope)
        sent = self._sent_token(request)
        token = request.cookies.get(self._cookie_of(request)) if sent is None else f"{_SENT}{sent}"
        if token is None:
            return None
        is_use = not scope["path"].startswith("/events/")
        session = self._sessions.find(token, self._monotonic(), is_use=is_use)
        if session is None or session.value.has_ended:
            self._end(token)
            return None
        return session.value

    async def enter(self, scope: Scope) -> ClusterAccess | None:
        """Returns the access of the session to which a request belongs. It begins one if the request has a
        bearer token that the cluster accepts. Raises LoginRefusedError for other tokens.
        """
        found = self.access_of(scope)
        request = Request(scope)
        token = self._sent_token(request)
        if found is not None or token is None:
            return found
        try:
            return await self._opened(_host_of(request), token)
        except LoginRefusedError as error:
            raise LoginRefusedError(str(error), 401 if error.status in (400, 403) else error.status) from None

    async def _opened(self, host: str, token: str) -> ClusterAccess:
        """Begins a session for the bearer token of a request. A browser sends several requests at the same
        time, which begin one session. Raises LoginRefusedError.
        """
        presented = self._bearer(token)
        task = self._opening.get(token)
        if task is None:
            task = asyncio.create_task(self._begin(host, presented, f"{_SENT}{token}", can_log_out=False))
            self._opening[token] = task
            task.add_done_callback(lambda ended: self._opening.pop(token, None))
        return await asyncio.shield(task)

    def refusal(self, error: LoginRefusedError) -> Response:
        """Returns the answer to a request whose bearer token is refused."""
        values = {"title": "Not logged in", "section": "", "message": str(error)}
        response = self._render("message.html", values, error.status)
        if error.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
        return response

    # -- pages

    async def _form(self, request: Request) -> Response:
        return self._page({"next": request.query_params.get("next", "/")}, "", 200)

    async def _log_in(self, request: Request) -> Response:
        if not self._is_own(request):
            return self._page({}, _FOREIGN, 403)
        most = MAX_FORM_BYTES + (MAX_TOKEN_CHARACTERS if self._options.takes_bearer_tokens else 0)
        try:
            form = await _form_of(request, most)
        except BadFormError as error:
            return self._page({}, str(error), 400)
        try:
            presented = self._presented(form)
            token = self._new_token()
            await self._begin(
                _host_of(request),
                presented,
                token,
                replaces=request.cookies.get(self._cookie_of(request), ""),
            )
        except LoginRefusedError as error:
            return self._page(form, str(error), error.status)
        response = RedirectResponse(local_path(form.get("next", "/")), 303)
        response.set_cookie(
            self._cookie_of(request),
            token,
            path="/",
            secure=self._options.is_https,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        if not self._is_own(request):
            return self._page({}, _FOREIGN, 403)
        self._end(request.cookies.get(self._cookie_of(request), ""))
        response = RedirectResponse(LOGIN_PATH, 303)
        response.delete_cookie(
            self._cookie_of(request),
            path="/",
            secure=self._options.is_https,
            httponly=True,
            samesite="strict",
        )
        return response

    def _page(self, form: Mapping[str, str], error: str, status: int) -> Response:
        """Returns the login page after this form. A password or token in it is not shown."""
        user = form.get("user", "")
        values = {
            "title": "Log in",
            "section": "",
            "takes_bearer_tokens": self._options.takes_bearer_tokens,
            "takes_delegation_tokens": self._options.takes_delegation_tokens,
            "max_token_characters": MAX_TOKEN_CHARACTERS,
            "typed": user if _is_name(user) else "",
            "is_delegation": "delegation" in form,
            "next": local_path(form.get("next", "/")),
            "error": error,
        }
        return self._render("login.html", values, status)

    def _cookie_of(self, request: Request) -> str:
        """Returns the name of the cookie. It has the port, because browsers send a cookie to all ports of its
        host, where another console may have one.
        """
        name = SECURE_COOKIE if self._options.is_https else COOKIE
        port = request.headers["host"].rpartition(":")[2]
        return f"{name}-{port}" if port.isascii() and port.isdigit() else name

    def _is_own(self, request: Request) -> bool:
        """Says whether a page of this console sent a form. Browsers add the header Origin to each POST."""
        scheme = "https" if self._options.is_https else "http"
        return request.headers.get("origin", "").lower() == f"{scheme}://{request.headers['host']}".lower()

    # -- what is presented

    def _sent_token(self, request: Request) -> str | None:
        """Returns the bearer token of a request, such as a proxy sends it. None if there is none, or if the
        cluster's users have no such tokens.
        """
        if not self._options.takes_bearer_tokens:
            return None
        sent = request.headers.getlist("authorization")
        scheme, _, token = ",".join(sent).partition(" ")  # two headers are no token
        return token.strip() if scheme.lower() == "bearer" else None

    def _presented(self, form: Mapping[str, str]) -> Presented:
        """Returns the login in a form. Raises LoginRefusedError."""
        if self._options.takes_bearer_tokens:
            token = form.get("token", "").strip()
            return self._bearer(token[len("Bearer ") :] if token.lower().startswith("bearer ") else token)
        user, password = form.get("user", ""), form.get("password", "")
        if not user or not password:
            raise LoginRefusedError("Type in a user name and a password.", 400)
        if not _is_name(user) or "\0" in password:
            raise LoginRefusedError(_WRONG, 403)
        is_token = self._options.takes_delegation_tokens and "delegation" in form
        shown = f"{user} (delegation token)" if is_token else user
        login = SaslLogin(self._options.mechanism, user, password, is_token)
        return Presented(login, shown, user, is_delegation=is_token)

    def _bearer(self, token: str) -> Presented:
        """Returns the login with a bearer token. Raises LoginRefusedError."""
        if not token:
            raise LoginRefusedError("There is no bearer token.", 400)
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise LoginRefusedError(f"The token has more than {MAX_TOKEN_CHARACTERS:,} characters.", 400)
        try:
            claims = TokenClaims.read(token, self._options.user_claim)
        except AuthenticationError as error:
            raise LoginRefusedError(f"The token cannot be used: {error}.", 400) from None
        if not _is_name(claims.user):
            raise LoginRefusedError("The token cannot be used: its user has no printable name.", 400)
        lasts_ms = claims.expires_ms - self._wall()
        if lasts_ms <= 0:
            raise LoginRefusedError("The token has expired. Log in with a new one.", 403)
        # Whoever invents tokens of a name must not stop this user.
        source_name = hashlib.sha256(token.encode()).hexdigest()
        return Presented(TokenLogin(claims.user, token), claims.user, source_name, _WRONG_TOKEN, lasts_ms)

    # -- sessions

    async def _begin(
        self, host: str, presented: Presented, token: str, *, replaces: str = "", can_log_out: bool = True
    ) -> ClusterAccess:
        """Begins a session if the cluster accepts a login, and ends the one that it replaces. Raises
        LoginRefusedError.
        """
        source = (host, presented.source_name)
        if self._logins >= MAX_LOGINS:
            raise LoginRefusedError("Too many users log in at the same time. Try again.", 503)
        wait_ms = self._failed.begin(source, self._monotonic())
        if wait_ms:
            raise LoginRefusedError(
                f"Too many logins have failed. Try again in {-(-wait_ms // 1000)} s.", 429
            )
        self._logins += 1
        access = self._open_access(self._options.connect_as(presented.login), presented.user, can_log_out)
        is_kept = False
        try:
            await self._check(access, source, presented.wrong)
            self._end(replaces)
            try:
                # One user may have any number of delegation tokens, and nobody says whose they are.
                if presented.is_delegation:
                    access.sharer = "delegation tokens", host
                ended = self._sessions.begin(
                    token, access.sharer, access, self._monotonic(), presented.lasts_ms
                )
            except TooManySessionsError:
                raise LoginRefusedError("Too many users are logged in. Try again later.", 503) from None
            is_kept = True
        finally:
            self._logins -= 1
            if not is_kept:
                access.end()
        for each in ended:
            each.end()
        self._sweep_later()
        return access

    async def _check(self, access: ClusterAccess, source: tuple[str, str], wrong: str) -> None:
        """Connects. Raises LoginRefusedError."""
        try:
            await access.run(access.reader.open)
        except MechanismRefusedError as error:
            self._failed.did_not_fail(source)
            raise LoginRefusedError(f"Nobody can log in: {error}.", 502) from None
        except AuthenticationFailedError:
            await asyncio.sleep(self._options.failure_delay_s)
            raise LoginRefusedError(wrong, 403) from None
        except (ClientError, KafkaError) as error:
            self._failed.did_not_fail(source)
            raise LoginRefusedError(f"The login was not checked: {str(error).rstrip('.')}.", 502) from None
        self._failed.did_not_fail(source)

    def _end(self, token: str) -> None:
        access = self._sessions.end(token)
        if access is not None:
            access.end()

    def _sweep_later(self) -> None:
        ends_ms = self._sessions.next_end_ms()
        if ends_ms is None:
            return
        delay_s = min(SWEEP_S, max(0, ends_ms - self._monotonic()) / 1000)
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = asyncio.get_running_loop().call_later(delay_s, self._end_expired)

    def _end_expired(self) -> None:
        self._sweep = None
        for access in self._sessions.end_expired(self._monotonic()):
            access.end()
        self._sweep_later()


def _host_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_name(user: str) -> bool:
    return len(user) <= MAX_NAME_CHARACTERS and user.isprintable()


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
        is_open = path in OPEN_PATHS or path.startswith("/static/")
        refused: LoginRefusedError | None = None
        try:
            access = self._login.access_of(scope) if is_open else await self._login.enter(scope)
        except LoginRefusedError as error:
            access, refused = None, error
        scope.setdefault("state", {})["access"] = access
        if access is not None or is_open:
            await self._app(scope, receive, send)
        elif path.startswith("/events/"):
            await StreamingResponse(_ended(), media_type="text/event-stream")(scope, receive, send)
        elif refused is not None:
            await self._login.refusal(refused)(scope, receive, send)
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


async def _form_of(request: Request, max_bytes: int) -> dict[str, str]:
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
                if len(body) > max_bytes:
                    raise BadFormError(f"The form has more than {max_bytes} bytes.")
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=8)
    except TimeoutError:
        raise BadFormError(f"The form did not arrive within {MAX_FORM_S:.0f} s.") from None
    except (ClientDisconnect, ValueError):
        raise BadFormError("The form is damaged. Load the page again.") from None
    return {name: values[0] for name, values in fields.items()}
