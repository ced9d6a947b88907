"""What a replica asks of the broker around it: to wake who waits, and to do what takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidelog.broker.partition.events import AskEpochEnd, ProposeIsr, RestartLogAt, TruncateTo
    from tidelog.broker.replica import Replica
    from tidelog.model.topics import TopicPartition


class ReplicaEnvironment(Protocol):
    """Nothing here waits: what takes time is begun, and its outcome comes back to the replica as an event."""

    def high_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """Readers that wait and producers with acks=all may go on."""
        ...

    def log_end_advanced(self, topic_partition: TopicPartition) -> None:
        """The leader has something new for its followers."""
        ...

    def low_watermark_advanced(self, topic_partition: TopicPartition) -> None:
        """DeleteRecords that waits for all replicas may go on."""
        ...

    def stepped_down(self, topic_partition: TopicPartition) -> None:
        """Whoever waits at this leader waits in vain."""
        ...

    def propose_isr(self, replica: Replica, proposal: ProposeIsr) -> None:
        """Write it to the store; the outcome is IsrWritten or IsrRefused, never neither."""
        ...

    def isr_changed(self, topic_partition: TopicPartition, *, is_expansion: bool) -> None:
        """Count it and tell the controller."""
        ...

    def ask_epoch_end(self, replica: Replica, question: AskEpochEnd) -> None:
        """Ask the leader until it answers or the replica has another one; the answer is EpochEndReceived."""
        ...

    def cut_log(self, replica: Replica, cut: TruncateTo | RestartLogAt, leader_epoch: int) -> None:
        """Have `Replica.cut_log` run."""
        ...
