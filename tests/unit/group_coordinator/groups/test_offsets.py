"""Commits and fetches of offsets, also after another coordinator has loaded the shard."""

from __future__ import annotations

from uuid import UUID

import pytest

from grouplab.offsets_lab import OffsetsLab, image_of
from tidelog.group_coordinator.groups.shared import TimerKey
from tidelog.kernel.instants import WallMs
from tidelog.model.errors import ErrorCode
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.delete_groups import DeleteGroupsRequest
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

RETENTION_MS = 7 * 86_400_000


@pytest.fixture
def lab() -> OffsetsLab:
    return OffsetsLab()


def expire(lab: OffsetsLab, after_ms: int) -> None:
    lab.now_ms += after_ms
    lab.take(lab.core.timer_fired(TimerKey("expiry", "check"), lab.now_ms))


class TestPlainCommits:
    @pytest.mark.parametrize("version", range(2, 11))
    def test_committed_offsets_can_be_fetched_from_the_next_owner_too(
        self, lab: OffsetsLab, version: int
    ) -> None:
        assert lab.commit(41, version=version) == 0
        assert lab.commit(42, version=version) == 0
        for fetch_version in range(1, 11):
            assert lab.fetch(version=fetch_version) == (42, 0)
            assert lab.fetch(version=fetch_version, partition=1) == (-1, 0)
            assert lab.fetch(version=fetch_version, group="other") == (-1, 0)
        before = lab.fetch_all()
        lab.load()
        assert lab.fetch_all() == before == {("a", 0): 42}

    @pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
    def test_deleting_all_offsets_of_a_group(self, lab: OffsetsLab, version: int) -> None:
        lab.commit(1)
        lab.commit(2, partition=3)
        lab.commit(3, topic="b")
        lab.commit(4, group="h")
        assert lab.fetch_all(version=version) == {("a", 0): 1, ("a", 3): 2, ("b", 0): 3}
        assert lab.fetch_all("unknown", version=version) == {}

    def test_an_endless_retention_ends_with_the_largest_time(self, lab: OffsetsLab) -> None:
        assert lab.commit(1, version=4, retention_ms=(1 << 63) - 1) == 0
        lab.load()
        expire(lab, 10 * RETENTION_MS)
        assert lab.fetch() == (1, 0)

    def test_metadata_is_limited(self, lab: OffsetsLab) -> None:
        assert lab.commit(1, metadata="x" * 4096) == 0
        assert lab.commit(2, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert lab.fetch() == (1, 0)

    @pytest.mark.parametrize("version", [9, 10])
    def test_a_commit_of_nothing_creates_no_group(self, lab: OffsetsLab, version: int) -> None:
        assert lab.commit(1, topic="unknown", version=version, group="new") != ErrorCode.NONE
        assert not lab.core.groups.by_id
        assert lab.commit(1, version=version, group="new") == ErrorCode.NONE
        assert list(lab.core.groups.by_id) == ["new"]

    def test_unknown_topic_ids(self, lab: OffsetsLab) -> None:
        assert lab.commit(1, topic="unknown", version=10) == ErrorCode.UNKNOWN_TOPIC_ID
        assert lab.fetch(topic="unknown", version=10) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)

    def test_the_offset_of_a_deleted_topic_with_the_same_name_is_ignored(self, lab: OffsetsLab) -> None:
        lab.commit(5, version=10)
        lab.topic_ids["a"] = UUID(int=77)
        lab.load()
        assert lab.fetch(version=10) == (-1, 0)
        lab.commit(6, version=10)
        assert lab.fetch(version=10) == (6, 0)

    def test_requests_for_absent_groups(self, lab: OffsetsLab) -> None:
        assert lab.commit(1, member=("m", 1), version=8) == ErrorCode.ILLEGAL_GENERATION
        assert lab.commit(1, member=("m", 1), version=9) == ErrorCode.GROUP_ID_NOT_FOUND
        assert lab.log == []

    def test_a_group_with_only_offsets_is_listed(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        for _ in range(2):
            (group,) = lab.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest()).groups
            assert (group.group_id, group.group_state) == ("g", "Empty")
            lab.load()


