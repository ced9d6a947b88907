"""Traces of replication as text: a script of events on the left, and the cluster's reaction on the right.

A trace plays the cores of replicas of one partition, their logs, and the state in the metadata store. Nothing
happens by itself: each message, each write to the store and the time are lines of the script. So one can read
in a trace, and write in a new one, in which order things happen. The first line names the brokers.

| event | meaning |
|---|---|
| `brokers 1,2,3 min 2` | the replicas, all in sync at first, and `min.insync.replicas` |
| `brokers 1,2 min 1 without epochs` | followers truncate to the high watermark, as before KIP-101 |
| `elect 2` | the controller makes 2 the leader in a new epoch and tells all brokers |
| `elect 2 tells 2,3` | only 2 and 3 get the command |
| `tell 1` | broker 1 gets the command with the present state of the store |
| `produce 1 a b` | a client sends the records a and b in one batch to broker 1 with acks=all |
| `produce 1 a acks 1` | the client does not wait for followers |
| `fetch 3` | broker 3 asks its leader for the end of an epoch if it has to know it, otherwise for records |
| `fetch 3 unanswered` | the leader gets the request, and its response is lost |
| `store 1` | the store answers the change of the ISR that broker 1 proposed |
| `wait 31` | seconds pass |
| `check 1` | broker 1 looks for followers that fell behind |
| `restart 2` | the process of broker 2 ends and starts again with its log |
| `restart 2 with 1` | the machine lost its power: only the first record is left |
| `logs` | shows every log and its high watermark |
| `lost` | shows the acknowledged records that the present leader does not have |

A trace without the event `lost` fails if an acknowledged record is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidelog.broker.partition.core import PartitionCore
from tidelog.broker.partition.events import (
    AdvanceHighWatermark,
    AdvanceLowWatermark,
    AppendBatch,
    AppendReceived,
    AskEpochEnd,
    BatchAppended,
    Effect,
    EpochDiverged,
    EpochEndReceived,
    Event,
    FollowerFetched,
    IsrCheckDue,
    IsrRefused,
    IsrState,
    IsrWritten,
    LeaderAndIsrReceived,
    PersistLeaderEpochs,
    ProduceReceived,
    ProposeIsr,
    ReceivedAppended,
    RecordsReceived,
    Refuse,
    ReportIsrChange,
    StepDown,
    Truncated,
    TruncateTo,
)
from tidelog.broker.partition.producer_state import ProducerState
from tidelog.broker.partition.roles import FetchState
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.log_format.leader_epochs import EpochEntry, LeaderEpochs
from tidelog.model.errors import ErrorCode
from tidelog.model.protocol_values import ACKS_ALL
from tidelog.records.batch import BatchHeader

NOTHING = "-"
BROKER_EPOCH = 7
MS_PER_S = 1000
WALL_MS = WallMs(1_700_000_000_000)


class Stored(NamedTuple):
    """A record in a log: its value and the epoch of the leader that stored it first."""

    value: str
    epoch: int


class Replica:
    """One replica: its core, its log, and what it has to ask or to answer."""

    def __init__(self, broker_id: int, min_isr: int, *, truncates_by_epoch: bool) -> None:
        self.log: list[Stored] = []
        self.waiting: list[tuple[int, str]] = []
        """The records whose clients wait, with the offset that the high watermark must reach."""
        self.question: AskEpochEnd | None = None
        self._broker_id = broker_id
        self._min_isr = min_isr
        self._truncates_by_epoch = truncates_by_epoch
        self.core = self._new_core(0)

    def _new_core(self, high_watermark: int) -> PartitionCore:
        epochs = LeaderEpochs()
        for offset, stored in enumerate(self.log):
            epochs.assign(stored.epoch, offset)
        return PartitionCore(
            self._broker_id,
            ProducerState(),
            epochs,
            log_start_offset=0,
            log_end_offset=len(self.log),
            high_watermark=high_watermark,
            min_in_sync_replicas=self._min_isr,
            truncates_by_epoch=self._truncates_by_epoch,
        )

    def restart(self, kept: int | None) -> None:
        del self.log[len(self.log) if kept is None else kept :]
        self.waiting.clear()
        self.question = None
        self.core = self._new_core(self.core.high_watermark)


class Trace:
    """A cluster that plays the events of a trace, one line at a time."""

    def __init__(self, first_line: str) -> None:
        _, brokers, _, min_isr, *options = first_line.split()
        assert options in ([], ["without", "epochs"])
        self.replicas = {
            broker: Replica(broker, int(min_isr), truncates_by_epoch=not options)
            for broker in _numbers(brokers)
        }
        self.acknowledged: list[str] = []
        self._isr = IsrState(-1, 0, tuple(self.replicas))
        self._partition_epoch = 0
        self._now_ms = MonotonicMs(0)
        self._reactions: list[str] = []

    def play(self, line: str) -> str:
        """Returns the reaction to an event."""
        name, *words = line.split()
        events: dict[str, Callable[..., None]] = {
            "elect": self._elect,
            "tell": self._tell,
            "produce": self._produce,
            "fetch": self._fetch,
            "store": self._store,
            "wait": self._wait,
            "check": self._check,
            "restart": self._restart,
            "logs": self._logs,
            "lost": self._lost,
        }
        self._reactions = []
        events[name](*words)
        return "; ".join(self._reactions) or NOTHING

    def lost(self) -> list[str]:
        """Returns the acknowledged records that the leader of the store does not have."""
        leader = self.replicas[self._isr.leader]
        return [value for value in self.acknowledged if value not in {stored.value for stored in leader.log}]

    def _lost(self) -> None:
        self._reactions += self.lost()

    def _elect(self, broker: str, tells: str = "", whom: str = "") -> None:
        assert tells in ("", "tells")
        leader = int(broker)
        isr = self._isr.isr if leader in self._isr.isr else (leader,)
        self._isr = IsrState(leader, self._isr.leader_epoch + 1, isr)
        self._partition_epoch += 1
        for told in _numbers(whom) if tells else self.replicas:
            self._tell(str(told))

    def _tell(self, broker: str) -> None:
        replica = self.replicas[int(broker)]
        state = self._isr
        command = LeaderAndIsrReceived(
            state.leader,
            state.leader_epoch,
            self._partition_epoch,
            state.isr,
            tuple(self.replicas),
            self._now_ms,
            state.elr,
        )
        if command.leader_epoch > replica.core.leader_epoch:
            replica.question = None
            replica.waiting.clear()
        self._step(int(broker), command)

    def _produce(self, broker: str, *words: str) -> None:
        replica = self.replicas[int(broker)]
        acks = int(words[-1]) if words[-2:-1] == ("acks",) else ACKS_ALL
        values = words if acks == ACKS_ALL else words[:-2]
        asked = self._step(int(broker), ProduceReceived(_header(0, 0, len(values)), acks, WALL_MS))
        for effect in asked:
            if isinstance(effect, AppendBatch):
                replica.log += [Stored(value, effect.leader_epoch) for value in values]
                self._say(broker, f"stores {' '.join(values)} at {effect.base_offset}")
                if acks == ACKS_ALL:
                    replica.waiting += [(len(replica.log), value) for value in values]
                header = _header(effect.base_offset, effect.leader_epoch, len(values))
                self._step(int(broker), BatchAppended(header, WALL_MS))

    def _fetch(self, broker: str, unanswered: str = "") -> None:
        follower, core = int(broker), self.replicas[int(broker)].core
        leader = self.replicas[core.leader]
        error = leader.core.leadership_error(core.leader_epoch)
        if error:
            self._say(core.leader, f"refuses: {error.name}")
            return
        question = self.replicas[follower].question
        if question is not None:
            self.replicas[follower].question = None
            end = leader.core.epoch_end(question.epoch)
            self._say(core.leader, f"says that epoch {end.epoch} ends at {end.end_offset}")
            answer = EpochEndReceived(question.leader_epoch, question.epoch, end.epoch, end.end_offset)
            self._step(follower, answer)
            return
        assert core.fetch_state is FetchState.FETCHING, f"broker {broker} does not fetch"
        diverging = leader.core.diverging_epoch(core.last_fetched_epoch, core.fetch_offset)
        if diverging is not None:
            self._say(core.leader, f"says that epoch {diverging.epoch} ends at {diverging.end_offset}")
            self._step(follower, EpochDiverged(core.leader_epoch, diverging.epoch, diverging.end_offset))
            return
        offset = core.fetch_offset
        self._step(core.leader, FollowerFetched(follower, BROKER_EPOCH, offset, 0, self._now_ms))
        if not unanswered:
            self._receive(follower, leader, offset)

    def _receive(self, follower: int, leader: Replica, offset: int) -> None:
        """The follower gets what the leader's log has from `offset`, one record in each batch."""
        replica, high_watermark = self.replicas[follower], leader.core.high_watermark
        records = leader.log[offset:]
        headers = [_header(offset + number, stored.epoch, 1) for number, stored in enumerate(records)]
        received = RecordsReceived(replica.core.leader_epoch, headers, high_watermark, 0)
        effects = self._step(follower, received)
        if PersistLeaderEpochs() in effects:
            effects = self._step(follower, received)
        if AppendReceived() in effects:
            if records:
                self._say(follower, f"stores {' '.join(stored.value for stored in records)} at {offset}")
            replica.log += records
            self._step(follower, ReceivedAppended(headers, high_watermark, 0, WALL_MS))

    def _store(self, broker: str) -> None:
        proposal = self.replicas[int(broker)].core.pending_isr
        assert proposal is not None, f"broker {broker} has proposed nothing"
        is_current = proposal.partition_epoch == self._partition_epoch
        if is_current:
            self._partition_epoch += 1
            self._isr = self._isr._replace(isr=proposal.isr, elr=proposal.elr)
            self._step(int(broker), IsrWritten(proposal, self._partition_epoch))
        else:
            self._step(int(broker), IsrRefused(proposal, self._isr, self._partition_epoch, self._now_ms))

    def _wait(self, seconds: str) -> None:
        self._now_ms = MonotonicMs(self._now_ms + int(seconds) * MS_PER_S)

    def _check(self, broker: str) -> None:
        self._step(int(broker), IsrCheckDue(self._now_ms))

    def _restart(self, broker: str, _with: str = "", kept: str = "") -> None:
        self.replicas[int(broker)].restart(int(kept) if kept else None)

    def _logs(self) -> None:
        for broker, replica in self.replicas.items():
            values = " ".join(stored.value for stored in replica.log) or "nothing"
            self._say(broker, f"{values} ({replica.core.high_watermark})")

    def _step(self, broker: int, event: Event) -> list[Effect]:
        """Lets a core handle an event, and does what it asks for."""
        effects = self.replicas[broker].core.step(event)
        for effect in effects:
            self._do(broker, effect)
        return effects

    def _do(self, broker: int, effect: Effect) -> None:
        replica = self.replicas[broker]
        match effect:
            case AdvanceHighWatermark(high_watermark):
                self._say(broker, f"high watermark {high_watermark}")
                for offset, value in [each for each in replica.waiting if each[0] <= high_watermark]:
                    replica.waiting.remove((offset, value))
                    self.acknowledged.append(value)
                    self._say(broker, f"acknowledges {value}")
            case PersistLeaderEpochs():
                latest = replica.core.leader_epochs.latest
                assert isinstance(latest, EpochEntry)
                self._say(broker, f"notes epoch {latest.epoch} from {latest.start_offset}")
            case AskEpochEnd(_, epoch):
                replica.question = effect
                self._say(broker, f"wants to know where epoch {epoch} ends")
            case TruncateTo(offset):
                self._say(broker, f"truncates to {offset}")
                del replica.log[offset:]
                self._step(broker, Truncated(0, offset, ProducerState()))
            case ProposeIsr(_, _, isr, elr, _):
                eligible = f" and {_listed(elr)} eligible" if elr else ""
                self._say(broker, f"proposes {_listed(isr)} in sync{eligible}")
            case ReportIsrChange():
                self._say(broker, f"has {_listed(replica.core.in_sync_replicas)} in sync")
            case Refuse(error, _):
                self._say(broker, f"refuses: {ErrorCode(error).name}")
            case StepDown():
                replica.waiting.clear()
                self._say(broker, "steps down")
            case AppendBatch() | AppendReceived() | AdvanceLowWatermark():
                pass  # what follows from them is said elsewhere, or is about log starts, which are all 0
            case _:
                raise AssertionError(f"a trace cannot show {effect}")

    def _say(self, broker: int | str, what: str) -> None:
        self._reactions.append(f"{broker} {what}")


def played(text: str) -> str:
    """Returns the trace with the reactions that the cluster shows, in the form of the files."""
    lines = [(line.split("|")[0].strip(), line.startswith("#")) for line in text.splitlines()]
    trace: Trace | None = None
    rows: list[tuple[str, str | None]] = []
    for event, is_comment in lines:
        if not event or is_comment:
            rows.append((event, None))
        elif trace is None:
            trace = Trace(event)
            rows.append((event, None))
        else:
            rows.append((event, trace.play(event)))
    assert trace is not None
    if ("lost", False) not in lines:
        assert trace.lost() == [], f"acknowledged records are lost: {trace.lost()}"
    width = max(len(event) for event, reaction in rows if reaction is not None)
    return "".join(
        f"{event if reaction is None else f'{event:{width}} | {reaction}'}\n" for event, reaction in rows
    )


def _header(base_offset: int, epoch: int, count: int) -> BatchHeader:
    times = (WALL_MS, WALL_MS)
    return BatchHeader(base_offset, 100, epoch, 2, 0, 0, count - 1, *times, -1, -1, -1, count)


def _numbers(text: str) -> Iterator[int]:
    return (int(number) for number in text.split(","))


def _listed(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
