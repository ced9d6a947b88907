"""Converts the store's types to etcd's messages and back, and classifies the failures of calls to etcd.

etcd distinguishes its errors by gRPC status and text (its `rpctypes` package). For some errors, only the text
tells whether etcd may have executed the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

import grpc

from tidelog.metadata.etcd.generated import kv_pb2
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.store import (
    Compare,
    CompareOperator,
    CompareTarget,
    Get,
    InvalidTxnError,
    KeyValue,
    LeaseNotFoundError,
    Operation,
    Put,
    StoreError,
    StoreUnavailableError,
    TxnResult,
)

_RESULTS: Final = {
    CompareOperator.EQUAL: pb.Compare.EQUAL,
    CompareOperator.NOT_EQUAL: pb.Compare.NOT_EQUAL,
    CompareOperator.GREATER: pb.Compare.GREATER,
    CompareOperator.LESS: pb.Compare.LESS,
}
_EVERYTHING: Final = (b"\0", b"\0")


class KeyNames:
    """Converts keys, adding and removing the prefix of this cluster."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def encode(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def decode(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode(errors="replace")

    def range_of(self, prefix: str) -> tuple[bytes, bytes]:
        """Returns the range of all keys that start with `prefix`: the first key, and the first key after the
        range.
        """
        first = self.encode(prefix)
        stem = first.rstrip(b"\xff")
        if stem:
            return first, stem[:-1] + bytes([stem[-1] + 1])
        return (first, b"\0") if first else _EVERYTHING

    def key_value(self, kv: kv_pb2.KeyValue) -> KeyValue:
        return KeyValue(
            self.decode(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease
        )

    def txn_request(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
    ) -> pb.TxnRequest:
        """Raises InvalidTxnError if the type of an operand does not match its target."""
        return pb.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._operation(operation) for operation in success],
            failure=[self._operation(operation) for operation in failure],
        )

    def txn_result(self, answer: pb.TxnResponse) -> TxnResult:
        reads = tuple(
            self.key_value(response.response_range.kvs[0]) if response.response_range.kvs else None
            for response in answer.responses
            if response.WhichOneof("response") == "response_range"
        )
        return TxnResult(answer.succeeded, answer.header.revision, reads)

    def _compare(self, compare: Compare) -> pb.Compare:
        key, result, operand = self.encode(compare.key), _RESULTS[compare.operator], compare.operand
        if compare.target is CompareTarget.VALUE:
            if isinstance(operand, bytes):
                return pb.Compare(key=key, result=result, target=pb.Compare.VALUE, value=operand)
        elif isinstance(operand, int):
            if compare.target is CompareTarget.VERSION:
                return pb.Compare(key=key, result=result, target=pb.Compare.VERSION, version=operand)
            if compare.target is CompareTarget.CREATE_REVISION:
                return pb.Compare(key=key, result=result, target=pb.Compare.CREATE, create_revision=operand)
            return pb.Compare(key=key, result=result, target=pb.Compare.MOD, mod_revision=operand)
        raise InvalidTxnError(f"can't compare {compare.target.value} with {type(operand).__name__}")

    def _operation(self, operation: Operation) -> pb.RequestOp:
        key = self.encode(operation.key)
        if isinstance(operation, Put):
            return pb.RequestOp(
                request_put=pb.PutRequest(key=key, value=operation.value, lease=operation.lease)
            )
        if isinstance(operation, Get):
            return pb.RequestOp(request_range=pb.RangeRequest(key=key))
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


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
