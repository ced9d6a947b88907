"""Requests of consumer groups, and of transactions and their producers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from answerslab.question import (
    GROUP,
    MANY_MS,
    MISSING,
    TOPIC,
    TRANSACTION,
    Case,
    Cases,
    Fields,
    Scene,
)
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import txn_offset_commit

Maker = Callable[[Scene], Fields]
GENERATION = next(
    field.name
    for field in dataclasses.fields(txn_offset_commit.TxnOffsetCommitRequest)
    if field.name.startswith("generation_id")
)
"""The generation in TxnOffsetCommit, which has a longer name in newer versions of Kafka."""
NO_GROUP, NO_MEMBER, NO_TRANSACTION = "answers-no-group", "answers-no-member", "answers-no-transaction"


def _commit(group: str = GROUP, topic: str = TOPIC, of_request: Fields | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        part = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "", **fields}]
        topics = [{"name": topic, "topic_id": scene.id_of(topic), "partitions": part}]
        return {"group_id": group, "topics": topics, **(of_request or {})}

    return make


def _committed(group: str = GROUP, topics: tuple[str, ...] | None = (TOPIC,), **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        if scene.version < 8:
            old = None if topics is None else [{"name": n, "partition_indexes": [0, 9]} for n in topics]
            return {"group_id": group, "topics": old}
        named = (
            None
            if topics is None
            else [{"name": n, "topic_id": scene.id_of(n), "partition_indexes": [0, 9]} for n in topics]
        )
        return {"groups": [{"group_id": group, "topics": named, **fields}]}

    return make


def _find(key: str, key_type: int = 0) -> Maker:
    def make(scene: Scene) -> Fields:
        keys = {"key": key} if scene.version < 4 else {"coordinator_keys": [key]}
        return {"key_type": key_type, **keys}

    return make


def _join(group: str | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        return {
            "group_id": f"answers-join-{scene.tag}" if group is None else group,
            "session_timeout_ms": MANY_MS,
            "rebalance_timeout_ms": MANY_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            **fields,
        }

    return make


def _leave(group: str, member: str) -> Fields:
    return {"group_id": group, "member_id": member, "members": [{"member_id": member}]}


def _sync(group: str) -> Fields:
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    return {"group_id": group, "generation_id": 1, "member_id": NO_MEMBER, **protocol}


def _deleted(group: str = GROUP, topic: str = TOPIC, partition: int = 0) -> Fields:
    return {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}


def _of_group(api: str) -> Maker:
    """Makes a request of a group that exists, and is new for each request."""

    def make(scene: Scene) -> Fields:
        group = f"answers-{api}-{scene.tag}"
        scene.commit(group)
        return {"groups_names": [group]}

    return make


def _heartbeat(group: str | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        return {
            "group_id": f"answers-consumer-{scene.tag}" if group is None else group,
            "member_id": f"member-{scene.tag}",
            "member_epoch": 0,
            "rebalance_timeout_ms": MANY_MS,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
            **fields,
        }

    return make


def _heartbeat_of_group_with_offsets(scene: Scene) -> Fields:
    group = f"answers-upgraded-{scene.tag}"
    scene.commit(group)
    return _heartbeat(group)(scene)


def _topology(topics: list[str], epoch: int = 0, **fields: Any) -> Fields:
    return {
        "epoch": epoch,
        "subtopologies": [{"subtopology_id": "0", "source_topics": topics, **fields}],
    }


def _streams_heartbeat(group: str | None = None, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        return {
            "group_id": f"answers-streams-{scene.tag}" if group is None else group,
            "member_id": f"member-{scene.tag}",
            "member_epoch": 0,
            "endpoint_information_epoch": -1,
            "rebalance_timeout_ms": MANY_MS,
            "topology": _topology([TOPIC]),
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
            "process_id": "p",
            **fields,
        }

    return make


def _streams_heartbeat_with_store(scene: Scene) -> Fields:
    changelog = {"name": f"answers-streams-{scene.tag}-changelog"}
    topology = _topology([TOPIC], state_changelog_topics=[changelog])
    return _streams_heartbeat(topology=topology)(scene)


def _streams_heartbeat_of_group_with_offsets(scene: Scene) -> Fields:
    group = f"answers-streams-upgraded-{scene.tag}"
    scene.commit(group)
    return _streams_heartbeat(group)(scene)


def _add_partitions(transaction: str | None = None, topic: str = TOPIC, lag: int = 0, **fields: Any) -> Maker:
    def make(scene: Scene) -> Fields:
        producer_id, epoch = _producer(scene, transaction, lag)
        name = f"answers-add-{scene.tag}" if transaction is None else transaction
        parts = [{"name": topic, "partitions": [0]}]
        if scene.version < 4:
            return {
                "v3_and_below_transactional_id": name,
                "v3_and_below_producer_id": producer_id,
                "v3_and_below_producer_epoch": epoch,
                "v3_and_below_topics": parts,
            }
        return {
            "transactions": [
                {
                    "transactional_id": name,
                    "producer_id": producer_id,
                    "producer_epoch": epoch,
                    "topics": parts,
                    **fields,
                }
            ]
        }

    return make


def _producer(scene: Scene, transaction: str | None, lag: int) -> tuple[int, int]:
    """Returns the producer of a transactional id of this request alone, or an unknown one. `lag` is how many
    epochs the producer is behind.
    """
    if transaction is not None:
        return 999_999, 0
    name = f"answers-add-{scene.tag}"
    producer_id, epoch = scene.producer(name)
    for _ in range(lag):
        scene.producer(name)
    return producer_id, epoch


def _in_transaction(transaction: str | None = None, lag: int = 0, **fields: Any) -> Maker:
    """Makes a request that names a transaction and its producer."""

    def make(scene: Scene) -> Fields:
        producer_id, epoch = _producer(scene, transaction, lag)
        name = f"answers-add-{scene.tag}" if transaction is None else transaction
        return {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, **fields}

    return make


def _end(is_begun: bool, committed: bool = True) -> Maker:
    def make(scene: Scene) -> Fields:
        name = f"answers-end-{scene.tag}-{committed}-{is_begun}"
        producer_id, epoch = scene.begin(name) if is_begun else scene.producer(name)
        return {
            "transactional_id": name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": committed,
        }

    return make


def _offsets(topic: str = TOPIC) -> list[Fields]:
    part = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    return [{"name": topic, "partitions": part}]


CASES: Cases = {
    ApiKey.LIST_GROUPS: (
        Case("valid", {}),
        Case("by state", {"states_filter": ["Empty"]}, 4),
        Case("state that does not exist", {"states_filter": ["Sleeping"]}, 4),
        Case("by type", {"types_filter": ["classic"]}, 5),
        Case("type that does not exist", {"types_filter": ["other"]}, 5),
    ),
    ApiKey.OFFSET_COMMIT: (
        Case("valid", _commit()),
        Case("unknown topic", _commit(topic=MISSING)),
        Case("unknown partition", _commit(partition_index=9)),
        Case("empty group", _commit("")),
        Case(
            "unknown member",
            _commit(of_request={"generation_id_or_member_epoch": 3, "member_id": NO_MEMBER}),
        ),
        Case(
            "unknown member of a new group",
            _commit(NO_GROUP, of_request={"generation_id_or_member_epoch": 3, "member_id": NO_MEMBER}),
        ),
        Case("unknown static member", _commit(of_request={"group_instance_id": "i"}), 7),
        Case("long metadata", _commit(committed_metadata="m" * 5000)),
        Case("negative offset", _commit(committed_offset=-7)),
        Case("no topics", {"group_id": GROUP, "topics": []}),
    ),
    ApiKey.OFFSET_FETCH: (
        Case("valid", _committed()),
        Case("all topics", _committed(topics=None), 2),
        Case("no topics", _committed(topics=())),
        Case("unknown topic", _committed(topics=(MISSING,))),
        Case("unknown group", _committed(NO_GROUP)),
        Case("empty group", _committed("")),
        Case("unknown member", _committed(member_id=NO_MEMBER, member_epoch=3), 9),
        Case("no groups", {"groups": []}, 8),
    ),
    ApiKey.FIND_COORDINATOR: (
        Case("valid", _find(GROUP)),
        Case("of a transaction", _find(TRANSACTION, 1), 1),
        Case("of a share partition", _find(f"{GROUP}:x:0", 2), 1),
        Case("type that does not exist", _find(GROUP, 7), 1),
        Case("empty group", _find("")),
        Case("empty transactional id", _find("", 1), 1),
        Case("no keys", {"key_type": 0, "coordinator_keys": []}, 4),
    ),
    ApiKey.JOIN_GROUP: (
        Case("valid", _join()),
        Case("unknown member", _join(member_id=NO_MEMBER)),
        Case("empty group", _join("")),
        Case("short session timeout", _join(session_timeout_ms=1)),
        Case("long session timeout", _join(session_timeout_ms=2_000_000_000)),
        Case("no protocols", _join(protocols=[])),
        Case("empty protocol type", _join(protocol_type="")),
        Case("static member", _join(group_instance_id="i"), 5),
        Case("empty static member", _join(group_instance_id=""), 5),
    ),
    ApiKey.SYNC_GROUP: (
        Case("valid", _sync(NO_GROUP)),
        Case("empty group", _sync("")),
        Case("unknown member", _sync(GROUP)),
        Case("no protocol", {"group_id": GROUP, "generation_id": 1, "member_id": NO_MEMBER}),
        Case("other protocol", _sync(GROUP) | {"protocol_type": "x"}),
    ),
    ApiKey.HEARTBEAT: (
        Case("valid", {"group_id": NO_GROUP, "generation_id": 1, "member_id": NO_MEMBER}),
        Case("empty group", {"group_id": "", "generation_id": 1, "member_id": NO_MEMBER}),
        Case("unknown member", {"group_id": GROUP, "generation_id": 1, "member_id": NO_MEMBER}),
        Case(
            "unknown static member",
            {"group_id": GROUP, "generation_id": 1, "member_id": NO_MEMBER, "group_instance_id": "i"},
            3,
        ),
    ),
    ApiKey.LEAVE_GROUP: (
        Case("valid", _leave(NO_GROUP, NO_MEMBER)),
        Case("empty group", _leave("", NO_MEMBER)),
        Case("unknown member", _leave(GROUP, NO_MEMBER)),
        Case("no members", {"group_id": GROUP, "members": []}, 3),
        Case("static member", {"group_id": GROUP, "members": [{"group_instance_id": "i"}]}, 3),
    ),
    ApiKey.DESCRIBE_GROUPS: (
        Case("valid", {"groups": [GROUP]}),
        Case("unknown group", {"groups": [NO_GROUP]}),
        Case("empty group", {"groups": [""]}),
        Case("operations", {"groups": [GROUP], "include_authorized_operations": True}, 3),
        Case("a group twice", {"groups": [GROUP, GROUP]}),
        Case("no groups", {"groups": []}),
    ),
    ApiKey.DELETE_GROUPS: (
        Case("valid", _of_group("delete")),
        Case("unknown group", {"groups_names": [NO_GROUP]}),
        Case("empty group", {"groups_names": [""]}),
        Case("no groups", {"groups_names": []}),
    ),
    ApiKey.OFFSET_DELETE: (
        Case("valid", _deleted()),
        Case("unknown partition", _deleted(partition=9)),
        Case("unknown group", _deleted(NO_GROUP)),
        Case("empty group", _deleted("")),
        Case("unknown topic", _deleted(topic=MISSING)),
        Case("no topics", {"group_id": GROUP, "topics": []}),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        Case("valid", _heartbeat()),
        Case("empty group", _heartbeat("")),
        Case("empty member", _heartbeat(member_id="")),
        Case("unknown member", _heartbeat(member_epoch=5, topic_partitions=None)),
        Case("unknown member leaves", _heartbeat(member_epoch=-1)),
        Case("epoch that does not exist", _heartbeat(member_epoch=-3)),
        Case("unknown assignor", _heartbeat(server_assignor="none")),
        Case("no subscription", _heartbeat(subscribed_topic_names=None)),
        Case("no rebalance timeout", _heartbeat(rebalance_timeout_ms=-1)),
        Case("partitions of a new member", _heartbeat(topic_partitions=None)),
        Case("empty static member", _heartbeat(instance_id="")),
        Case("empty rack", _heartbeat(rack_id="")),
        Case("pattern that is not valid", _heartbeat(subscribed_topic_regex="(["), 1),
        Case("group with offsets", _heartbeat_of_group_with_offsets),
        Case("group with offsets, unknown member", _heartbeat(GROUP, member_epoch=5)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        Case("valid", {"group_ids": [NO_GROUP]}),
        Case("empty group", {"group_ids": [""]}),
        Case("operations", {"group_ids": [NO_GROUP], "include_authorized_operations": True}),
        Case("no groups", {"group_ids": []}),
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        Case("valid", _streams_heartbeat()),
        Case("with a store", _streams_heartbeat_with_store),
        Case("with an endpoint", _streams_heartbeat(user_endpoint={"host": "h", "port": 1})),
        Case("empty group", _streams_heartbeat("")),
        Case("empty member", _streams_heartbeat(member_id="")),
        Case("unknown member", _streams_heartbeat(member_epoch=5, topology=None)),
        Case("unknown member leaves", _streams_heartbeat(member_epoch=-1, topology=None)),
        Case("epoch that does not exist", _streams_heartbeat(member_epoch=-3, topology=None)),
        Case("topology in a later heartbeat", _streams_heartbeat(member_epoch=5)),
        Case("no topology", _streams_heartbeat(topology=None)),
        Case("empty topology", _streams_heartbeat(topology={"epoch": 0, "subtopologies": []})),
        Case("unknown topic", _streams_heartbeat(topology=_topology([MISSING]))),
        Case("internal topic", _streams_heartbeat(topology=_topology(["__consumer_offsets"]))),
        Case("topic that is not valid", _streams_heartbeat(topology=_topology(["a/b"]))),
        Case("pattern", _streams_heartbeat(topology=_topology([TOPIC], source_topic_regex=["a.*"]))),
        Case("no rebalance timeout", _streams_heartbeat(rebalance_timeout_ms=-1)),
        Case(
            "tasks of a new member",
            _streams_heartbeat(active_tasks=[{"subtopology_id": "0", "partitions": [0]}]),
        ),
        Case("no tasks of a new member", _streams_heartbeat(active_tasks=None)),
        Case("static member", _streams_heartbeat(instance_id="i")),
        Case("empty rack", _streams_heartbeat(rack_id="")),
        Case("group with offsets", _streams_heartbeat_of_group_with_offsets),
        Case("group with offsets, unknown member", _streams_heartbeat(GROUP, member_epoch=5, topology=None)),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        Case("valid", {"group_ids": [NO_GROUP]}),
        Case("classic group", {"group_ids": [GROUP]}),
        Case("empty group", {"group_ids": [""]}),
        Case("operations", {"group_ids": [NO_GROUP], "include_authorized_operations": True}),
        Case("no groups", {"group_ids": []}),
    ),
    ApiKey.INIT_PRODUCER_ID: (
        Case("valid", {"transactional_id": None, "transaction_timeout_ms": MANY_MS}),
        Case(
            "transaction",
            lambda scene: {
                "transactional_id": f"answers-init-{scene.tag}",
                "transaction_timeout_ms": MANY_MS,
            },
        ),
        Case("empty transactional id", {"transactional_id": "", "transaction_timeout_ms": MANY_MS}),
        Case("no timeout", {"transactional_id": TRANSACTION, "transaction_timeout_ms": 0}),
        Case("long timeout", {"transactional_id": TRANSACTION, "transaction_timeout_ms": 2_000_000_000}),
        Case(
            "unknown producer",
            lambda scene: {
                "transactional_id": f"answers-init-{scene.tag}",
                "transaction_timeout_ms": MANY_MS,
                "producer_id": 999_999,
                "producer_epoch": 3,
            },
            3,
        ),
        Case(
            "stale producer",
            _in_transaction(lag=2, transaction_timeout_ms=MANY_MS),
            3,
        ),
        Case(
            "producer without an epoch",
            {"transactional_id": TRANSACTION, "transaction_timeout_ms": MANY_MS, "producer_id": 5},
            3,
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Case("valid", _add_partitions()),
        Case("unknown transaction", _add_partitions(NO_TRANSACTION)),
        Case("empty transactional id", _add_partitions("")),
        Case("stale producer", _add_partitions(lag=1)),
        Case("unknown topic", _add_partitions(topic=MISSING)),
        Case("only verified", _add_partitions(verify_only=True), 4),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        Case("valid", _in_transaction(group_id=GROUP)),
        Case("unknown transaction", _in_transaction(NO_TRANSACTION, group_id=GROUP)),
        Case("empty transactional id", _in_transaction("", group_id=GROUP)),
        Case("stale producer", _in_transaction(lag=1, group_id=GROUP)),
        Case("empty group", _in_transaction(group_id="")),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        Case("valid", _in_transaction(group_id=f"{GROUP}-2", topics=_offsets())),
        Case("unknown transaction", _in_transaction(NO_TRANSACTION, group_id=GROUP, topics=_offsets())),
        Case("stale producer", _in_transaction(lag=1, group_id=f"{GROUP}-2", topics=_offsets())),
        Case("unknown topic", _in_transaction(group_id=f"{GROUP}-2", topics=_offsets(MISSING))),
        Case("empty group", _in_transaction(group_id="", topics=_offsets())),
        Case(
            "unknown member",
            _in_transaction(group_id=NO_GROUP, member_id=NO_MEMBER, topics=_offsets(), **{GENERATION: 3}),
            3,
        ),
    ),
    ApiKey.END_TXN: (
        Case("valid", _end(is_begun=True)),
        Case("abort", _end(is_begun=True, committed=False)),
        Case("commit before the first partition", _end(is_begun=False)),
        Case("abort before the first partition", _end(is_begun=False, committed=False)),
        Case("unknown transaction", _in_transaction(NO_TRANSACTION, committed=True)),
        Case("empty transactional id", _in_transaction("", committed=True)),
        Case("stale producer", _in_transaction(lag=1, committed=True)),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        Case(
            "valid",
            {"markers": [{"producer_id": 777_777, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
        ),
        Case(
            "unknown topic",
            {"markers": [{"producer_id": 777_777, "topics": [{"name": MISSING, "partition_indexes": [0]}]}]},
        ),
        Case(
            "unknown partition",
            {"markers": [{"producer_id": 777_777, "topics": [{"name": TOPIC, "partition_indexes": [9]}]}]},
        ),
        Case("no markers", {"markers": []}),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Case("valid", {"transactional_ids": [NO_TRANSACTION]}),
        Case("known transaction", {"transactional_ids": [TRANSACTION]}),
        Case("empty transactional id", {"transactional_ids": [""]}),
        Case("no transactions", {"transactional_ids": []}),
    ),
    ApiKey.LIST_TRANSACTIONS: (
        Case("valid", {"state_filters": ["PrepareCommit"]}),
        Case("state that does not exist", {"state_filters": ["Sleeping"]}),
        Case("of an unknown producer", {"producer_id_filters": [999_999]}),
        Case("pattern", {"transactional_id_pattern": "nothing.*", "state_filters": ["Empty"]}, 2),
        Case("pattern that is not valid", {"transactional_id_pattern": "(["}, 2),
    ),
}

NEED_A_COORDINATOR = tuple(
    api for api in CASES if api not in (ApiKey.FIND_COORDINATOR, ApiKey.WRITE_TXN_MARKERS)
)
"""The APIs that are also asked before the topics of coordinators exist."""
