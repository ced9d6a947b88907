"""Processes are killed and frozen under an idempotent load with acks=all.

Each acknowledged record is read exactly once and in order, the replicas agree, and clients recover on their
own. Every broker leads some partitions and follows in the others, so each fault hits a leader and a follower.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from chaoslab.scrutiny import loaded
from clusterlab import processes
from clusterlab.kafka_cluster import KafkaCluster
from clusterlab.load import Load, LoadPlan
from clusterlab.tidelog_cluster import TidelogCluster
from clusterlab.topic_view import view_of_any

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
Cluster = TidelogCluster | KafkaCluster
Tell = Callable[..., None]
PARTITIONS = 6
SESSION_S = 6.0
KILL_LIMIT_S = 1.5 * SESSION_S
TERM_LIMIT_S = 1.0
BEFORE_S = 1.5
AFTER_S = 1.0
GO_ON_S = 30.0


@pytest.fixture
def topic(cluster: Cluster, new_replicated_topic: Callable[..., str]) -> str:
    return new_replicated_topic(cluster, PARTITIONS)


def led_by(cluster: Cluster, topic: str, broker_id: int) -> list[int]:
    view = view_of_any(cluster.live_addresses(), topic)
    led = [partition for partition, state in view.items() if state.leader == broker_id]
    assert led, f"broker {broker_id} leads nothing: {view}"
    return led


def a_leader(cluster: Cluster, topic: str) -> int:
    return view_of_any(cluster.live_addresses(), topic)[0].leader


def assert_within(cluster: Cluster, measured_s: float, limit_s: float) -> None:
    """Checks a limit of tidelog. Apache Kafka's measurements are only recorded."""
    assert measured_s <= limit_s or cluster.name != "tidelog"


def tell_waits(tell: Tell, what: str, load: Load, led: list[int], signalled_s: float) -> float:
    """Returns the longest wait, among the partitions led, from the signal to the acknowledgement of a record
    that was sent after it.
    """
    load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    waits = {p: load.first_acknowledged_s(p, signalled_s) - signalled_s for p in range(PARTITIONS)}
    others = [wait for partition, wait in waits.items() if partition not in led]
    tell(f"{what}: next acknowledged write, led partitions", max(waits[p] for p in led))
    tell(f"{what}: next acknowledged write, followed partitions", max(others))
    return max(waits[p] for p in led)


@pytest.mark.slow
def test_sigkill_of_a_broker(cluster: Cluster, topic: str, tell: Tell) -> None:
    victim = a_leader(cluster, topic)
    led = led_by(cluster, topic, victim)
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        killed_s = cluster.kill(f"broker-{victim}")
        wait_s = tell_waits(tell, "SIGKILL", load, led, killed_s)
        time.sleep(AFTER_S)
        cluster.start(f"broker-{victim}")
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert_within(cluster, wait_s, KILL_LIMIT_S)


@pytest.mark.slow
def test_sigterm_of_a_broker(cluster: Cluster, topic: str, tell: Tell) -> None:
    victim = a_leader(cluster, topic)
    led = led_by(cluster, topic, victim)
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        signalled_s = cluster.signal(f"broker-{victim}", signal.SIGTERM)
        tell_waits(tell, "SIGTERM", load, led, signalled_s)
        time.sleep(4)
        silences = [load.longest_silence_s(p, signalled_s, time.monotonic()) for p in led]
        tell("SIGTERM: longest silence of a partition it led", max(silences))
        cluster.start(f"broker-{victim}")
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert_within(cluster, max(silences), TERM_LIMIT_S)


@pytest.mark.parametrize("frozen_s", [3.0, 9.0], ids=["shorter-than-session", "longer-than-session"])
@pytest.mark.slow
def test_freeze_of_a_broker(cluster: Cluster, topic: str, tell: Tell, frozen_s: float) -> None:
    victim = a_leader(cluster, topic)
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        frozen_at_s = cluster.signal(f"broker-{victim}", signal.SIGSTOP)
        time.sleep(frozen_s)
        cluster.signal(f"broker-{victim}", signal.SIGCONT)
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
        tell(
            f"SIGSTOP for {frozen_s:.0f} s: all partitions write again after", time.monotonic() - frozen_at_s
        )
        time.sleep(AFTER_S)


