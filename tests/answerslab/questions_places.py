"""Requests whose answers depend on the broker that gets them: the leader, a follower, another broker, the
coordinator, or a broker of a cluster in which another one is down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from answerslab.client import Client
from answerslab.question import FAR, MANY_MS, MISSING, Case, Cases, Fields, Scene, batch
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages import alter_partition_reassignments, elect_leaders

LEADER, FOLLOWER, OTHER = "leader", "follower", "broker without a replica"
COORDINATOR, NOT_COORDINATOR, ANY = "coordinator", "broker that is not the coordinator", "any broker"
ONE_DOWN: Final = "while a broker is down"
BROKER_OF: Final[Mapping[str, int]] = {
    LEADER: 1,
    FOLLOWER: 2,
    OTHER: 3,
    COORDINATOR: 1,
    NOT_COORDINATOR: 3,
    ANY: 3,
    f"leader {ONE_DOWN}": 1,
    f"any broker {ONE_DOWN}": 3,
}
"""The ids of the brokers that are asked."""
DOWN: Final = 2
"""The id of the broker that is killed before the last questions."""

READ, WRITTEN, SAFE = "answers-read", "answers-written", "answers-safe"
TURNED, ALONE, MOVED = "answers-turned", "answers-alone", "answers-moved"
TOPICS: Final[Mapping[str, tuple[int, ...]]] = {
    READ: (1, 2),
    WRITTEN: (1, 2),
    SAFE: (1, 2),
    TURNED: (1, 2),
    ALONE: (2,),
    MOVED: (1, 3),
}
"""The replicas of each topic's partition. The first one leads."""
MIN_INSYNC: Final[Mapping[str, str]] = {SAFE: "2"}
NO_MEMBER, NO_GROUP = "answers-no-member", "answers-no-group"
SHARE_MEMBER: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
PREFERRED, UNCLEAN = 0, 1
BROKER_RESOURCE, LOGGER = 4, 8
NO_REPLICA_ID, DEBUGGING_REPLICA_ID = -1, -2


@dataclass
class PlacedScene(Scene):
    """A scene with several brokers. `epoch` is the leader epoch of READ, which had an older one. The broker
    with the role COORDINATOR is that of `group` and `transaction`, and the other one that of `other_group`.
    """

    clients: Mapping[int, Client] = field(default_factory=dict)
    log_dirs: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 0
    group: str = ""
    other_group: str = ""
    transaction: str = ""

    def at(self, place: str) -> PlacedScene:
        """Returns the scene of the broker with this role."""
        broker_id = BROKER_OF[place]
        log_dir = self.log_dirs[broker_id]
        return replace(self, client=self.clients[broker_id], broker_id=broker_id, log_dir=log_dir)

    def reassign(self, topic: str, replicas: list[int] | None) -> None:
        """Asks for these replicas of the partition. None ends a reassignment, if there is one."""
        part = alter_partition_reassignments.ReassignablePartition(0, replicas)
        topics = [alter_partition_reassignments.ReassignableTopic(topic, [part])]
        request = alter_partition_reassignments.AlterPartitionReassignmentsRequest(5000, topics=topics)
        self.client.call(request, 0)

    def elect_preferred(self, topic: str) -> None:
        parts = [elect_leaders.TopicPartitions(topic, [0])]
        self.client.call(elect_leaders.ElectLeadersRequest(PREFERRED, parts, 5000), 2)


Maker = Callable[[Any], Fields]


class Placed(NamedTuple):
    """Cases for the brokers in these roles."""

    places: tuple[str, ...]
    cases: Cases


# -- records


def _produce(topic: str = WRITTEN, **fields: Any) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        part = [{"index": 0, "records": batch()}]
        data = [{"name": topic, "topic_id": scene.id_of(topic), "partition_data": part}]
        return {"acks": -1, "timeout_ms": 5000, "topic_data": data, **fields}

    return make


