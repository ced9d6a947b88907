"""Asks a schema registry with Confluent's HTTP API for the schemas that records name by their ids.

Everything is bounded: the time, the size and the number of requests of a lookup, and the schemas that are
kept. Requests go only to the configured host, which alone receives the login. Redirects and proxies are not
followed. The login and the trusted certificates come from a file with the properties of Confluent's clients.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

from tidelog.client.security import SecurityConfigError, file_properties, naming, parse_tls
from tidelog.console.core.avro_reader import AvroReader
from tidelog.console.core.decoded import SchemaError
from tidelog.console.core.protobuf_reader import ProtobufReader
from tidelog.kernel.instants import MonotonicMs

USER_INFO: Final = "USER_INFO"
STATIC_TOKEN: Final = "STATIC_TOKEN"
MAX_CREDENTIALS_CHARACTERS: Final = 16_384
_TLS_PREFIX: Final = "schema.registry."
_PREFIXES: Final = ("basic.auth.", "bearer.auth.", f"{_TLS_PREFIX}ssl.", f"{_TLS_PREFIX}basic.auth.")
_TOKEN: Final = re.compile(r"[-A-Za-z0-9._~+/]+=*")
MAX_SCHEMAS: Final = 128
"""The most schemas that are kept. The one that was used longest ago is forgotten first."""
MAX_RESPONSE_BYTES: Final = 512 * 1024
MAX_REQUESTS: Final = 32
"""The most requests for one schema: one or two for itself and one for each schema that it imports."""
LOOKUP_TIMEOUT_MS: Final = 3_000
"""The time of all requests for one schema."""
RETRY_MS: Final = 10_000
"""The time in which a failed request is not repeated."""
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_MAX_PROBLEM_CHARS: Final = 200
Reader: TypeAlias = AvroReader | ProtobufReader | None
"""The reader of a schema, or None for JSON, which needs none."""


class RegistryLogin(NamedTuple):
    """The value of the header Authorization, and the TLS settings. Each is None if the file has none."""

    authorization: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "RegistryLogin([hidden])"


NO_LOGIN: Final = RegistryLogin()


def read_registry_login(path: Path) -> RegistryLogin:
    """Returns what a file of client properties says about the registry. Properties of other subjects are
    ignored. Raises SecurityConfigError, whose message contains no secret.
    """
    with naming(path):
        return parse_registry_login(file_properties(path))


def parse_registry_login(properties: Mapping[str, str]) -> RegistryLogin:
    """Raises SecurityConfigError."""
    left = {name: text for name, text in properties.items() if name.startswith(_PREFIXES)}
    tls_names = [name for name in left if name.startswith(f"{_TLS_PREFIX}ssl.")]
    of_tls = {name.removeprefix(_TLS_PREFIX): left.pop(name) for name in tls_names}
    basic, bearer = _basic(left), _bearer(left)
    if left:
        raise SecurityConfigError(f"{min(left)} is not supported")
    if basic is not None and bearer is not None:
        raise SecurityConfigError("bearer.auth.token: basic.auth.user.info is set, too; remove one of them")
    if not of_tls:
        return RegistryLogin(basic or bearer)
    try:
        return RegistryLogin(basic or bearer, parse_tls(of_tls))
    except SecurityConfigError as error:
        raise SecurityConfigError(f"{_TLS_PREFIX}{error}") from None


def _basic(left: dict[str, str]) -> str | None:
    source, info = left.pop("basic.auth.credentials.source", ""), left.pop("basic.auth.user.info", "")
    if not source and not info:
        return None
    if source != USER_INFO:
        raise SecurityConfigError(
            f"basic.auth.credentials.source: it must be {USER_INFO}, with basic.auth.user.info=NAME:PASSWORD"
        )
    if not info.partition(":")[0] or ":" not in info or len(info) > MAX_CREDENTIALS_CHARACTERS:
        raise SecurityConfigError("basic.auth.user.info: it is not NAME:PASSWORD")
    return f"Basic {base64.b64encode(info.encode()).decode()}"


def _bearer(left: dict[str, str]) -> str | None:
    source, token = left.pop("bearer.auth.credentials.source", ""), left.pop("bearer.auth.token", "")
    if not source and not token:
        return None
    if source not in ("", STATIC_TOKEN):
        raise SecurityConfigError(
            f"bearer.auth.credentials.source: it must be {STATIC_TOKEN}, with bearer.auth.token"
        )
    if _TOKEN.fullmatch(token) is None or len(token) > MAX_CREDENTIALS_CHARACTERS:
        raise SecurityConfigError("bearer.auth.token: it is not a bearer token")
    return f"Bearer {token}"


class RegistryError(Exception):
    """A schema cannot be had. The message is one sentence."""


class _SilentError(RegistryError):
    """The registry does not answer or refuses the login, so that it is not asked for other schemas either."""


class SchemaRegistry:
    """The schemas of one registry. It may be used by several threads, of which one asks at a time."""

    def __init__(self, url: str, clock: Callable[[], MonotonicMs], login: RegistryLogin = NO_LOGIN) -> None:
        """Raises SchemaError, whose message begins with the URL."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise SchemaError(f"{url} is not an http or https URL, such as http://127.0.0.1:8081")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise SchemaError(
                f"{parts.hostname}: the registry's URL may have neither a login, a query nor a fragment"
            )
        if login.tls is not None and parts.scheme == "http":
            raise SchemaError(f"{url} has no TLS, to which schema.registry.ssl.* would belong: write https")
        self.name = parts.netloc
        self.sends_login_in_clear = login.authorization is not None and parts.scheme == "http"
        self._login = login
        self._context = login.tls
        if parts.scheme == "https" and login.tls is None:
            self._context = ssl.create_default_context()
        self.host = parts.hostname
        self._port = port
        self._path = parts.path.rstrip("/")
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Reader | RegistryError, MonotonicMs | None]] = OrderedDict()
        self._silent: tuple[RegistryError, MonotonicMs] | None = None

    def knows(self, schema_id: int) -> bool:
        """Returns whether `reader` answers without a request."""
        with self._lock:
            return self._known(schema_id) is not None

    def reader(self, schema_id: int) -> Reader:
        """Returns the reader of a schema. Raises RegistryError."""
        with self._lock:
            found = self._known(schema_id)
            if found is None:
                found = (self._looked_up(schema_id),)
        if isinstance(found[0], RegistryError):
            raise found[0]
        return found[0]

    def _known(self, schema_id: int) -> tuple[Reader | RegistryError] | None:
        now_ms = self._clock()
        if schema_id in self._kept:
            reader, until_ms = self._kept[schema_id]
            if until_ms is None or now_ms < until_ms:
                self._kept.move_to_end(schema_id)
                return (reader,)
        if self._silent is not None and now_ms < self._silent[1]:
            return (self._silent[0],)
        return None

    def _looked_up(self, schema_id: int) -> Reader | RegistryError:
        found: Reader | RegistryError
        until_ms: MonotonicMs | None = None
        try:
            found = _Lookup(self, schema_id, self._clock).reader()
        except RegistryError as error:
            found = error
            until_ms = MonotonicMs(self._clock() + RETRY_MS)
            if isinstance(error, _SilentError):
                self._silent = error, until_ms
        self._kept[schema_id] = found, until_ms
        self._kept.move_to_end(schema_id)
        if len(self._kept) > MAX_SCHEMAS:
            self._kept.popitem(last=False)
        return found

    def get(self, path: str, timeout_ms: int) -> tuple[int, bytes]:
        """Returns the status and the body of an answer. Raises RegistryError."""
        timeout_s = timeout_ms / 1000
        if self._context is None:
            connection = http.client.HTTPConnection(self.host, self._port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(
                self.host, self._port, timeout=timeout_s, context=self._context
            )
        try:
            connection.connect()
            # The timeout of a socket begins again with each byte, and this one does not.
            ending = threading.Timer(timeout_s, _shut_down, (connection.sock,))
            ending.start()
            try:
                connection.request("GET", self._path + path, headers=self._headers())
                response = connection.getresponse()
                body = response.read(MAX_RESPONSE_BYTES + 1)
            finally:
                ending.cancel()
        except (OSError, http.client.HTTPException) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _SilentError(
                f"The schema registry {self.name} does not answer: {problem[:_MAX_PROBLEM_CHARS]}."
            ) from None
        finally:
            connection.close()
        if response.status == http.client.UNAUTHORIZED:
            problem = "requires a login. Give one with --schema-registry-config"
            if self._login.authorization is not None:
                problem = "does not accept the login of --schema-registry-config"
            raise _SilentError(f"The schema registry {self.name} {problem}.")
        return response.status, body

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT}
        if self._login.authorization is not None:
            headers["Authorization"] = self._login.authorization
        return headers


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)


