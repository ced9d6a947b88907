"""Eligible leader replicas and logs in doubt (KIP-966, SPEC C13): who may lead without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.controller.core.elections import settle_partitions
from tidelog.model.topics import TopicPartition

MakeCore = Callable[..., Any]


def _view(cluster: Any, topic: str = "t") -> tuple[int, set[int], set[int]]:
    state = cluster.partition(topic)
    return state.leader, set(state.isr), set(state.elr)


def test_whoever_leaves_an_isr_below_its_minimum_stays_eligible(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    assert _view(cluster) == (1, {1, 2}, set())
    cluster.death(2)
    assert _view(cluster) == (1, {1}, {2})
    cluster.death(1)
    cluster.birth(3)
    assert _view(cluster) == (-1, {1}, {2}), "3 left before the high watermark stood still"
    cluster.birth(2)
    assert _view(cluster) == (2, {2}, {1})
    cluster.leader_writes("t", (2, 3))
    assert _view(cluster) == (2, {2, 3}, set())


def test_the_minimum_is_no_more_than_there_are_replicas(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="5")
    cluster.death(2)
    assert _view(cluster) == (1, {1}, {2})


def test_a_lower_minimum_clears_the_elr_before_anybody_is_told(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="2")
    cluster.death(2)
    epoch = cluster.partition("t").leader_epoch
    cluster.configure("t", min_insync_replicas="1")
    assert _view(cluster) == (1, {1}, set())
    assert cluster.partition("t").leader_epoch == epoch


def test_a_log_in_doubt_leaves_isr_and_elr_before_any_election(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    cluster.death(2)
    cluster.death(1)
    cluster.register(1, is_log_suspect=True)
    cluster.register(2, is_log_suspect=True)
    cluster.settle()
    # Both the ISR and the ELR have come to nothing: the one that led last is as good as it gets.
    assert _view(cluster) == (1, {1}, set())
    assert not cluster.state.unsettled_suspects


def test_others_are_waited_for_when_the_first_to_return_is_in_doubt(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2])
    cluster.death(1, 2)
    assert _view(cluster) == (1, {1, 2}, set()), "with nobody alive nothing is written"
    cluster.birth(1, is_log_suspect=True)
    assert _view(cluster) == (-1, {2}, set())
    cluster.birth(2)
    assert _view(cluster) == (2, {2}, set())
    cluster.leader_writes("t", (2, 1))
    cluster.settle()
    assert _view(cluster) == (2, {1, 2}, set()), "it has earned its place in this life"


def test_a_sole_member_in_doubt_leads_as_the_last_one_known(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1])
    cluster.death(1)
    before = cluster.partition("t").leader_epoch
    cluster.birth(1, is_log_suspect=True)
    assert _view(cluster) == (1, {1}, set())
    assert cluster.partition("t").leader_epoch > before


def test_a_single_replica_in_doubt(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], [1, 2])
    cluster.death(1, 2)
    cluster.birth(1, suspect_partitions=(TopicPartition("t", 1),))
    assert cluster.partition("t", 0).leader == 1
    assert (cluster.partition("t", 1).leader, cluster.partition("t", 1).isr) == (-1, (2,))


def test_a_leader_that_wrote_in_between_does_not_keep_a_log_in_doubt_in_the_isr(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3])
    cluster.register(3, is_log_suspect=True)
    cluster.leader_writes("t", (1, 3))  # 2 leaves; that 3 is another by now the leader doesn't know
    cluster.settle()
    assert _view(cluster) == (1, {1}, set())


def test_a_term_that_begins_in_the_middle_goes_by_what_is_stored(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2])
    cluster.register(2, is_log_suspect=True)
    decision = settle_partitions(cluster.state, cluster.context())
    cluster.write(decision.__class__(decision.records[:-1], None))
    assert cluster.state.unsettled_suspects == {2}, "its name is cleared last"
    cluster.leader_writes("t", (1, 2))
    cluster.settle()
    assert _view(cluster) == (1, {1}, set())
    cluster.leader_writes("t", (1, 2))
    cluster.settle()
    assert _view(cluster) == (1, {1, 2}, set())


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["die", "live", "power cut", "join", "shrink", "disk fails", "disk works"]),
        st.integers(1, 3),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(_STEPS, st.integers(1, 3))
def test_no_election_loses_what_enough_replicas_have(
    core: MakeCore, steps: list[tuple[str, int]], min_isr: int
) -> None:
    """A model of one partition: `has[b]` is the length of the log on broker b, `high` the acknowledged part.

    Brokers whose machine lost power return with nothing. As long as fewer of them than the min ISR do so
    at a time, every leader has all acknowledged records. A failed disk keeps its log and serves nothing; the
    controller does not learn when it works again.
    """
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas=str(min_isr))
    has = dict.fromkeys((1, 2, 3), 1)
    high, cut, broken = 1, set[int](), set[int]()
    for step, broker in steps:
        before, alive = cluster.partition("t"), cluster.state.brokers
        is_led = before.leader in alive and before.leader not in broken
        if step == "die" and broker in alive:
            cluster.death(broker)
        elif step == "live" and broker not in alive:
            cluster.birth(broker, is_log_suspect=broker in cut)
        elif step == "power cut" and len(cut | {broker}) < min_isr:
            if broker in alive:
                cluster.death(broker)
            has[broker] = 0
            cut.add(broker)
        elif step == "disk fails" and broker in alive:
            broken.add(broker)
            cluster.state.note_replicas(
                broker, alive[broker].broker_epoch, {TopicPartition("t", 0)}, (), cluster.changes
            )
            cluster.settle()
        elif step == "disk works":
            broken.discard(broker)
        elif step == "join" and is_led and broker in alive and broker not in {*before.isr, *broken}:
            has[broker] = has[before.leader]
            cut.discard(broker)
            cluster.leader_writes("t", (*before.isr, broker))
        elif step == "shrink" and is_led and broker in before.isr and broker != before.leader:
            cluster.leader_writes("t", tuple(b for b in before.isr if b != broker))
        after, alive = cluster.partition("t"), cluster.state.brokers
        if after.leader in alive:
            assert has[after.leader] >= high, (step, broker, after)
        if after.leader in alive and after.leader not in broken:
            cut.discard(after.leader)
            has[after.leader] += 1
            for follower in after.isr:
                if follower in alive and follower not in broken:
                    has[follower] = max(has[follower], has[after.leader])
            if len(after.isr) >= min_isr:
                high = max(high, min(has[b] for b in after.isr))
        assert not settle_partitions(cluster.state, cluster.context()).records, (step, broker, after)
