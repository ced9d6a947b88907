"""Converts the store's types to etcd's messages and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.metadata.etcd.generated import kv_pb2
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.store import (
    Compare,
    CompareOperator,
    CompareTarget,
    Get,
    InvalidTxnError,
    KeyValue,
    Operation,
    Put,
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
