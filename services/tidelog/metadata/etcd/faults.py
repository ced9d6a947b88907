"""Classifies the failures of calls to etcd.

etcd distinguishes its errors by gRPC status and text (its `rpctypes` package). For some errors, only the text
tells whether etcd may have executed the call.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import grpc

from tidelog.metadata.store import InvalidTxnError, LeaseNotFoundError, StoreError, StoreUnavailableError


class StoreRefusedError(StoreUnavailableError):
    """etcd answers but rejects this user: the password is wrong, or the user has no permission for the
    keys.
    """


class CallFault(Enum):
    """The kind of a failure.

    - `NOT_DONE`: etcd certainly did not execute the call, and another member may execute it.
    - `UNKNOWN`: etcd may have executed the call, or may still execute it.
    - `TOKEN`: etcd did not execute the call, because it has no valid token.

    The others are final answers. USER_EXISTS and NO_SUCH_USER are about users and roles. NO_SPACE has one
    exception: at the moment when the space runs out, etcd executes a write and still answers NO_SPACE.
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
    USER_EXISTS = auto()
    NO_SUCH_USER = auto()
    NO_SPACE = auto()


class CallFailedError(Exception):
    """A call failed. This package converts it before it reaches a caller of the store."""

    def __init__(self, fault: CallFault, details: str) -> None:
        super().__init__(details)
        self.fault = fault
        self.details = details

    def for_caller(self) -> StoreError:
        """Returns the error of the store's contract."""
        if self.fault is CallFault.LEASE_NOT_FOUND:
            return LeaseNotFoundError(self.details)
        if self.fault is CallFault.INVALID:
            return InvalidTxnError(self.details)
        if self.fault in (CallFault.REFUSED, CallFault.TOKEN):
            return StoreRefusedError(f"etcd rejects the call: {self.details}")
        return StoreUnavailableError(f"etcd: {self.details}")


# A member answers these before it proposes anything to the cluster.
_NOT_DONE_TEXTS: Final = ("etcdserver: no leader", "etcdserver: too many requests")
_TOKEN_TEXTS: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
_EXISTS_TEXTS: Final = ("user name already exists", "role name already exists")
_NO_SUCH_TEXTS: Final = ("user name not found", "role name not found")
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
    if any(text in details for text in _EXISTS_TEXTS):
        return CallFault.USER_EXISTS
    if any(text in details for text in _NO_SUCH_TEXTS):
        return CallFault.NO_SUCH_USER
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
    """Converts an error of grpc. Its blocking and asynchronous calls both have `code` and `details`."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    details = error.details() or code.name
    return CallFailedError(fault_of(code, details), details)