def _fetch(epoch_from_now: int | None = None, of_fetch: Fields | None = None, topic: str = READ) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        epoch = -1 if epoch_from_now is None else scene.epoch + epoch_from_now
        part = [{"partition": 0, "partition_max_bytes": 10_000, "current_leader_epoch": epoch}]
        topics = [{"topic": topic, "topic_id": scene.id_of(topic), "partitions": part}]
        return {"max_wait_ms": 0, "max_bytes": 10_000, "topics": topics, **(of_fetch or {})}

    return make


def _fetch_of_replica(broker_id: int) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        of_replica = (
            {"replica_id": broker_id}
            if scene.version < 15
            else {"replica_state": {"replica_id": broker_id, "replica_epoch": -1}}
        )
        return _fetch(0, of_replica)(scene)

    return make


def _positions(
    epoch_from_now: int | None = None, replica_id: int = NO_REPLICA_ID, topic: str = READ, **fields: Any
) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        epoch = -1 if epoch_from_now is None else scene.epoch + epoch_from_now
        part = [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch, **fields}]
        return {"replica_id": replica_id, "topics": [{"name": topic, "partitions": part}]}

    return make


def _epoch_end(epoch: int = 0, current_from_now: int | None = None, replica_id: int = -1) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        current = -1 if current_from_now is None else scene.epoch + current_from_now
        part = [{"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}]
        return {"replica_id": replica_id, "topics": [{"topic": READ, "partitions": part}]}

    return make


def _move(path: str | None, topic: str = READ) -> Maker:
    return lambda scene: {
        "dirs": [
            {
                "path": scene.log_dir if path is None else path,
                "topics": [{"name": topic, "partitions": [0]}],
            }
        ]
    }


def _share_fetch(epoch: int = 0, topic: str = READ, acknowledges: bool = False) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}] if acknowledges else []
        part = [{"partition_index": 0, "acknowledgement_batches": batches}]
        return {
            "group_id": scene.group,
            "member_id": SHARE_MEMBER,
            "share_session_epoch": epoch,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 10_000,
            "max_records": 10,
            "batch_size": 10,
            "topics": [{"topic_id": scene.id_of(topic), "partitions": part}],
        }

    return make


def _share_acknowledge(epoch: int) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
        part = [{"partition_index": 0, "acknowledgement_batches": batches}]
        return {
            "group_id": scene.group,
            "member_id": SHARE_MEMBER,
            "share_session_epoch": epoch,
            "topics": [{"topic_id": scene.id_of(READ), "partitions": part}],
        }

    return make


def _delete_records(topic: str = READ) -> Fields:
    part = [{"partition_index": 0, "offset": 0}]
    return {"topics": [{"name": topic, "partitions": part}], "timeout_ms": 5000}


