"""The faults that a test orders."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

from tidelog.broker.requests.apis import APIS
from tidelog.model.errors import ErrorCode
from tidelog.settings.other_kafka_settings import nearest_name
from tidelog.testing.blocking import loop_advice
from tidelog.testing.error_responses import error_response
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import request_class

_API_BY_NAME: Final = {ApiKey(key).name_in_kafka.lower(): ApiKey(key) for key in APIS}
_CUTOFF: Final = 0.6
"""Names are this similar if one of them is the beginning of the other: NOT_LEADER, ProduceRequest."""


def error_code(error: ErrorCode | int | str) -> ErrorCode:
    """Returns the error with a name or a number. Raises ValueError for others, and for a success."""
    if isinstance(error, str):
        found = ErrorCode.__members__.get(error.upper())
        similar = nearest_name(error.upper(), ErrorCode.__members__, cutoff=_CUTOFF)
    else:
        found, similar = next((code for code in ErrorCode if code == error), None), ""
    if not found:  # 0 is a success
        similar = similar or "; names are Kafka's, such as NOT_LEADER_OR_FOLLOWER"
        raise ValueError(f"{error} is no error of Kafka{similar}")
    return found


def _api_key(name: str) -> ApiKey:
    found = _API_BY_NAME.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        known = (each.name_in_kafka for each in _API_BY_NAME.values())
        similar = nearest_name(str(name), known, cutoff=_CUTOFF) or "; names are Kafka's, such as EndTxn"
        raise ValueError(f"{name} is no API that tidelog serves{similar}")
    return found


class Fault:
    """A fault in force. It ends after it has hit `times` requests, with `end`, or at the end of a `with`
    block. `hits` counts the requests that it has hit.
    """

    def __init__(
        self,
        api: str,
        times: int | None,
        client_id: str | None,
        *,
        code: ErrorCode | None = None,
        delay_s: float = 0.0,
        is_response_lost: bool = False,
    ) -> None:
        """Raises ValueError for an unknown API, and for an API whose responses have no error code."""
        found = _api_key(api)
        if times is not None and times < 1:
            raise ValueError(f"times is {times}, but a fault hits at least one request")
        if delay_s < 0:
            raise ValueError(f"a delay of {delay_s} s is negative")
        if code is not None:
            version = APIS[found].max_version
            error_response(found, version, request_class(found)(), code)
        self.api_key = found
        self.code = code
        self.delay_s = delay_s
        self.is_response_lost = is_response_lost
        self.hits: int = 0
        self._client_id = client_id
        self._times = times
        self._is_ended = False
        self._was_hit = threading.Condition()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def is_over(self) -> bool:
        return self._is_ended or (self._times is not None and self.hits >= self._times)

    def end(self) -> None:
        """Ends the fault: it hits no further request."""
        self._is_ended = True

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Waits until the fault has hit that many requests. Raises TimeoutError."""
        with self._was_hit:
            if not self._was_hit.wait_for(lambda: self.hits >= hits, timeout_s):
                name = self.api_key.name_in_kafka
                raise TimeoutError(
                    f"{self.hits} instead of {hits} requests of {name} were hit within {timeout_s:g} s"
                    f"{loop_advice()}"
                )

    def takes(self, api_key: int, client_id: str | None) -> bool:
        """Returns whether the fault hits this request, and counts it. Only the event loop calls it."""
        if api_key != self.api_key or self.is_over:
            return False
        if self._client_id is not None and client_id != self._client_id:
            return False
        with self._was_hit:
            self.hits += 1
            self._was_hit.notify_all()
        return True
