"""The login at a schema registry, which is a real HTTP server with or without TLS."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority, CertificateFiles
from tidelog.client.security import SecurityConfigError
from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import SchemaError
from tidelog.console.schema_registry import (
    RETRY_MS,
    RegistryError,
    SchemaRegistry,
    parse_registry_login,
    read_registry_login,
)
from tidelog.kernel.clock import ManualClock, SystemClock

SEAT = '{"type": "record", "name": "air.Seat", "fields": [{"name": "row", "type": "int"}]}'
USER_INFO = "ada:geheim: ü"
BASIC = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": USER_INFO}
BEARER = {"bearer.auth.token": "abc.DEF-_~+/="}


class GuardedRegistry:
    """A registry with one schema for those who send `wanted`, and a redirect at the schema 3."""

    def __init__(self, files: CertificateFiles | None) -> None:
        self.wanted: str | None = None
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.headers["Authorization"]
                registry.asked.append((self.path, sent))
                is_known = registry.wanted is None or sent == registry.wanted
                body = json.dumps({"schema": SEAT}).encode() if is_known else b""
                self.send_response(401 if not is_known else 302 if self.path.endswith("/3") else 200)
                self.send_header("Location", f"{registry.url}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.name = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http{'s' if files else ''}://{self.name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., GuardedRegistry]]:
    served: list[GuardedRegistry] = []

    def start(files: CertificateFiles | None = None) -> GuardedRegistry:
        served.append(GuardedRegistry(files))
        return served[-1]

    yield start
    for each in served:
        each.close()


@pytest.mark.parametrize(
    ("properties", "sent"),
    [
        (BASIC, f"Basic {base64.b64encode(USER_INFO.encode()).decode()}"),
        (BEARER, f"Bearer {BEARER['bearer.auth.token']}"),
        ({**BEARER, "bearer.auth.credentials.source": "STATIC_TOKEN"}, "Bearer abc.DEF-_~+/="),
        ({"sasl.mechanism": "PLAIN", "schema.registry.url": "x", "acks": "all"}, None),
    ],
)
def test_a_login_is_sent(
    serve: Callable[..., GuardedRegistry], tmp_path: Path, properties: dict[str, str], sent: str | None
) -> None:
    registry = serve()
    registry.wanted = sent
    path = tmp_path / "registry.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()), encoding="utf-8")
    login = read_registry_login(path)
    schemas = SchemaRegistry(registry.url, ManualClock().monotonic_ms, login)
    assert isinstance(schemas.reader(1), AvroReader)
    assert registry.asked == [("/schemas/ids/1", sent)]
    assert schemas.sends_login_in_clear == (sent is not None)
    assert "abc" not in repr(login) and "Basic" not in repr(login)


def test_a_login_goes_to_no_other_address(serve: Callable[..., GuardedRegistry]) -> None:
    registry = serve()
    with pytest.raises(RegistryError, match="refuses /schemas/ids/3 with status 302"):
        SchemaRegistry(registry.url, ManualClock().monotonic_ms, parse_registry_login(BEARER)).reader(3)
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({}, "requires a login. Give one with --schema-registry-config."),
        (BASIC, "does not accept the login of --schema-registry-config."),
    ],
)
def test_a_refused_login_is_not_tried_for_each_schema(
    serve: Callable[..., GuardedRegistry], properties: dict[str, str], problem: str
) -> None:
    """Registries lock users out who fail often."""
    registry, clock = serve(), ManualClock()
    registry.wanted = "Basic other"
    schemas = SchemaRegistry(registry.url, clock.monotonic_ms, parse_registry_login(properties))
    for number in range(5):
        with pytest.raises(RegistryError) as refused:
            schemas.reader(number)
        assert str(refused.value) == f"The schema registry {registry.name} {problem}"
    assert len(registry.asked) == 1
    clock.advance(RETRY_MS)
    registry.wanted = None
    assert isinstance(schemas.reader(1), AvroReader)


def test_the_registrys_authority_is_trusted(serve: Callable[..., GuardedRegistry], tmp_path: Path) -> None:
    now_ms = SystemClock().wall_ms()
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=now_ms)
    files = authority.issue(tmp_path, ["127.0.0.1"], now_ms=now_ms)
    registry = serve(files)
    trust = {
        "schema.registry.ssl.truststore.type": "PEM",
        "schema.registry.ssl.truststore.location": str(files.ca),
    }
    schemas = SchemaRegistry(
        registry.url, ManualClock().monotonic_ms, parse_registry_login({**BEARER, **trust})
    )
    assert isinstance(schemas.reader(1), AvroReader)
    assert registry.asked == [("/schemas/ids/1", "Bearer abc.DEF-_~+/=")]
    assert not schemas.sends_login_in_clear
    with pytest.raises(RegistryError, match=r"does not answer: .*certificate verify failed"):
        SchemaRegistry(registry.url, ManualClock().monotonic_ms, parse_registry_login(BEARER)).reader(1)
    assert len(registry.asked) == 1
    with pytest.raises(SchemaError, match="has no TLS"):
        SchemaRegistry("http://registry", ManualClock().monotonic_ms, parse_registry_login(trust))


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"basic.auth.user.info": "ada:geheim"}, "basic.auth.credentials.source: it must be USER_INFO"),
        ({**BASIC, "basic.auth.credentials.source": "URL"}, "basic.auth.credentials.source: it must be"),
        ({**BASIC, "basic.auth.user.info": ""}, "basic.auth.user.info: it is not NAME:PASSWORD"),
        ({**BASIC, "basic.auth.user.info": "geheim"}, "basic.auth.user.info: it is not NAME:PASSWORD"),
        ({**BASIC, "basic.auth.user.info": ":geheim"}, "basic.auth.user.info: it is not NAME:PASSWORD"),
        ({**BASIC, **BEARER}, "bearer.auth.token: basic.auth.user.info is set, too"),
        ({"bearer.auth.token": "geheim\r\nHost: x"}, "bearer.auth.token: it is not a bearer token"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "bearer.auth.token: it is not a bearer token"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, "it must be STATIC_TOKEN"),
        ({"bearer.auth.logical.cluster": "x"}, "bearer.auth.logical.cluster is not supported"),
        ({"schema.registry.basic.auth.user.info": "x"}, "schema.registry.basic.auth.user.info is not supp"),
        (
            {"schema.registry.ssl.truststore.location": "ca.jks"},
            "schema.registry.ssl.truststore.type: only PEM is supported, not JKS",
        ),
        ({"schema.registry.ssl.provider": "x"}, "schema.registry.ssl.provider is not supported"),
    ],
)
def test_logins_that_are_not_usable(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(SecurityConfigError) as refused:
        parse_registry_login(properties)
    assert str(refused.value).startswith(problem) or problem in str(refused.value)
    assert "geheim" not in str(refused.value)