_RECORDS: Final[Cases] = {
    ApiKey.PRODUCE: (
        Case("valid", _produce(), 3),
        Case("acks of the leader", _produce(acks=1), 3),
        Case("enough replicas", _produce(SAFE), 3),
        Case("unknown topic", _produce(MISSING), 3),
    ),
    ApiKey.FETCH: (
        Case("valid", _fetch()),
        Case("the current leader epoch", _fetch(0), 9),
        Case("an older leader epoch", _fetch(-1), 9),
        Case("leader epoch that is not known yet", _fetch(FAR), 9),
        Case("from the rack of the leader", _fetch(of_fetch={"rack_id": "rack1"}), 11),
        Case("from the rack of the follower", _fetch(of_fetch={"rack_id": "rack2"}), 11),
        Case("from the rack of another broker", _fetch(of_fetch={"rack_id": "rack3"}), 11),
        Case("from an unknown rack", _fetch(of_fetch={"rack_id": "nowhere"}), 11),
        Case("of a broker without a replica", _fetch_of_replica(BROKER_OF[OTHER])),
    ),
    ApiKey.LIST_OFFSETS: (
        Case("valid", _positions()),
        Case("earliest", _positions(timestamp=-2)),
        Case("the current leader epoch", _positions(0), 4),
        Case("an older leader epoch", _positions(-1), 4),
        Case("leader epoch that is not known yet", _positions(FAR), 4),
        Case("of a debugger", _positions(replica_id=DEBUGGING_REPLICA_ID)),
        Case("of a broker without a replica", _positions(0, replica_id=BROKER_OF[OTHER])),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Case("the first epoch", _epoch_end()),
        Case("epoch that is not known yet", _epoch_end(FAR)),
        Case("the current leader epoch", _epoch_end(0, 0)),
        Case("an older leader epoch", _epoch_end(0, -1)),
        Case("leader epoch that is not known yet", _epoch_end(0, FAR)),
        Case("of a debugger", _epoch_end(0, None, DEBUGGING_REPLICA_ID), 3),
    ),
    ApiKey.DELETE_RECORDS: (Case("valid", _delete_records()),),
    ApiKey.DESCRIBE_PRODUCERS: (
        Case("valid", {"topics": [{"name": READ, "partition_indexes": [0]}]}),
        Case("unknown topic", {"topics": [{"name": MISSING, "partition_indexes": [0]}]}),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Case("valid", _move(None)),
        Case("unknown directory", _move("/nowhere")),
        Case("unknown topic", _move(None, MISSING)),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (Case("valid", {"topics": [{"topic": READ, "partitions": [0]}]}),),
    ApiKey.METADATA: (
        Case("valid", {"topics": [{"name": READ}, {"name": ALONE}], "allow_auto_topic_creation": False}),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (Case("valid", {"topics": [{"name": READ}, {"name": ALONE}]}),),
    ApiKey.SHARE_FETCH: (
        Case("valid", _share_fetch()),
        Case("unknown topic", _share_fetch(topic=MISSING)),
        Case("unknown session", _share_fetch(FAR)),
        Case("acknowledgement with a new session", _share_fetch(acknowledges=True)),
        Case("session that ends", _share_fetch(-1)),
    ),
    ApiKey.SHARE_ACKNOWLEDGE: (
        Case("unknown session", _share_acknowledge(FAR)),
        Case("new session", _share_acknowledge(0)),
        Case("session that ends", _share_acknowledge(-1)),
    ),
}


# -- groups and transactions


def _of_group(**fields: Any) -> Maker:
    return lambda scene: {"group_id": scene.group, **fields}


def _commit(scene: PlacedScene) -> Fields:
    part = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    topics = [{"name": READ, "topic_id": scene.id_of(READ), "partitions": part}]
    return {"group_id": scene.group, "topics": topics}


def _committed(scene: PlacedScene) -> Fields:
    if scene.version < 8:
        return {"group_id": scene.group, "topics": [{"name": READ, "partition_indexes": [0]}]}
    named = [{"name": READ, "topic_id": scene.id_of(READ), "partition_indexes": [0]}]
    return {"groups": [{"group_id": scene.group, "topics": named}]}


def _committed_of_two_groups(scene: PlacedScene) -> Fields:
    named = [{"name": READ, "topic_id": scene.id_of(READ), "partition_indexes": [0]}]
    return {"groups": [{"group_id": group, "topics": named} for group in (scene.group, scene.other_group)]}


def _find(key_type: int) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        key = scene.transaction if key_type else scene.group
        return {"key_type": key_type, **({"key": key} if scene.version < 4 else {"coordinator_keys": [key]})}

    return make


def _join(scene: PlacedScene) -> Fields:
    return {
        "group_id": scene.group,
        "member_id": NO_MEMBER,
        "session_timeout_ms": MANY_MS,
        "rebalance_timeout_ms": MANY_MS,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def _streams_heartbeat(**fields: Any) -> Maker:
    return _of_group(
        **{
            "member_id": NO_MEMBER,
            "member_epoch": 5,
            "endpoint_information_epoch": -1,
            "rebalance_timeout_ms": MANY_MS,
            **fields,
        }
    )


def _in_transaction(**fields: Any) -> Maker:
    return lambda scene: {
        "transactional_id": scene.transaction,
        "producer_id": 999_999,
        "producer_epoch": 0,
        **({"group_id": scene.group} if "topics" in fields else {}),
        **fields,
    }


def _add_partitions(scene: PlacedScene) -> Fields:
    topics = [{"name": READ, "partitions": [0]}]
    if scene.version < 4:
        return {
            "v3_and_below_transactional_id": scene.transaction,
            "v3_and_below_producer_id": 999_999,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }
    one = {
        "transactional_id": scene.transaction,
        "producer_id": 999_999,
        "producer_epoch": 0,
        "topics": topics,
    }
    return {"transactions": [one]}


_OFFSETS: Final = [
    {
        "name": READ,
        "partitions": [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}],
    }
]
_COORDINATED: Final[Cases] = {
    ApiKey.FIND_COORDINATOR: (
        Case("of a group", _find(0)),
        Case("of a transaction", _find(1), 1),
    ),
    ApiKey.OFFSET_COMMIT: (Case("valid", _commit),),
    ApiKey.OFFSET_FETCH: (
        Case("valid", _committed),
        Case("two groups", _committed_of_two_groups, 8),
    ),
    ApiKey.OFFSET_DELETE: (
        Case("valid", _of_group(topics=[{"name": WRITTEN, "partitions": [{"partition_index": 0}]}])),
    ),
    ApiKey.JOIN_GROUP: (Case("unknown member", _join),),
    ApiKey.SYNC_GROUP: (
        Case(
            "unknown member",
            _of_group(generation_id=1, member_id=NO_MEMBER, protocol_type="consumer", protocol_name="range"),
        ),
    ),
    ApiKey.HEARTBEAT: (Case("unknown member", _of_group(generation_id=1, member_id=NO_MEMBER)),),
    ApiKey.LEAVE_GROUP: (
        Case("unknown member", _of_group(member_id=NO_MEMBER, members=[{"member_id": NO_MEMBER}])),
    ),
    ApiKey.LIST_GROUPS: (Case("valid", {}),),
    ApiKey.DESCRIBE_GROUPS: (Case("valid", lambda scene: {"groups": [scene.group]}),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        Case(
            "unknown member",
            _of_group(member_id=NO_MEMBER, member_epoch=5, rebalance_timeout_ms=MANY_MS),
        ),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Case("valid", lambda scene: {"group_ids": [scene.group]}),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (
        Case(
            "unknown member",
            _of_group(member_id=SHARE_MEMBER, member_epoch=5, subscribed_topic_names=[READ]),
        ),
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: (Case("valid", lambda scene: {"group_ids": [scene.group]}),),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        Case(
            "valid",
            lambda scene: {
                "groups": [
                    {"group_id": scene.group, "topics": [{"topic_name": READ, "partitions": [0]}]},
                ]
            },
        ),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        Case(
            "valid",
            _of_group(
                topics=[{"topic_name": READ, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
            ),
        ),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (Case("valid", _of_group(topics=[{"topic_name": READ}])),),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (Case("unknown member", _streams_heartbeat()),),
    ApiKey.STREAMS_GROUP_DESCRIBE: (Case("valid", lambda scene: {"group_ids": [scene.group]}),),
    ApiKey.INIT_PRODUCER_ID: (
        Case(
            "transaction",
            lambda scene: {
                "transactional_id": scene.transaction,
                "transaction_timeout_ms": MANY_MS,
            },
        ),
        Case(
            "unknown producer",
            lambda scene: {
                "transactional_id": scene.transaction,
                "transaction_timeout_ms": MANY_MS,
                "producer_id": 999_999,
                "producer_epoch": 3,
            },
            3,
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (Case("unknown producer", _add_partitions),),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        Case("unknown producer", lambda scene: _in_transaction(group_id=scene.group)(scene)),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (Case("unknown producer", _in_transaction(topics=_OFFSETS)),),
    ApiKey.END_TXN: (Case("unknown producer", _in_transaction(committed=True)),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Case("valid", lambda scene: {"transactional_ids": [scene.transaction]}),),
    ApiKey.LIST_TRANSACTIONS: (Case("valid", {"producer_id_filters": [999_999]}),),
    # The last one, because the group does not exist afterwards.
    ApiKey.DELETE_GROUPS: (Case("valid", lambda scene: {"groups_names": [scene.group]}),),
}


# -- the cluster


def _elect(election_type: int = PREFERRED, topic: str = READ) -> Fields:
    parts = [{"topic": topic, "partitions": [0]}]
    return {"election_type": election_type, "topic_partitions": parts, "timeout_ms": 5000}


def _elect_turned(scene: PlacedScene) -> Fields:
    """The partition's leader is not the preferred one."""
    scene.reassign(TURNED, [1, 2])
    scene.elect_preferred(TURNED)
    scene.reassign(TURNED, [2, 1])
    return _elect(topic=TURNED)


def _reassign(replicas: list[int] | None, topic: str = READ, **fields: Any) -> Fields:
    parts = [{"partition_index": 0, "replicas": replicas}]
    return {"topics": [{"name": topic, "partitions": parts}], "timeout_ms": 5000, **fields}


def _cancelled(scene: PlacedScene) -> Fields:
    """The reassignment to a broker that is down does not end by itself."""
    scene.reassign(MOVED, [1, 2])
    return _reassign(None, MOVED)


def _reassigned_anew(scene: PlacedScene) -> Fields:
    scene.reassign(MOVED, None)
    return _reassign([1, 2], MOVED)


def _listed(topic: str = MOVED) -> Fields:
    return {"topics": [{"name": topic, "partition_indexes": [0]}], "timeout_ms": 5000}


def _listed_while_moved(scene: PlacedScene) -> Fields:
    scene.reassign(MOVED, None)
    scene.reassign(MOVED, [1, 2])
    return _listed()


def _create(replication_factor: int = -1, replicas: list[list[int]] | None = None) -> Maker:
    def make(scene: PlacedScene) -> Fields:
        made: Fields = {"name": f"answers-made-{scene.tag}", "replication_factor": replication_factor}
        made["num_partitions"] = -1 if replicas else 1
        if replicas:
            made["assignments"] = [
                {"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)
            ]
        return {"topics": [made], "timeout_ms": 10_000}

    return make


def _partitions(count: int, assignments: list[list[int]] | None = None) -> Fields:
    given = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
    made = {"name": READ, "count": count, "assignments": given}
    return {"topics": [made], "timeout_ms": 10_000, "validate_only": True}


def _describe(kind: int, broker_id: int, *keys: str) -> Fields:
    resource = {"resource_type": kind, "resource_name": str(broker_id), "configuration_keys": list(keys)}
    return {"resources": [resource]}


def _change(kind: int, broker_id: int, name: str, value: str) -> Fields:
    changes = [{"name": name, "config_operation": 0, "value": value}]
    resource = {"resource_type": kind, "resource_name": str(broker_id), "configs": changes}
    return {"resources": [resource], "validate_only": True}


_CLUSTER: Final[Cases] = {
    ApiKey.ELECT_LEADERS: (
        Case("leader that is the preferred one", _elect()),
        Case("leader that is not the preferred one", _elect_turned),
        Case("unclean, with a leader", _elect(UNCLEAN)),
        Case("all partitions", {"topic_partitions": None, "timeout_ms": 5000}),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Case("the same replicas", _reassign([1, 2])),
        Case("more replicas than brokers", _reassign([1, 2, 3, 4])),
        Case("a replica twice", _reassign([1, 2, 2])),
        Case("nothing to cancel", _reassign(None)),
        Case("other number of replicas", _reassign([1], allow_replication_factor_change=False), 1),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (Case("nothing that moves", _listed()),),
    ApiKey.CREATE_TOPICS: (
        Case("as many replicas as brokers", _create(3)),
        Case("more replicas than brokers", _create(4)),
        Case("assignment", _create(replicas=[[3, 1], [1, 2]])),
        Case("different numbers of replicas", _create(replicas=[[1, 2], [3]])),
        Case("partition without replicas", _create(replicas=[[1, 2], []])),
    ),
    ApiKey.CREATE_PARTITIONS: (
        Case("assigned", _partitions(2, [[3, 1]])),
        Case("fewer replicas", _partitions(2, [[3]])),
        Case("different numbers of replicas", _partitions(3, [[3, 1], [2]])),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Case("of another broker", _describe(BROKER_RESOURCE, 1, "log.cleaner.threads")),
        Case("loggers of another broker", _describe(LOGGER, 1, "no.such.logger")),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Case("of another broker", _change(BROKER_RESOURCE, 1, "log.cleaner.threads", "1")),
        Case("loggers of another broker", _change(LOGGER, 1, "root", "INFO")),
    ),
    ApiKey.DESCRIBE_CLUSTER: (Case("valid", {}),),
}


# -- while a broker is down

_LED_WHILE_DOWN: Final[Cases] = {
    ApiKey.PRODUCE: (
        Case("too few replicas", _produce(SAFE), 3),
        Case("too few replicas, acks of the leader", _produce(SAFE, acks=1), 3),
        Case("enough replicas", _produce(), 3),
        Case("no leader", _produce(ALONE), 3),
    ),
    ApiKey.FETCH: (
        Case("from the rack of the broker that is down", _fetch(of_fetch={"rack_id": "rack2"}), 11),
        Case("no leader", _fetch(topic=ALONE)),
    ),
    ApiKey.LIST_OFFSETS: (Case("no leader", _positions(topic=ALONE)),),
    ApiKey.DELETE_RECORDS: (Case("no leader", _delete_records(ALONE)),),
    ApiKey.DESCRIBE_PRODUCERS: (Case("no leader", {"topics": [{"name": ALONE, "partition_indexes": [0]}]}),),
}
_CLUSTER_WHILE_DOWN: Final[Cases] = {
    ApiKey.METADATA: (
        Case(
            "valid",
            {
                "topics": [{"name": READ}, {"name": ALONE}, {"name": TURNED}],
                "allow_auto_topic_creation": False,
            },
        ),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Case("valid", {"topics": [{"name": READ}, {"name": ALONE}, {"name": TURNED}]}),
    ),
    ApiKey.DESCRIBE_CLUSTER: (
        Case("valid", {}),
        Case("fenced brokers", {"include_fenced_brokers": True}, 2),
    ),
    ApiKey.ELECT_LEADERS: (
        Case("no leader", _elect(topic=ALONE)),
        Case("no leader, unclean", _elect(UNCLEAN, ALONE)),
        Case("preferred leader that is down", _elect(topic=TURNED)),
        Case("unclean, with a leader", _elect(UNCLEAN, TURNED)),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        Case("to the broker that is down", _reassigned_anew),
        Case("cancelled", _cancelled),
        Case("nothing to cancel", _reassign(None, MOVED)),
        Case("all replicas are down", _reassign([2], ALONE)),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        Case("to the broker that is down", _listed_while_moved),
        Case("all", {"topics": None, "timeout_ms": 5000}),
    ),
    ApiKey.CREATE_TOPICS: (
        Case("more replicas than live brokers", _create(3)),
        Case("assigned to the broker that is down", _create(replicas=[[2]])),
        Case("assigned to the broker that is down and another", _create(replicas=[[1, 2]])),
    ),
    ApiKey.CREATE_PARTITIONS: (
        Case("assigned to the broker that is down and another", _partitions(2, [[1, 2]])),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        Case("of the broker that is down", _describe(BROKER_RESOURCE, DOWN, "log.cleaner.threads")),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        Case("of the broker that is down", _change(BROKER_RESOURCE, DOWN, "log.cleaner.threads", "1")),
    ),
    ApiKey.UNREGISTER_BROKER: (
        Case("broker that does not exist", {"broker_id": 99}),
        Case("broker that is down", {"broker_id": DOWN}),
        Case("broker that is gone", {"broker_id": DOWN}),
    ),
}

ALL_UP: Final = (
    Placed((LEADER, FOLLOWER, OTHER), _RECORDS),
    Placed((COORDINATOR, NOT_COORDINATOR), _COORDINATED),
    Placed((ANY,), _CLUSTER),
)
WHILE_DOWN: Final = (
    Placed((f"leader {ONE_DOWN}",), _LED_WHILE_DOWN),
    Placed((f"any broker {ONE_DOWN}",), _CLUSTER_WHILE_DOWN),
)
