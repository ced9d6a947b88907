"""Each kind of service may read and write only some keys of etcd."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidelog.cli.etcd import etcd_role
from tidelog.metadata.etcd.users import KeyRange
from tidelog.rpc.peer_tls import ServiceRole

BROKER, CONTROLLER, COORDINATOR = ServiceRole


def _contains(ranges: Iterable[KeyRange], key: str) -> bool:
    return any(key.startswith(r.key) if r.is_prefix else key == r.key for r in ranges)


@pytest.mark.parametrize(
    ("key", "readers", "writers"),
    [
        ("/brokers/ids/1", {BROKER, COORDINATOR}, {BROKER}),
        ("/brokers/topics/t/partitions/0/state", {BROKER, COORDINATOR}, {BROKER}),
        ("/isr_change_notification/counter", {BROKER}, {BROKER}),
        ("/coordinators/group/shards/0/owner", {COORDINATOR}, {COORDINATOR}),
        ("/cluster/id", {BROKER, COORDINATOR}, set()),
        ("/tidelog/schema_version", {BROKER, COORDINATOR}, set()),
        ("/controller", {BROKER}, set()),
        ("/controller_epoch", {BROKER}, set()),
        ("/config/brokers/<default>", {COORDINATOR}, set()),
        ("/config/groups/g", {COORDINATOR}, set()),
        ("/acls/topic/literal/t", set(), set()),
        ("/config/scram/SCRAM-SHA-512/admin", set(), set()),
        ("/config/delegation_tokens/t", set(), set()),
        ("/config/topics/t", set(), set()),
        ("/latest_producer_id_block", set(), set()),
    ],
)
def test_only_the_controller_reaches_all_keys(
    key: str, readers: set[ServiceRole], writers: set[ServiceRole]
) -> None:
    roles = {kind: etcd_role(kind) for kind in ServiceRole}
    found_writers = {kind for kind, role in roles.items() if _contains(role.writes, key)}
    found_readers = {kind for kind, role in roles.items() if _contains((*role.reads, *role.writes), key)}
    assert found_writers == {*writers, CONTROLLER}
    assert found_readers == {*readers, CONTROLLER}
