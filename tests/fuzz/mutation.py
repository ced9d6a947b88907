"""Builds requests of every API and version with random values, and damages some of them.

All choices come from one Random.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from tidelog.broker.requests.apis import APIS
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import encode_request_header
from tidelog.wire.schema import F, FieldType, Struct

MAX_ELEMENTS: Final = 4
"""The largest number of elements of a generated array."""
INTEGERS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
EXTREMES: Final = (b"\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x80\0\0\0")
DAMAGED_SHARE: Final = 0.5
"""The share of requests whose bytes are damaged; most of them end their connection. The other requests have
random values, extreme ones among them.
"""
WAITS: Final = frozenset({"max_wait_ms"})
"""The fields whose value makes the broker keep a request for a while."""
SHORT_SHARE: Final = 0.8
"""The share of requests with such a field that do not wait. A request that waits occupies a connection, and
tests less than the requests that could be sent meanwhile.
"""
_APIS: Final = list(APIS.items())


class RequestSource:
    """An endless source of damaged requests. `names` are the topics, groups and ids that it uses."""

    def __init__(self, random_source: random.Random, names: Sequence[str], batches: Sequence[bytes]) -> None:
        self._random = random_source
        self._names = names
        self._batches = batches
        self.corpus: list[bytes] = []

    def fill(self, count: int) -> None:
        """Generates `count` valid requests, which `next_request` damages."""
        while len(self.corpus) < count:
            self.corpus.append(self._valid_request())

    def choose_by(self, random_source: random.Random) -> None:
        """Takes all later choices from another Random."""
        self._random = random_source

    def renew(self, count: int) -> None:
        """Replaces `count` of the valid requests by new ones."""
        for _ in range(count):
            self.corpus[self._random.randrange(len(self.corpus))] = self._valid_request()

    def _valid_request(self) -> bytes:
        key, served = self._random.choice(_APIS)
        version = self._random.randint(served.min_version, served.max_version)
        return self._encoded(ApiKey(key), version)

    def burst(self, count: int) -> list[bytes]:
        """Returns complete frames, the damaged ones last. The broker closes a connection at the first frame
        that it cannot read, and does not handle the frames behind it.
        """
        damaged = sum(self._random.random() < DAMAGED_SHARE for _ in range(count))
        return [self._frame(is_damaged=number >= count - damaged) for number in range(count)]

    def _frame(self, *, is_damaged: bool) -> bytes:
        chosen = self._random
        payload = bytearray(chosen.choice(self.corpus))
        if is_damaged:
            for _ in range(chosen.choice((1, 1, 1, 2, 5))):
                self._damage(payload)
        return struct.pack(">i", len(payload)) + payload

    def _damage(self, payload: bytearray) -> None:
        chosen = self._random
        # Most damage is in the body, because a request with a damaged header only closes the connection.
        place = chosen.randrange(min(14, len(payload)) if chosen.random() < 0.95 else 0, len(payload) + 1)
        kind = chosen.random()
        if kind < 0.4 and place < len(payload):
            payload[place] ^= 1 << chosen.randrange(8)
        elif kind < 0.7:
            piece = chosen.choice(EXTREMES)
            payload[place : place + len(piece)] = piece
        elif kind < 0.8:
            payload[place:place] = chosen.randbytes(chosen.randrange(1, 9))
        elif kind < 0.9:
            del payload[place : place + chosen.randrange(1, 9)]
        elif kind < 0.97:
            other = chosen.choice(self.corpus)
            start = chosen.randrange(len(other))
            payload[place : place + 16] = other[start : start + 16]
        else:
            del payload[max(place, 14) :]

    def _encoded(self, api_key: ApiKey, version: int) -> bytes:
        message = self.message(api_key, version)
        header = encode_request_header(api_key, version, 1, self._random.choice(("fuzz", "", None)))
        return bytes(header) + b"".join(map(bytes, codec.request_encoder(api_key, version)(message)))

    def message(self, api_key: ApiKey, version: int) -> Any:  # Any: the class is chosen at run time
        """Returns a valid request with random values."""
        return self._struct(codec.request_class(api_key), version)

    def _struct(self, kind: type[Struct], version: int) -> Any:  # Any: a generated class chosen at run time
        return kind(**{f.name: self._field(f, version) for f in kind.FIELDS if f.is_in(version)})

    def _field(self, field: F, version: int) -> object:
        if field.name in WAITS and self._random.random() < SHORT_SHARE:
            return 0
        if field.is_nullable_in(version) and self._random.random() < 0.2:
            return None
        return self._value(field.kind, version)

    def _value(self, kind: FieldType, version: int) -> object:
        chosen = self._random
        if isinstance(kind, tuple):
            return [self._value(kind[0], version) for _ in range(chosen.randrange(MAX_ELEMENTS + 1))]
        if not isinstance(kind, str):
            return self._struct(kind, version)
        if kind in INTEGERS:
            bits = INTEGERS[kind]
            largest = (1 << bits - 1) - 1
            near = chosen.choice((0, 0, 1, 2, -1, 5, 100))
            return chosen.choice((near, near, near, chosen.randint(-largest - 1, largest), largest))
        match kind:
            case "bool":
                return chosen.random() < 0.5
            case "uint16" | "uint32":
                return chosen.choice((0, 1, chosen.randrange(1 << 16)))
            case "float64":
                return chosen.choice((0.0, -1.0, 1e300, float("nan")))
            case "uuid":
                return chosen.choice((UUID(int=0), UUID(int=chosen.getrandbits(128))))
            case "records":
                return chosen.choice(self._batches)
            case "bytes":
                return chosen.randbytes(chosen.choice((0, 1, 10, 100)))
        return chosen.choice(self._names)
