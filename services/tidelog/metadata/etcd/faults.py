"""What went wrong with a call to etcd, and what may be done about it.

etcd tells its errors apart by gRPC status and text (its `rpctypes` package); the text is the only difference
between some that were surely not carried out and some that may have been.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import grpc

from tidelog.metadata.store import InvalidTxnError, LeaseNotFoundError, StoreError, StoreUnavailableError


class StoreRefusedError(StoreUnavailableError):
    """etcd answers, but refuses this user: wrong password, or no right to the keys."""


class CallFault(Enum):
    """`NOT_DONE`: surely not carried out, another member may do it. `UNKNOWN`: may have been carried out, or
    still be. `TOKEN`: not carried out for want of a valid token. The others are final answers; only at the
    moment when space runs out, etcd carries a write out and answers NO_SPACE all the same.
    """

    NOT_DONE = auto()
    UNKNOWN = auto()
    TOKEN = auto()
    REFUSED = auto()
    LEASE_NOT_FOUND = auto()
    COMPACTED = auto()
    INVALID = auto()
    TOO_LARGE_ANSWER = auto()
    AUTH_NOT_ENABLED = auto()
    NO_SPACE = auto()


class CallFailedError(Exception):
    """A call that was not answered. Never leaves this package."""

    def __init__(self, fault: CallFault, details: str) -> None:
        super().__init__(details)
        self.fault = fault
        self.details = details

    def for_caller(self) -> StoreError:
        """As the store's contract names it."""
        if self.fault is CallFault.LEASE_NOT_FOUND:
            return LeaseNotFoundError(self.details)
        if self.fault is CallFault.INVALID:
            return InvalidTxnError(self.details)
        if self.fault in (CallFault.REFUSED, CallFault.TOKEN):
            return StoreRefusedError(f"etcd refuses: {self.details}")
        return StoreUnavailableError(f"etcd: {self.details}")


# Answered by a member's front door, before anything is proposed to the cluster.
_NOT_DONE_TEXTS: Final = ("etcdserver: no leader", "etcdserver: too many requests")
_TOKEN_TEXTS: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
_BY_CODE: Final = {
    grpc.StatusCode.UNAUTHENTICATED: CallFault.TOKEN,
    grpc.StatusCode.PERMISSION_DENIED: CallFault.REFUSED,
    grpc.StatusCode.INVALID_ARGUMENT: CallFault.INVALID,
}


def fault_of(code: grpc.StatusCode, details: str) -> CallFault:
    if any(text in details for text in _NOT_DONE_TEXTS):
        return CallFault.NOT_DONE
    if any(text in details for text in _TOKEN_TEXTS):
        return CallFault.TOKEN
    if "authentication is not enabled" in details:
        return CallFault.AUTH_NOT_ENABLED
    if "authentication failed" in details:
        return CallFault.REFUSED
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return CallFault.LEASE_NOT_FOUND
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return CallFault.COMPACTED
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return CallFault.TOO_LARGE_ANSWER
    if "database space exceeded" in details:
        return CallFault.NO_SPACE
    return _BY_CODE.get(code, CallFault.UNKNOWN)


def failed_call(error: grpc.RpcError) -> CallFailedError:
    """Of what grpc raises; its two kinds of calls, blocking and not, share `code` and `details`."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    details = error.details() or code.name
    return CallFailedError(fault_of(code, details), details)
