"""The permissions of etcd's users."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tidelog.cli.local_cluster.etcd_users import setup_calls, user_name
from tidelog.rpc.callers import ServiceRole


def may_write(role: ServiceRole, key: str, prefix: str = "") -> bool:
    ranges: list[tuple[bytes, bytes]] = []
    for call in setup_calls(prefix, "tools-1"):
        body: dict[str, Any] = call.body
        if call.path != "role/grant" or body["name"] != user_name(role):
            continue
        permission = body["perm"]
        if permission["permType"] == "READWRITE":
            first = base64.b64decode(permission["key"])
            end = base64.b64decode(permission.get("range_end", "")) or first + b"\0"
            ranges.append((first, end))
    return any(first <= (prefix + key).encode() < end for first, end in ranges)


@pytest.mark.parametrize("prefix", ["", "/one"])
@pytest.mark.parametrize(
    ("key", "writers"),
    [
        ("/brokers/ids/1", {ServiceRole.BROKER}),
        ("/brokers/topics/t/partitions/0/state", {ServiceRole.BROKER}),
        ("/isr_change_notification/counter", {ServiceRole.BROKER}),
        ("/coordinators/group/shards/0/owner", {ServiceRole.GROUP_COORDINATOR}),
        ("/cluster/id", {ServiceRole.BROKER, ServiceRole.GROUP_COORDINATOR}),
        ("/controller", set()),
        ("/controller_epoch", set()),
        ("/acls/topic/literal/t", set()),
        ("/config/scram/SCRAM-SHA-512/admin", set()),
        ("/config/topics/t", set()),
        ("/latest_producer_id_block", set()),
    ],
)
def test_only_the_controller_writes_the_rest(key: str, writers: set[ServiceRole], prefix: str) -> None:
    found = {role for role in ServiceRole if may_write(role, key, prefix)}
    assert found == {*writers, ServiceRole.CONTROLLER}


def test_users_are_required_last() -> None:
    assert [call.path for call in setup_calls("", "tools-1")][-1] == "enable"
