"""Classic groups that become consumer groups and back while their members are running."""

from __future__ import annotations

import pytest

from grouplab.classic_client import ClassicConsumer
from grouplab.consumer_lab import ConsumerLab, ModelConsumer
from grouplab.shard_lab import GROUP, REBALANCE_MS, SESSION_MS
from tidelog.group_coordinator.groups.consumer import classic_members
from tidelog.group_coordinator.groups.shared import GroupKind
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings

Client = ClassicConsumer | ModelConsumer


def run(lab: ConsumerLab, clients: list[Client], rounds: int = 25) -> None:
    for _ in range(rounds):
        for client in clients:
            client.step()
            owned = [partition for other in clients for partition in other.owned]
            assert len(owned) == len(set(owned)), "two members own the same partition"
        lab.pass_time(3_000)


def shares(clients: list[Client]) -> list[int]:
    return sorted(len(client.owned) for client in clients)


def new_lab(**settings: str) -> ConsumerLab:
    lab = ConsumerLab(BrokerSettings(**settings))  # type: ignore[arg-type]
    lab.set_topic("orders", 4)
    return lab


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_group_is_upgraded_one_by_one_and_back(cooperative: bool) -> None:
    lab = new_lab()
    old: list[Client] = [ClassicConsumer(lab, cooperative) for _ in range(2)]
    run(lab, old)
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CLASSIC
    assert sum(shares(old)) == 4
    mixed: list[Client] = [*old, ModelConsumer(lab, "new", ["orders"])]
    run(lab, mixed)
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CONSUMER
    assert shares(mixed) == [1, 1, 2]
    assert sorted(member.member_type for member in lab.describe_consumer().members) == [0, 0, 1]
    assert lab.describe_consumer().group_state == "Stable"
    lab.fail_over()
    run(lab, mixed)
    assert shares(mixed) == [1, 1, 2]
    # Downgrade: the only member that speaks the consumer protocol leaves.
    assert isinstance(mixed[2], ModelConsumer)
    mixed[2].leave()
    run(lab, old)
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CLASSIC
    assert sum(shares(old)) == 4
    lab.fail_over()
    run(lab, old)
    assert sum(shares(old)) == 4
    # Upgrade all members.
    new: list[Client] = [ModelConsumer(lab, f"new{n}", ["orders"]) for n in range(2)]
    run(lab, [*old, new[0]])
    for client in old:
        assert isinstance(client, ClassicConsumer)
        assert lab.leave((client.member_id, None)) == [ErrorCode.NONE]
    run(lab, new)
    assert shares(new) == [2, 2]
    assert [member.member_type for member in lab.describe_consumer().members] == [1, 1]