class TestTransactionalCommits:
    def test_an_offset_counts_from_the_commit_marker_on(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        assert lab.commit_in_transaction(5) == 0
        for _ in range(2):
            assert lab.fetch() == (1, 0)
            assert lab.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert lab.fetch(stable=True, version=7) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert lab.fetch(stable=True, partition=1) == (-1, 0)
            lab.load()
        assert lab.end(True) == 0
        for _ in range(2):
            assert lab.fetch(stable=True) == (5, 0)
            lab.load()

    def test_an_aborted_offset_is_never_visible(self, lab: OffsetsLab) -> None:
        lab.commit_in_transaction(5)
        assert lab.end(False) == 0
        for _ in range(2):
            assert lab.fetch(stable=True) == (-1, 0)
            lab.load()

    def test_a_later_plain_commit_stays(self, lab: OffsetsLab) -> None:
        lab.commit_in_transaction(5)
        lab.commit(9)
        lab.end(True)
        assert lab.fetch() == (9, 0)
        lab.load()
        assert lab.fetch() == (9, 0)

    def test_two_transactions_with_offsets_of_one_partition(self, lab: OffsetsLab) -> None:
        lab.commit_in_transaction(5, (7, 0))
        lab.commit_in_transaction(6, (8, 0))
        lab.end(True, (8, 0))
        assert lab.fetch(stable=True)[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        lab.end(True, (7, 0))
        assert lab.fetch(stable=True) == (6, 0)

    def test_repeated_markers_are_not_written_again(self, lab: OffsetsLab) -> None:
        lab.commit_in_transaction(5)
        assert lab.end(True) == 0
        size = len(lab.log)
        assert lab.end(True) == 0
        lab.load()
        assert lab.end(True) == 0
        assert len(lab.log) == size

    def test_markers_and_commits_of_older_epochs_are_rejected(self, lab: OffsetsLab) -> None:
        lab.commit_in_transaction(5, (7, 0))
        assert lab.end(True, (7, 1), bumps=True) == 0
        for _ in range(2):
            assert lab.commit_in_transaction(4, (7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
            assert lab.end(False, (7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
            lab.load()
        assert lab.commit_in_transaction(6, (7, 1)) == 0
        assert lab.end(False, (7, 1), bumps=True) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert lab.end(True, (7, 2), bumps=True) == 0
        assert lab.fetch(stable=True) == (6, 0)
        late = lab.end(True, (7, 3), bumps=True, coordinator_epoch=0)
        assert late == ErrorCode.TRANSACTION_COORDINATOR_FENCED

    def test_a_commit_after_its_transactions_marker_is_rejected(self, lab: OffsetsLab) -> None:
        """The producer was fenced by its successor before it sent the offsets."""
        assert lab.end(False, (7, 1)) == 0
        assert lab.commit_in_transaction(5, (7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
        lab.load()
        assert lab.commit_in_transaction(5, (7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH


class TestDeletion:
    def delete(self, lab: OffsetsLab, group: str, topic: str, partition: int) -> tuple[int, int | None]:
        topics = [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(partition)])]
        answer = lab.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group, topics))
        if not answer.topics:
            return answer.error_code, None
        return answer.error_code, answer.topics[0].partitions[0].error_code

    def test_deleting_one_offset(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        lab.commit(2, partition=1)
        assert self.delete(lab, "g", "a", 0) == (0, 0)
        assert self.delete(lab, "g", "a", 3) == (0, 0)
        assert self.delete(lab, "unknown", "a", 0) == (ErrorCode.GROUP_ID_NOT_FOUND, None)
        assert self.delete(lab, "", "a", 0) == (ErrorCode.INVALID_GROUP_ID, None)
        for topic, partition in (("nowhere", 0), ("a", 999), ("a", -1)):
            assert self.delete(lab, "g", topic, partition) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        lab.load()
        assert lab.fetch_all() == {("a", 1): 2}

    def test_deleting_a_group_with_an_open_transaction(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        lab.commit_in_transaction(5, partition=1)
        (result,) = lab.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"])).results
        assert result.error_code == 0
        for _ in range(2):
            assert lab.fetch_all() == {}
            lab.load()
        assert lab.end(True) == 0
        assert lab.fetch_all() == {}

    def test_deleting_the_topic(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        lab.commit(2, topic="b")
        lab.commit_in_transaction(3, partition=1)
        lab.take(lab.core.image_changed(image_of({"b": lab.topic_ids["b"]}, 2), lab.now_ms))
        lab.end(True)
        assert lab.fetch_all() == {("b", 0): 2}
        lab.load()
        assert lab.fetch_all() == {("b", 0): 2}

    def test_expired_offsets_are_deleted(self, lab: OffsetsLab) -> None:
        lab.commit(1)
        lab.commit(2, partition=1, version=3, retention_ms=1_000)
        lab.commit_in_transaction(3, partition=2)
        expire(lab, 1_000)
        assert lab.fetch_all() == {("a", 0): 1}
        expire(lab, RETENTION_MS - 1_001)
        assert lab.fetch_all() == {("a", 0): 1}
        expire(lab, 1)
        assert lab.fetch_all() == {}
        lab.end(True)
        expire(lab, 0)
        assert lab.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest()).groups == []
        lab.load()
        assert lab.core.groups.by_id == {}


def test_offsets_that_were_committed_at_an_unknown_time_do_not_expire() -> None:
    lab = OffsetsLab()
    lab.commit(1)
    now_ms, lab.now_ms = lab.now_ms, WallMs(-1)
    lab.commit(2, partition=1)
    lab.now_ms = now_ms
    expire(lab, RETENTION_MS)
    assert lab.fetch_all() == {("a", 1): 2}


def test_transactional_commits_by_topic_id_state_their_own_errors() -> None:
    lab = OffsetsLab()
    assert lab.commit_in_transaction(1, topic="a", version=6) == ErrorCode.NONE
    assert lab.commit_in_transaction(1, topic="unknown", version=6) == ErrorCode.UNKNOWN_TOPIC_ID
    absent = {"group": "absent", "member": ("m", 1)}
    assert lab.commit_in_transaction(1, **absent, version=5) == ErrorCode.ILLEGAL_GENERATION  # type: ignore[arg-type]
    assert lab.commit_in_transaction(1, **absent, version=6) == ErrorCode.GROUP_ID_NOT_FOUND  # type: ignore[arg-type]
