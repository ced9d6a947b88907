"""ISR changes are collected and published at the times at which Kafka publishes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.replication.isr import IsrPropagation
from tidelog.model.topics import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def test_a_change_is_published_after_more_than_five_quiet_seconds() -> None:
    propagation = IsrPropagation(now_ms=0)
    propagation.isr_changed(A, 1_000)
    assert [propagation.take(now_ms) for now_ms in (1_000, 2_500, 6_000)] == [(), (), ()]
    assert propagation.take(6_001) == (A,)


def test_continuous_changes_are_published_after_a_minute() -> None:
    propagation = IsrPropagation(now_ms=0)
    published = []
    for now_ms in range(0, 130_000, 1_000):
        propagation.isr_changed(B, now_ms)
        if propagation.take(now_ms):
            propagation.published(now_ms)
            published.append(now_ms)
    assert published == [61_000, 122_000]


def test_nothing_is_published_without_a_change() -> None:
    assert IsrPropagation(now_ms=0).take(1_000_000) == ()


def test_changes_during_a_publication_are_in_the_next_one() -> None:
    propagation = IsrPropagation(now_ms=0)
    propagation.isr_changed(A, 0)
    propagation.isr_changed(B, 0)
    assert propagation.take(5_001) == (A, B)
    propagation.isr_changed(A, 5_002)
    assert propagation.take(20_000) == ()  # the first is not settled
    propagation.published(20_000)
    assert propagation.take(20_000) == (A,)


def test_a_failed_publication_is_due_again_at_once() -> None:
    propagation = IsrPropagation(now_ms=0)
    propagation.isr_changed(A, 0)
    assert propagation.take(5_001) == (A,)
    propagation.isr_changed(C, 5_001)
    propagation.not_published()
    assert len(propagation) == 2
    assert propagation.take(7_500) == ()  # not quiet any more
    assert propagation.take(10_002) == (A, C)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20_000),
            st.one_of(st.sampled_from([A, B, C]), st.sampled_from(["take", "published", "not_published"])),
        )
    )
)
def test_no_change_is_lost_or_waits_for_more_than_a_minute(
    steps: list[tuple[int, TopicPartition | str]],
) -> None:
    propagation = IsrPropagation(now_ms=0)
    waiting: set[TopicPartition] = set()
    taken: set[TopicPartition] = set()
    now_ms = last_publication_ms = 0
    for elapsed_ms, step in steps:
        now_ms += elapsed_ms
        if isinstance(step, TopicPartition):
            propagation.isr_changed(step, now_ms)
            waiting.add(step)
        elif step == "take" and not taken:
            taken = set(propagation.take(now_ms))
            assert taken in (set(), waiting)
            if now_ms - last_publication_ms > 60_000:
                assert taken == waiting
            waiting -= taken
        elif step == "published" and taken:
            propagation.published(now_ms)
            last_publication_ms, taken = now_ms, set()
        elif step == "not_published" and taken:
            propagation.not_published()
            waiting, taken = waiting | taken, set()
    assert len(propagation) == len(waiting)
