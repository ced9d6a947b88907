"""The clients that push metrics: their subscriptions, their intervals and what is refused (KIP-714)."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.broker.client_telemetry import receiver as module
from tidelog.broker.client_telemetry.receiver import ZERO_ID, ClientInstances
from tidelog.kernel.instants import MonotonicMs
from tidelog.model.client_metrics import DEFAULT_INTERVAL_MS, parse_subscription
from tidelog.model.errors import ErrorCode, KafkaError

CLIENT, OTHER = UUID(int=1), UUID(int=2)
JAVA = {"client_id": "app-1", "client_software_name": "apache-kafka-java"}


def clients(**subscriptions: dict[str, str]) -> ClientInstances:
    found = ClientInstances(max_bytes=100)
    found.set_subscriptions([parse_subscription(name, configs) for name, configs in subscriptions.items()])
    return found


def push(found: ClientInstances, subscription_id: int, at_ms: int, **how: int | bool) -> ErrorCode:
    given = {"compression": 0, "size": 10, "is_last": False, **how}
    try:
        found.take_push(CLIENT, "user", JAVA, subscription_id, now_ms=MonotonicMs(at_ms), **given)  # type: ignore[arg-type]
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_client_gets_what_all_matching_subscriptions_ask_for() -> None:
    found = clients(
        a={"metrics": "org.apache.kafka.producer.,x.", "interval.ms": "5000"},
        b={"metrics": "a.", "interval.ms": "2000", "match": "client_id=app-.*"},
        c={"metrics": "*", "match": "client_software_name=librdkafka"},
    )
    plan = found.ask(ZERO_ID, CLIENT, "user", JAVA, MonotonicMs(0)).plan
    assert (plan.metrics, plan.interval_ms) == (("a.", "org.apache.kafka.producer.", "x."), 2000)
    rdkafka = found.ask(
        ZERO_ID, OTHER, "user", {**JAVA, "client_software_name": "librdkafka"}, MonotonicMs(0)
    )
    assert (rdkafka.instance_id, rdkafka.plan.metrics) == (OTHER, ("*",))


def test_a_client_without_a_subscription_asks_seldom() -> None:
    plan = clients().ask(ZERO_ID, CLIENT, "user", JAVA, MonotonicMs(0)).plan
    assert (plan.metrics, plan.interval_ms) == ((), DEFAULT_INTERVAL_MS)


def test_requests_before_the_interval_is_over_are_refused() -> None:
    found = clients(a={"metrics": "*", "interval.ms": "1000"})
    plan = found.ask(ZERO_ID, CLIENT, "user", JAVA, MonotonicMs(0)).plan
    with pytest.raises(KafkaError) as refused:
        found.ask(CLIENT, OTHER, "user", JAVA, MonotonicMs(999))
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # The first push may be early: clients wait for a random part of the interval before it.
    assert push(found, plan.subscription_id, 500) == ErrorCode.NONE
    assert push(found, plan.subscription_id, 1499) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(found, plan.subscription_id, 1500) == ErrorCode.NONE
    assert push(found, plan.subscription_id, 1500, is_last=True) == ErrorCode.NONE
    assert push(found, plan.subscription_id, 9000) == ErrorCode.INVALID_REQUEST, "it has ended"


def test_a_changed_subscription_lets_the_client_ask_again_at_once() -> None:
    found = clients(a={"metrics": "*", "interval.ms": "1000"})
    before = found.ask(ZERO_ID, CLIENT, "user", JAVA, MonotonicMs(0)).plan
    found.set_subscriptions([parse_subscription("a", {"metrics": "x", "interval.ms": "1000"})])
    assert push(found, before.subscription_id, 1000) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after = found.ask(CLIENT, OTHER, "user", JAVA, MonotonicMs(1001)).plan
    assert after.subscription_id != before.subscription_id
    assert push(found, after.subscription_id, 2001) == ErrorCode.NONE


def test_refused_pushes() -> None:
    found = clients(a={"metrics": "*", "interval.ms": "100"})
    subscription = found.ask(ZERO_ID, CLIENT, "user", JAVA, MonotonicMs(0)).plan.subscription_id
    assert push(found, subscription, 1000, size=101) == ErrorCode.TELEMETRY_TOO_LARGE
    assert push(found, subscription, 2000, compression=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    with pytest.raises(KafkaError) as refused:
        found.take_push(ZERO_ID, "user", JAVA, subscription, 0, 1, MonotonicMs(3000), is_last=False)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_the_number_of_clients_is_bounded_and_silent_ones_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 4)
    found = clients(a={"metrics": "*", "interval.ms": "100"})
    for number in range(1, 6):
        asked = found.ask(ZERO_ID, UUID(int=number), "user", JAVA, MonotonicMs(number))
        assert asked.plan.metrics == ("*",), "those that are not remembered push, too"
    assert len(found) == 3, "a part is spare for others"
    found.forget_silent(MonotonicMs(302))
    assert len(found) == 2, "client 1 was silent for more than three intervals"


def test_a_user_with_many_clients_takes_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 8)
    found = clients(a={"metrics": "*", "interval.ms": "1000"})
    found.ask(ZERO_ID, CLIENT, "alice", JAVA, MonotonicMs(0))
    for number in range(100, 120):
        found.ask(ZERO_ID, UUID(int=number), "mallory", JAVA, MonotonicMs(1))
    found.ask(ZERO_ID, OTHER, "bob", JAVA, MonotonicMs(2))
    for instance_id, user in ((CLIENT, "alice"), (OTHER, "bob")):
        with pytest.raises(KafkaError) as refused:
            found.ask(instance_id, ZERO_ID, user, JAVA, MonotonicMs(999))
        assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the client is remembered"


@pytest.mark.parametrize(
    ("configs", "code"),
    [
        ({"interval.ms": "99"}, ErrorCode.INVALID_REQUEST),
        ({"interval.ms": "x"}, ErrorCode.INVALID_REQUEST),
        ({"no.such": "1"}, ErrorCode.INVALID_REQUEST),
        ({"match": "client_id"}, ErrorCode.INVALID_CONFIG),
        ({"match": "color=red"}, ErrorCode.INVALID_CONFIG),
        ({"match": "client_id=("}, ErrorCode.INVALID_CONFIG),
        (
            {"metrics": ",".join(f"m{number}" for number in range(101))},
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
def test_invalid_subscriptions(configs: dict[str, str], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_subscription("s", configs)
    assert refused.value.code == code
