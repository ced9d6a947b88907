"""Eligible leader replicas and suspect logs (KIP-966): replicas that may lead without data loss."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterlab.controllers import Core, whole
from tidelog.controller.core.elections import settle_partitions
from tidelog.controller.core.features_and_quorum import update_features
from tidelog.model.topics import TopicPartition
from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

MakeCore = type[Core]


def _view(cluster: Core, topic: str = "t") -> tuple[int, set[int], set[int]]:
    state = cluster.partition(topic)
    return state.leader, set(state.isr), set(state.elr)


def test_a_replica_that_leaves_an_isr_below_its_minimum_stays_eligible(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    assert _view(cluster) == (1, {1, 2}, set())
    cluster.death(2)
    assert _view(cluster) == (1, {1}, {2})
    cluster.death(1)
    cluster.birth(3)
    assert _view(cluster) == (-1, {1}, {2}), "broker 3 left while the high watermark could still move"
    cluster.birth(2)
    assert _view(cluster) == (2, {2}, {1})
    cluster.leader_writes("t", (2, 3))
    assert _view(cluster) == (2, {2, 3}, set())


def test_without_the_feature_only_the_isr_may_lead(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    cluster.death(2)
    assert _view(cluster) == (1, {1}, {2})
    off = FeatureUpdateKey("eligible.leader.replicas.version", 0, upgrade_type=2)
    cluster.request(update_features, UpdateFeaturesRequest(feature_updates=[off]), 2)
    cluster.settle()
    assert _view(cluster) == (1, {1}, set())
    cluster.death(1)
    cluster.birth(2)
    assert _view(cluster) == (-1, {1}, set())
    cluster.birth(1)
    assert _view(cluster) == (1, {1}, set())


def test_min_isr_is_at_most_the_number_of_replicas(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="5")
    cluster.death(2)
    assert _view(cluster) == (1, {1}, {2})


def test_a_lower_min_isr_clears_the_elr_at_the_same_epoch(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], min_insync_replicas="2")
    cluster.death(2)
    epoch = cluster.partition("t").leader_epoch
    cluster.configure("t", min_insync_replicas="1")
    assert _view(cluster) == (1, {1}, set())
    assert cluster.partition("t").leader_epoch == epoch


def test_a_suspect_log_leaves_isr_and_elr_before_an_election(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3], min_insync_replicas="2")
    cluster.death(3)
    cluster.death(2)
    cluster.death(1)
    cluster.register(1, is_log_suspect=True)
    cluster.register(2, is_log_suspect=True)
    cluster.settle()
    # Both ISR and ELR are empty, so the last leader is the best choice.
    assert _view(cluster) == (1, {1}, set())
    assert not cluster.state.unsettled_suspects


def test_the_first_broker_to_return_waits_for_the_others_if_its_log_is_suspect(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2])
    cluster.death(1, 2)
    assert _view(cluster) == (1, {1, 2}, set()), "without a live broker nothing is written"
    cluster.birth(1, is_log_suspect=True)
    assert _view(cluster) == (-1, {2}, set())
    cluster.birth(2)
    assert _view(cluster) == (2, {2}, set())
    cluster.leader_writes("t", (2, 1))
    cluster.settle()
    assert _view(cluster) == (2, {1, 2}, set()), "its log has caught up since the registration"


def test_a_sole_member_with_a_suspect_log_leads_as_last_known_leader(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1])
    cluster.death(1)
    before = cluster.partition("t").leader_epoch
    cluster.birth(1, is_log_suspect=True)
    assert _view(cluster) == (1, {1}, set())
    assert cluster.partition("t").leader_epoch > before


def test_a_single_suspect_replica_leaves_only_its_own_isr(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2], [1, 2])
    cluster.death(1, 2)
    cluster.birth(1, suspect_partitions=(TopicPartition("t", 1),))
    assert cluster.partition("t", 0).leader == 1
    assert (cluster.partition("t", 1).leader, cluster.partition("t", 1).isr) == (-1, (2,))


def test_a_concurrent_isr_write_does_not_keep_a_suspect_log_in_the_isr(core: MakeCore) -> None:
    cluster = core([1, 2, 3])
    cluster.make("t", [1, 2, 3])
    cluster.register(3, is_log_suspect=True)
    # broker 2 leaves; the leader does not know that broker 3 has registered again
    cluster.leader_writes("t", (1, 3))
    cluster.settle()
    assert _view(cluster) == (1, {1}, set())


def test_a_new_term_completes_the_removal_of_suspect_logs(core: MakeCore) -> None:
    cluster = core([1, 2])
    cluster.make("t", [1, 2])
    cluster.register(2, is_log_suspect=True)
    decision = whole(settle_partitions(cluster.state, cluster.context()))
    cluster.write(decision.__class__(decision.records[:-1], None))
    assert cluster.state.unsettled_suspects == {2}, "the suspect is settled last"
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
def test_no_election_loses_acknowledged_records(
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
        assert not whole(settle_partitions(cluster.state, cluster.context())).records, (step, broker, after)