class _Lookup:
    """The requests for one schema."""

    def __init__(self, registry: SchemaRegistry, schema_id: int, clock: Callable[[], MonotonicMs]) -> None:
        self._registry = registry
        self._schema_id = schema_id
        self._clock = clock
        self._deadline_ms = clock() + LOOKUP_TIMEOUT_MS
        self._requests = 0
        self._imported: dict[str, str | None] = {}

    def reader(self) -> Reader:
        """Raises RegistryError."""
        path = f"/schemas/ids/{self._schema_id}"
        answer = self._ask(path)
        kind = answer.get("schemaType") or "AVRO"
        if kind == "JSON":
            return None
        if kind not in ("AVRO", "PROTOBUF"):
            raise self._error(
                f"has the type {str(kind)[:_MAX_PROBLEM_CHARS]}, which the console does not decode"
            )
        query = ""
        if kind == "PROTOBUF":
            query = "?format=serialized"
            answer = self._ask(path + query)
        self._import(answer, query)
        texts = [text for text in self._imported.values() if text is not None]
        try:
            if kind == "AVRO":
                return AvroReader(_text(answer), texts)
            files: list[tuple[str | None, bytes]] = [
                (name, self._serialized(text)) for name, text in self._imported.items() if text is not None
            ]
            return ProtobufReader(
                [*files, (f"schema-{self._schema_id}.proto", self._serialized(_text(answer)))]
            )
        except SchemaError as error:
            raise self._error(f"is not usable: {error}") from None

    def _import(self, answer: dict[str, Any], query: str) -> None:
        """Fetches the schemas that a schema refers to, each after those to which it refers itself."""
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._error("is not usable: its references are no list")
        for each in references:
            if not isinstance(each, dict) or not all(key in each for key in ("name", "subject", "version")):
                raise self._error("is not usable: a reference lacks its name, subject or version")
            name = str(each["name"])
            if name in self._imported:
                continue
            self._imported[name] = None  # a circle of references ends here
            subject, version = quote(str(each["subject"]), safe=""), quote(str(each["version"]), safe="")
            found = self._ask(f"/subjects/{subject}/versions/{version}{query}")
            self._import(found, query)
            del self._imported[name]
            self._imported[name] = _text(found)

    def _ask(self, path: str) -> dict[str, Any]:
        left_ms = self._deadline_ms - self._clock()
        self._requests += 1
        if left_ms <= 0 or self._requests > MAX_REQUESTS:
            raise self._error(f"needs more than {MAX_REQUESTS} requests or {LOOKUP_TIMEOUT_MS / 1000:.0f} s")
        status, body = self._registry.get(path, left_ms)
        if status == http.client.NOT_FOUND:
            raise RegistryError(f"The schema registry {self._registry.name} has nothing at {path}.")
        if status != http.client.OK:
            raise RegistryError(
                f"The schema registry {self._registry.name} refuses {path} with status {status}."
            )
        if len(body) > MAX_RESPONSE_BYTES:
            raise self._error(f"is larger than {MAX_RESPONSE_BYTES // 1024} KiB")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise self._error("is not usable: the answer is not JSON with a schema")
        return answer

    def _serialized(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise self._error(
                "is Protobuf that the registry does not serialize. Give its descriptor set in --schema-dir"
            ) from None

    def _error(self, problem: str) -> RegistryError:
        return RegistryError(f"Schema {self._schema_id} of {self._registry.name} {problem}.")


def _text(answer: dict[str, Any]) -> str:
    return str(answer["schema"])
