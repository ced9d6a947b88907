"""Users log in to the console with the cluster's own users, and see what ACLs allow them."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from prometheus_client.parser import text_string_to_metric_families

from brokerlab.broker_process import free_port
from brokerlab.console_users import MECHANISM, PASSWORDS, WAIT_S, SecuredCluster
from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority
from tidelog.cli.services.console import Exposure, console_server
from tidelog.client.address import Address
from tidelog.client.security import UsersSecurity
from tidelog.console.server import ConsoleServer
from tidelog.kernel.instants import WallMs

pytestmark = pytest.mark.integration
Serve = Callable[..., Any]


@pytest.fixture
def console(secured: SecuredCluster, serve_console: Serve) -> Any:
    return serve_console(secured.bootstrap, login=MECHANISM)


def test_nothing_is_shown_before_a_login(console: Any) -> None:
    for path in ("/", "/topics", "/topics/flights/records", "/groups", "/settings", "/nothing"):
        answer = console.get(path)
        assert answer.status == 303, path
        assert answer.headers["location"].startswith("/login"), path
        assert answer.text == ""
    assert next(console.events("/events/topics")) == ("ended", "The session has ended.")
    page = console.get("/login?next=/topics").text
    assert "<nav" not in page
    assert 'name="next" value="/topics"' in page
    for path in ("/livez", "/static/console.css"):
        assert console.get(path).status == 200


def test_metrics_show_the_budgets_of_the_console(console: Any) -> None:
    console.log_in("alice", PASSWORDS["alice"])
    shown = text_string_to_metric_families(console.get("/metrics").text)
    families = {family.name: family for family in shown}
    held = {sample.labels["budget"]: sample.value for sample in families["tidelog_budget_held"].samples}
    assert held == {"console_viewers": 0, "console_searches": 0, "console_sessions": 1}
    assert families["tidelog_budget_evictions"].type == "counter"


def test_a_session_shows_what_acls_allow(console: Any) -> None:
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"], next="/topics?q=li")
    assert (answer.status, answer.headers["location"]) == (303, "/topics?q=li")
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert re.fullmatch(rf"tidelog-session-{console.port}=[\w-]{{43}}", cookie)
    assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict"}
    headers = {"Cookie": cookie}
    page = console.get("/topics", headers=headers).text
    assert re.findall(r'href="/topics/([^"?]+)"', page) == ["flights"]
    assert "User <b>alice</b>" in page
    assert "secret of flights" in console.get("/topics/flights/records", headers=headers).text
    root = {"Cookie": console.log_in("root", PASSWORDS["root"])}
    assert re.findall(r'href="/topics/([^"?]+)"', console.get("/topics", headers=root).text) == [
        "flights",
        "salaries",
    ]


def test_missing_acls_are_one_sentence(console: Any) -> None:
    alice = {"Cookie": console.log_in("alice", PASSWORDS["alice"])}
    topic = console.get("/topics/flights", headers=alice)
    assert topic.status == 200
    assert "did not answer" not in topic.text
    for subject, needed in (
        ("topic &#39;flights&#39;", "Describe for the topic, DescribeConfigs for its settings"),
        ("log directories of broker 1", "Describe and DescribeConfigs for the cluster"),
    ):
        assert f"The cluster does not show {subject} to user alice. ACLs with {needed}" in topic.text
    group = console.get("/group?id=seat-map", headers=alice)
    assert group.status == 200, group.text
    assert "<b>1</b> records of lag" in group.text
    assert "not known" in group.text
    for path in ("/topics/salaries", "/topics/salaries/records", "/settings"):
        answer = console.get(path, headers=alice)
        assert answer.status == 403, path
        assert "The cluster does not show" in answer.text, path
        assert "secret of" not in answer.text
    bob = {"Cookie": console.log_in("bob", PASSWORDS["bob"])}
    answer = console.get("/topics/flights/records", headers=bob)
    assert answer.status == 403
    assert "to user bob. ACLs with" in answer.text


def test_wrong_logins_are_refused_and_limited(console: Any) -> None:
    for number in range(5):
        user = "alice" if number else "nobody"
        answer = console.post("/login", user=user, password="guessed")
        assert answer.status == 403
        assert "The cluster does not accept this user name and password." in answer.text
        assert "guessed" not in answer.text
        assert "set-cookie" not in answer.headers
    assert console.post("/login", user="alice", password="guessed").status == 403
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"])
    assert answer.status == 429
    assert re.search(r"Too many logins have failed\. Try again in \d+ s\.", answer.text)
    console.log_in("bob", PASSWORDS["bob"])


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "", "password": "x"},
        {"user": "alice", "password": ""},
        {"user": "a\nb", "password": "x"},
        {"user": "a" * 300, "password": "x"},
        {"user": "alice", "password": "x\0y"},
        {"user": "alice", "password": "x" * 9_000},
    ],
)
def test_strange_forms_are_refused(console: Any, fields: dict[str, str]) -> None:
    answer = console.post("/login", **fields)
    assert answer.status in (400, 403)
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize("origin", ["", "null", "http://attacker.example", "https://127.0.0.1"])
def test_forms_of_other_sites_are_refused(console: Any, origin: str) -> None:
    answer = console.post("/login", origin=origin, user="alice", password=PASSWORDS["alice"])
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    cookie = console.log_in("alice", PASSWORDS["alice"])
    assert console.post("/logout", origin=origin, cookie=cookie).status == 403
    assert console.get("/topics", headers={"Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    "target", ["//attacker.example/", "https://attacker.example/", "/\\attacker.example", "/login", "x"]
)
def test_a_login_never_leads_elsewhere(console: Any, target: str) -> None:
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"], next=target)
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_two_consoles_at_one_host_keep_their_sessions(
    console: Any, secured: SecuredCluster, serve_console: Serve
) -> None:
    """Browsers send cookies to all ports of a host, and a cookie replaces another one with its name."""
    other = serve_console(secured.bootstrap, login=MECHANISM)
    jar = dict(each.log_in("alice", PASSWORDS["alice"]).split("=") for each in (console, other))
    headers = {"Cookie": "; ".join(f"{name}={token}" for name, token in jar.items())}
    assert [each.get("/topics", headers=headers).status for each in (console, other)] == [200, 200]
    assert console.post("/logout", cookie=headers["Cookie"]).status == 303
    assert [each.get("/topics", headers=headers).status for each in (console, other)] == [303, 200]


def test_a_login_never_keeps_the_session_that_a_browser_had(console: Any) -> None:
    """Neither one that somebody else put there, nor that of the user before."""
    name = f"tidelog-session-{console.port}"
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"], cookie=f"{name}=chosen")
    alice = answer.headers["set-cookie"].partition(";")[0]
    assert "chosen" not in alice
    assert console.get("/topics", headers={"Cookie": f"{name}=chosen"}).status == 303
    answer = console.post("/login", user="bob", password=PASSWORDS["bob"], cookie=alice)
    bob = answer.headers["set-cookie"].partition(";")[0]
    assert console.get("/topics", headers={"Cookie": alice}).status == 303
    assert "User <b>bob</b>" in console.get("/topics", headers={"Cookie": bob}).text


def test_a_logout_ends_the_session_and_its_updates(console: Any) -> None:
    cookie = console.log_in("alice", PASSWORDS["alice"])
    events = console.events("/events/topics", cookie)
    assert next(events)[0] == "fragment"
    answer = console.post("/logout", cookie=cookie)
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert "ended" in [name for name, _ in events]
    assert console.get("/topics", headers={"Cookie": cookie}).status == 303


def test_a_session_ends_when_it_is_not_used(
    console: Any, monkeypatch: pytest.MonkeyPatch, secured: SecuredCluster, serve_console: Serve
) -> None:
    monkeypatch.setattr("tidelog.console.login.SWEEP_S", 0.1)
    monkeypatch.setattr("tidelog.console.core.sessions.IDLE_MS", 1_000)
    cookie = console.log_in("alice", PASSWORDS["alice"])
    assert console.get("/topics", headers={"Cookie": cookie}).status == 200
    # Live updates, which go on by themselves, do not prolong it.
    assert "ended" in [name for name, _ in console.events("/events/topics", cookie)]
    assert console.get("/topics", headers={"Cookie": cookie}).status == 303


def test_a_user_who_is_deleted_loses_the_session_at_the_next_connection(
    console: Any, secured: SecuredCluster
) -> None:
    secured.set_password("carol", "carol-secret")
    secured.allow("carol", ResourceType.TOPIC, "flights", AclOperation.READ)
    headers = {"Cookie": console.log_in("carol", "carol-secret")}
    assert console.get("/topics/flights/records", headers=headers).status == 200
    secured.delete_user("carol")
    assert console.get("/topics/flights/records", headers=headers).status == 502
    assert console.get("/topics", headers=headers).status == 303


def test_a_wrong_mechanism_is_not_a_wrong_password(secured: SecuredCluster, serve_console: Serve) -> None:
    console = serve_console(secured.bootstrap, login="PLAIN")
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"])
    assert answer.status == 502
    assert f"does not accept the SASL mechanism PLAIN; it accepts {MECHANISM}." in answer.text


def test_a_wrong_login_is_tried_at_one_broker_only(secured: SecuredCluster, serve_console: Serve) -> None:
    console = serve_console(f"{secured.bootstrap},{secured.bootstrap}", login=MECHANISM)
    answer = console.post("/login", user="alice", password="guessed")
    assert answer.status == 403, answer.text


def test_a_cluster_that_is_down_is_not_a_wrong_password(serve_console: Serve) -> None:
    console = serve_console(f"127.0.0.1:{free_port()}", login=MECHANISM)
    for _ in range(7):
        answer = console.post("/login", user="alice", password="x")
        assert answer.status == 502
        assert "The login was not checked: " in answer.text


def test_users_share_the_sessions_fairly(
    secured: SecuredCluster, serve_console: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.console.core.sessions.MAX_SESSIONS", 4)
    console = serve_console(secured.bootstrap, login=MECHANISM)
    alices = [console.log_in("alice", PASSWORDS["alice"]) for _ in range(3)]
    answer = console.post("/login", user="alice", password=PASSWORDS["alice"])
    assert answer.status == 503
    assert "Too many users are logged in." in answer.text
    bob = console.log_in("bob", PASSWORDS["bob"])
    cookies = [*alices, bob]
    assert [console.get("/topics", headers={"Cookie": each}).status for each in cookies] == [200] * 4


def test_a_proxy_that_terminates_tls_makes_cookies_secure(
    secured: SecuredCluster, serve_console: Serve
) -> None:
    console = serve_console(secured.bootstrap, login=MECHANISM, is_https=True)
    login = {"user": "alice", "password": PASSWORDS["alice"]}
    assert console.post("/login", **login).status == 403  # its origin is http
    answer = console.post("/login", origin=console.url.replace("http:", "https:"), **login)
    assert answer.status == 303
    assert answer.headers["set-cookie"].startswith(f"__Host-tidelog-session-{console.port}=")
    assert "; secure" in answer.headers["set-cookie"].lower()
    # The name that a cookie without TLS could have is not accepted.
    cookie = answer.headers["set-cookie"].partition(";")[0].removeprefix("__Host-")
    assert console.get("/topics", headers={"Cookie": cookie}).status == 303


class TlsConsole(NamedTuple):
    server: ConsoleServer
    authority: CertificateAuthority
    directory: Path

    def certificate(self) -> bytes:
        """Returns the certificate that a new connection receives."""
        with (
            socket.create_connection(self.server.address, timeout=WAIT_S) as plain,
            self.context().wrap_socket(plain, server_hostname="console.example") as encrypted,
        ):
            return encrypted.getpeercert(binary_form=True) or b""

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "ca.crt"))

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(*self.server.address, context=self.context())
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response


@pytest.fixture
def tls_console(secured: SecuredCluster, tmp_path: Path) -> Iterator[TlsConsole]:
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=wall_ms())
    files = authority.issue(tmp_path, ["console.example", "127.0.0.1"], now_ms=wall_ms())
    server = console_server(
        Exposure(Address("127.0.0.1", 0), has_login=True, has_tls=True),
        secured.bootstrap,
        UsersSecurity(None, MECHANISM),
        allowed_hosts=("console.example",),
        certificate=(files.certificate, files.key),
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield TlsConsole(server, authority, tmp_path)
    finally:
        server.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def wall_ms() -> WallMs:
    return WallMs(time.time_ns() // 1_000_000)


def test_over_tls_browsers_send_the_cookie_only_over_tls(tls_console: TlsConsole) -> None:
    assert tls_console.server.url.startswith("https://127.0.0.1:")
    body = urlencode({"user": "alice", "password": PASSWORDS["alice"]})
    headers = {
        "Host": "console.example",
        "Origin": "https://console.example",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    answer = tls_console.ask("POST", "/login", body, **headers)
    assert answer.status == 303
    cookie, *attributes = (answer.getheader("set-cookie") or "").split("; ")
    assert cookie.startswith("__Host-tidelog-session=")
    assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict", "secure"}
    assert tls_console.ask("GET", "/topics", Host="console.example", Cookie=cookie).status == 200
    assert tls_console.ask("GET", "/topics", Host="other.example", Cookie=cookie).status == 400
    assert (
        tls_console.ask("POST", "/login", body, **{**headers, "Origin": "http://console.example"}).status
        == 403
    )


def test_a_renewed_certificate_is_used(tls_console: TlsConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.console.server.CERTIFICATE_CHECK_TICKS", 1)
    before = tls_console.certificate()
    (tls_console.directory / "tls.key").write_text("half-written")
    time.sleep(0.5)  # the server looks every 0.1 s, and keeps the earlier certificate
    assert tls_console.certificate() == before
    tls_console.authority.issue(tls_console.directory, ["console.example", "127.0.0.1"], now_ms=wall_ms())
    deadline_s = time.monotonic() + WAIT_S
    while tls_console.certificate() == before:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