def test_the_session_of_a_silent_member_ends_after_an_upgrade_too() -> None:
    lab = new_lab()
    old: list[Client] = [ClassicConsumer(lab) for _ in range(2)]
    run(lab, old)
    new = ModelConsumer(lab, "new", ["orders"])
    new.step()
    run(lab, [new], rounds=SESSION_MS // 3_000 + 4)
    assert shares([new]) == [4]


def test_partitions_of_a_cooperative_member_remain_its_own_during_a_rebalance() -> None:
    lab = new_lab()
    old = ClassicConsumer(lab, cooperative=True)
    run(lab, [old])
    others = [ClassicConsumer(lab, cooperative=True) for _ in range(2)]
    for client in (others[0], others[0], old):
        client.step()
    old.ask_to_join()  # both have joined, but the leader has not assigned partitions
    assert lab.group().state.value == "CompletingRebalance"
    assert len(old.owned) == 4
    for _ in range(2):
        others[1].step()  # also joins, so the assignments are empty
    group = lab.group()
    assert group.state.value == "PreparingRebalance"
    new = ModelConsumer(lab, "new", ["orders"])
    new.step()
    assert not new.assigned, "the owner has not given up any partition"
    run(lab, [old, *others, new])
    assert shares([old, *others, new]) == [1, 1, 1, 1]


def test_a_classic_member_that_does_not_rejoin_in_time_is_removed() -> None:
    lab = new_lab()
    old = ClassicConsumer(lab)
    run(lab, [old])
    new = ModelConsumer(lab, "new", ["orders"])
    for _ in range(REBALANCE_MS // 3_000 + 5):
        if old.member_id in lab.core.groups.by_id[GROUP].members:  # type: ignore[attr-defined]
            lab.heartbeat(old.member_id, old.generation)
        new.step()
        lab.pass_time(3_000)
    assert shares([new]) == [4]


@pytest.mark.parametrize("policy", ["disabled", "DOWNGRADE"])
def test_a_policy_that_forbids_the_upgrade(policy: str) -> None:
    lab = new_lab(group_consumer_migration_policy=policy)
    old: list[Client] = [ClassicConsumer(lab)]
    run(lab, old)
    log = list(lab.log)
    assert ModelConsumer(lab, "new", ["orders"]).step() == ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.log == log
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CLASSIC


def test_a_policy_that_forbids_the_downgrade() -> None:
    lab = new_lab(group_consumer_migration_policy="upgrade")
    old: list[Client] = [ClassicConsumer(lab)]
    run(lab, old)
    new = ModelConsumer(lab, "new", ["orders"])
    run(lab, [*old, new])
    new.leave()
    run(lab, old)
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CONSUMER
    assert shares(old) == [4]


def test_a_group_with_too_much_metadata_for_one_record_stays_a_consumer_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classic_members, "MAX_GROUP_BYTES", 10)
    lab = new_lab()
    old: list[Client] = [ClassicConsumer(lab)]
    run(lab, old)
    new = ModelConsumer(lab, "new", ["orders"])
    run(lab, [*old, new])
    new.leave()
    run(lab, old)
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CONSUMER
    assert shares(old) == [4]


def test_groups_of_other_protocols_are_not_upgraded() -> None:
    lab = new_lab()
    lab.join_with_id(protocol_type="connect")
    lab.pass_time(3_000)
    assert ModelConsumer(lab, "new", ["orders"]).step() == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_takes_the_kind_of_the_next_member() -> None:
    lab = new_lab()
    old = ClassicConsumer(lab)
    run(lab, [old])
    lab.leave((old.member_id, None))
    new = ModelConsumer(lab, "new", ["orders"])
    run(lab, [new])
    assert shares([new]) == [4]
    new.leave()
    again = ClassicConsumer(lab)
    run(lab, [again])
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CLASSIC
    assert shares([again]) == [4]
    lab.fail_over()
    run(lab, [again])
    assert shares([again]) == [4]


def test_a_static_member_changes_its_protocol_and_back() -> None:
    lab = new_lab()
    old = ClassicConsumer(lab, instance_id="i")
    run(lab, [old])
    new = ModelConsumer(lab, "new", ["orders"], instance_id="i")
    run(lab, [new])
    assert shares([new]) == [4]
    assert [member.member_type for member in lab.describe_consumer().members] == [1]
    back = ClassicConsumer(lab, instance_id="i")
    run(lab, [back])
    assert lab.core.groups.by_id[GROUP].kind is GroupKind.CLASSIC
    assert shares([back]) == [4]


def test_errors_of_classic_members_in_a_consumer_group() -> None:
    lab = new_lab()
    new = ModelConsumer(lab, "new", ["orders"])
    run(lab, [new])
    assert lab.heartbeat("new", new.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.leave(("nobody", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert lab.answers[lab.sync("new", new.epoch)].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    refused = lab.answers[lab.join("old", protocol_type="connect")]
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = lab.answers[lab.join("old", session_ms=1)]
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    old = ClassicConsumer(lab)
    run(lab, [new, old])
    assert lab.heartbeat(old.member_id, old.generation + 1) == ErrorCode.ILLEGAL_GENERATION
    wrong = lab.answers[lab.sync(old.member_id, old.generation, protocol="sticky")]
    assert wrong.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.beat(member_id=old.member_id, member_epoch=old.generation).error_code == ErrorCode.NONE
