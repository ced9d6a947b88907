"""Addresses of etcd, key ranges, and the classification of etcd's errors."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.metadata.etcd.connection import EtcdAddressError, EtcdEndpoint, EtcdOptions
from tidelog.metadata.etcd.messages import CallFault, KeyNames, fault_of
from tidelog.metadata.store import Compare, CompareTarget, InvalidTxnError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://a:1", EtcdEndpoint("a:1", False)),
        ("https://a.b", EtcdEndpoint("a.b:2379", True)),
        ("a", EtcdEndpoint("a:2379", False)),
        ("127.0.0.1:9", EtcdEndpoint("127.0.0.1:9", False)),
        ("http://[::1]:9/", EtcdEndpoint("[::1]:9", False)),
    ],
)
def test_endpoints(text: str, endpoint: EtcdEndpoint) -> None:
    assert EtcdEndpoint.parse(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", "ftp://a:1", "http://", "http://a:b", "a:1/x", "http://u@a:1", "a:70000"]
)
def test_no_endpoints(text: str) -> None:
    with pytest.raises(EtcdAddressError):
        EtcdEndpoint.parse(text)


def test_options() -> None:
    tls = EtcdOptions(("a:1", "http://b:1"), ca_file="ca.pem").parsed_endpoints()
    assert tls == (EtcdEndpoint("a:1", True), EtcdEndpoint("b:1", False))
    with pytest.raises(EtcdAddressError, match="no etcd endpoint"):
        EtcdOptions(()).parsed_endpoints()
    with pytest.raises(EtcdAddressError, match="key"):
        EtcdOptions(("a:1",), cert_file="client.pem").parsed_endpoints()


@given(st.text(max_size=5), st.text(max_size=4), st.text(max_size=8))
def test_a_range_contains_exactly_the_keys_with_the_prefix(space: str, prefix: str, key: str) -> None:
    names = KeyNames(space)
    first, end = names.range_of(prefix)
    encoded = names.encode(key)
    is_inside = first <= encoded and (end == b"\0" or encoded < end)
    assert (is_inside and bool(encoded)) == (key.startswith(prefix) and bool(encoded))
    assert names.decode(encoded) == key


def test_the_type_of_an_operand_must_match_its_target() -> None:
    for compare in (Compare("/a", CompareTarget.VALUE, 1), Compare("/a", CompareTarget.VERSION, b"1")):
        with pytest.raises(InvalidTxnError):
            KeyNames("").txn_request([compare], [], [])


@pytest.mark.parametrize(
    ("code", "details", "fault"),
    [
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", CallFault.NOT_DONE),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", CallFault.UNKNOWN),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", CallFault.UNKNOWN),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", CallFault.UNKNOWN),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", CallFault.TOKEN),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", CallFault.TOKEN),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given", CallFault.INVALID),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", CallFault.REFUSED),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", CallFault.LEASE_NOT_FOUND),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", CallFault.NO_SPACE),
    ],
)
def test_faults(code: grpc.StatusCode, details: str, fault: CallFault) -> None:
    assert fault_of(code, details) is fault
