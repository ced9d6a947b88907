"""Faults planted in tidelog on purpose: the simulator is worth what it finds of them (DESIGN section 3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from tidelog.broker import hosting
from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import ProposeIsr
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.replication import isr_writer
from tidelog.metadata.store import Compare, CompareOperator, CompareTarget
from tidelog.model.errors import ErrorCode

UNKNOWN_EPOCH: Final = -1


@contextlib.contextmanager
def epoch_truncation_off() -> Iterator[None]:
    """Followers cut their logs to the high watermark, as Kafka did before KIP-101."""
    with patch.object(hosting, "PartitionCore", partial(PartitionCore, truncates_by_epoch=False)):
        yield


@contextlib.contextmanager
def shrink_applied_first() -> Iterator[None]:
    """A leader counts without those who leave the ISR before the store has taken the change."""
    propose = PartitionCore._propose

    def applied_first(core: PartitionCore, isr: tuple[int, ...], added: Any) -> ProposeIsr:
        proposal = propose(core, isr, added)
        if not added:
            core.in_sync_replicas = isr
        return proposal

    with patch.object(PartitionCore, "_propose", applied_first):
        yield


@contextlib.contextmanager
def isr_add_without_broker_epoch() -> Iterator[None]:
    """A follower joins the ISR, whichever of its lives it was that had caught up."""

    class Unchecked(Compare):
        @staticmethod
        def create_revision(key: str, revision: int) -> Compare:
            return Compare(key, CompareTarget.CREATE_REVISION, UNKNOWN_EPOCH, CompareOperator.GREATER)

    with (
        patch.object(isr_writer, "Compare", Unchecked),
        patch.object(isr_writer, "_is_alive", lambda *_: True),
    ):
        yield


@contextlib.contextmanager
def fetch_without_epoch() -> Iterator[None]:
    """A leader serves and counts fetches of any leader epoch."""

    def leadership_error(core: PartitionCore, current_leader_epoch: int) -> ErrorCode:
        return ErrorCode.NONE if core.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    with (
        patch.object(PartitionCore, "leadership_error", leadership_error),
        patch.object(PartitionCore, "diverging_epoch", lambda *_: None),
    ):
        yield


@contextlib.contextmanager
def dedupe_off() -> Iterator[None]:
    """A batch that was stored is stored again when it comes again."""
    with patch.object(ProducerState, "check", lambda *_: None):
        yield


PLANTED: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "epoch-truncation-off": epoch_truncation_off,
    "shrink-applied-first": shrink_applied_first,
    "isr-add-without-broker-epoch": isr_add_without_broker_epoch,
    "fetch-without-epoch": fetch_without_epoch,
    "dedupe-off": dedupe_off,
}