@pytest.mark.slow
def test_sigkill_of_the_active_controller_and_then_of_a_broker(
    tidelog_cluster: TidelogCluster, topic: str, tell: Tell
) -> None:
    """The controller's death alone has no effect on clients. The next controller detects the
    broker's death.
    """
    cluster = tidelog_cluster
    victim = a_leader(cluster, topic)
    led = led_by(cluster, topic, victim)
    epoch = cluster.etcd().get("/controller_epoch")
    assert epoch is not None
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        controller = cluster.active_controller()
        killed_s = cluster.kill(controller)
        time.sleep(1)
        broker_killed_s = cluster.kill(f"broker-{victim}")
        before = [load.longest_silence_s(p, killed_s, broker_killed_s) for p in range(PARTITIONS)]
        tell("SIGKILL of the controller: longest silence of a partition", max(before))
        tell_waits(tell, "SIGKILL of controller and broker", load, led, broker_killed_s)
        cluster.start(controller)
        cluster.start(f"broker-{victim}")
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert max(before) < TERM_LIMIT_S
    after = cluster.etcd().get("/controller_epoch")
    assert after is not None
    assert int(after.value) > int(epoch.value)


@pytest.mark.slow
def test_freeze_of_the_active_controller(tidelog_cluster: TidelogCluster, topic: str, tell: Tell) -> None:
    """The controller is frozen for longer than its session: another one takes over, and the old one does no
    harm.
    """
    cluster = tidelog_cluster
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        controller = cluster.active_controller()
        frozen_at_s = cluster.signal(controller, signal.SIGSTOP)
        time.sleep(SESSION_S + 3)
        successor = cluster.active_controller()
        cluster.signal(controller, signal.SIGCONT)
        time.sleep(AFTER_S)
        silences = [load.longest_silence_s(p, frozen_at_s, time.monotonic()) for p in range(PARTITIONS)]
        tell("SIGSTOP of the controller: longest silence of a partition", max(silences))
    assert successor != controller
    assert cluster.active_controller() == successor
    assert max(silences) < TERM_LIMIT_S


@pytest.mark.slow
def test_sigkill_of_all_brokers_at_once(cluster: Cluster, topic: str, tell: Tell) -> None:
    """The processes die and the machine does not: nothing is lost in any order of restart."""
    names = list(cluster.addresses)
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        for name in names:
            cluster.signal(name, signal.SIGKILL)
        for name in names:
            processes.await_end(cluster.pid(name))
        for name in reversed(names):
            cluster.start(name)
        started_s = time.monotonic()
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
        tell(
            "all brokers killed: all partitions write again after the last start",
            time.monotonic() - started_s,
        )


@pytest.mark.slow
def test_leader_killed_while_a_follower_is_frozen(cluster: Cluster, topic: str, tell: Tell) -> None:
    """One broker of three remains: it must not acknowledge alone, and no other broker loses a record.

    Records that the killed leader stored before are different: it is in the ISR until its session ends.
    """
    leader, frozen, left = view_of_any(cluster.live_addresses(), topic)[0].replicas
    with loaded(cluster, LoadPlan(topic, PARTITIONS)) as load:
        time.sleep(BEFORE_S)
        cluster.signal(f"broker-{frozen}", signal.SIGSTOP)
        time.sleep(1)
        killed_s = cluster.kill(f"broker-{leader}")
        time.sleep(SESSION_S + 3)
        alone = [p for p in range(PARTITIONS) if load.acknowledged_since(p, killed_s)]
        cluster.signal(f"broker-{frozen}", signal.SIGCONT)
        continued_s = time.monotonic()
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
        tell("follower continues: all partitions write again after", time.monotonic() - continued_s)
        cluster.start(f"broker-{leader}")
        load.await_acknowledged(range(PARTITIONS), GO_ON_S)
    assert not alone, f"broker {left} alone acknowledged a record that needs two replicas"
