"""The views of several brokers are merged."""

from __future__ import annotations

from uuid import UUID

from tidelog.client.cluster import Partition, Topic
from tidelog.observe.availability import merge_views


def seen(isr: tuple[int, ...], epoch: int = 1, leader: int = 0) -> dict[str, Topic]:
    partition = Partition(0, leader, epoch, (0, 1, 2), isr, ())
    return {"t": Topic("t", UUID(int=1), False, (partition,))}


def test_the_least_isr_of_the_newest_epoch_counts() -> None:
    (merged,) = merge_views([seen((0, 1, 2)), seen((1, 2), 2, 1), seen((1, 2, 0), 2, 1)], {"t": 2}, {})
    assert (merged.leader, merged.isr, merged.lacking) == (1, {1, 2}, (0,))


def test_an_old_view_does_not_hide_that_a_replica_is_back() -> None:
    (merged,) = merge_views([seen((0, 1), 1), seen((0, 1, 2), 2)], {"t": 2}, {})
    assert merged.lacking == ()


def test_topics_being_deleted_are_left_out() -> None:
    assert merge_views([seen((0,))], {}, {}) == []


def test_replicas_that_are_being_added_are_distinguished() -> None:
    (merged,) = merge_views([seen((0, 1))], {"t": 5}, {("t", 0): (2,)})
    assert (merged.lacking, merged.needed_isr) == ((), 2)
