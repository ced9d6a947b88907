"""The load of a chaos run: producers, a tailing reader, groups of both protocols, a share group,
transactions, a copy, and mixers, whose transactions receive each other's records.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from brokerlab.clients import connection, create_topic
from chaoslab.group_readers import CLASSIC, CONSUMER, GroupReaders
from chaoslab.history import History, Poll, poll_of, send_of
from chaoslab.share_members import ShareMembers
from chaoslab.transactions import CopyingThread, Mixer, TransactionalWriter
from clusterlab.history import read_of
from clusterlab.load import Load, LoadPlan
from clusterlab.topic_view import TopicView, view_of_any

SAMPLE_S = 0.25
STATUS_FILE, SAMPLES_FILE = "status.json", "samples.jsonl"
CATCH_UP_S = 180.0
READ_S = 180.0
MIXERS = 2
MIXED_PARTITIONS = 2
STOP_S = 40.0


@dataclass(frozen=True)
class ChaosPlan:
    """Topic names begin with `prefix`. Topics have three replicas and min.insync.replicas=2, unless stated
    otherwise.
    """

    prefix: str = "chaos"
    partitions: int = 6
    transactional_partitions: int = 3
    records_per_s: float = 200
    replicas: int = 3
    min_insync_replicas: int = 2
    transaction_pause_s: float = 0.3
    churn_s: float = 25.0
    """The interval at which a member of a group leaves and another joins."""
    seed: int = 1

    @property
    def log(self) -> str:
        return f"{self.prefix}-log"

    @property
    def transactional(self) -> str:
        return f"{self.prefix}-transactions"

    @property
    def copy(self) -> str:
        return f"{self.prefix}-copy"

    @property
    def mixed(self) -> str:
        return f"{self.prefix}-mixed"

    def topics(self) -> dict[str, int]:
        return {
            self.log: self.partitions,
            self.transactional: self.transactional_partitions,
            self.copy: self.partitions,
            self.mixed: MIXED_PARTITIONS,
        }


class ChaosLoad:
    """`with ChaosLoad(...) as load:` runs the load. After the block, `load.history` is complete. During the
    block, `directory` has a status file and gets a line of samples each quarter of a second.
    """

    def __init__(self, bootstrap: str, plan: ChaosPlan, directory: Path) -> None:
        self.bootstrap, self.plan, self.directory = bootstrap, plan, directory
        self.history = History()
        self.unread: list[str] = []
        """The groups that did not receive everything in time."""
        for topic, partitions in plan.topics().items():
            configs = {"min.insync.replicas": str(plan.min_insync_replicas)}
            create_topic(bootstrap, topic, partitions, configs, plan.replicas)
        self._load = Load(
            bootstrap, LoadPlan(plan.log, plan.partitions, records_per_s=plan.records_per_s, value_bytes=120)
        )
        self._chance = random.Random(plan.seed)
        self._groups: list[GroupReaders] = []
        self._sharers: list[ShareMembers] = []
        self._mixers: list[Mixer] = []
        self._stack = contextlib.ExitStack()
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self._addresses = bootstrap.split(",")

    def __enter__(self) -> ChaosLoad:
        plan = self.plan
        self._stack.enter_context(self._load)
        self._writer = TransactionalWriter(
            self.bootstrap,
            plan.transactional,
            plan.transactional_partitions,
            f"{plan.prefix}-writer",
            plan.transaction_pause_s,
            self._chance,
        )
        self._copier = CopyingThread(self.bootstrap, plan.log, plan.copy, f"{plan.prefix}-copier")
        self._mixers = [
            Mixer(
                self.bootstrap,
                plan.mixed,
                MIXED_PARTITIONS,
                f"{plan.prefix}-mixer-{number}",
                plan.transaction_pause_s,
                random.Random(f"{plan.seed} {number}"),
            )
            for number in range(MIXERS)
        ]
        self._groups = [
            GroupReaders(self.bootstrap, f"{plan.prefix}-classic", [plan.log], CLASSIC),
            GroupReaders(self.bootstrap, f"{plan.prefix}-848", [plan.log, plan.transactional], CONSUMER),
        ]
        self._sharers = [ShareMembers(self.bootstrap, f"{plan.prefix}-share", [plan.log])]
        for writer in (self._writer, *self._mixers):
            writer.start()
        self._copier.start()
        self._sampler.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        for writer in (self._writer, *self._mixers):
            writer.is_over.set()
        self._stack.__exit__(*failure)
        for writer in (self._writer, *self._mixers):
            writer.join(STOP_S)
        if failure[0] is None:
            self._await_readers()
        self._is_over.set()
        self._copier.stop()
        for group in (*self._groups, *self._sharers):
            group.stop(STOP_S)
        self._copier.join(STOP_S)
        self._sampler.join(STOP_S)
        if failure[0] is None:
            self._collect()

    def _await_readers(self) -> None:
        """Waits until every group has received, and the copier has copied, all acknowledged records."""
        deadline_s = time.monotonic() + CATCH_UP_S
        while (lags := {name: lag for name, lag in self.lags().items() if lag > 0}) and (
            time.monotonic() < deadline_s
        ):
            time.sleep(0.1)
        self.unread = sorted(lags)
        time.sleep(1.0)  # readers also receive records that were stored without an acknowledgement

    def _collect(self) -> None:
        plan, sources = self.plan, self._load.history
        history = self.history
        history.sends = [send_of(plan.log, sent) for sent in sources.sent]
        history.sends += [*self._writer.sends, *self._copier.sends]
        history.transactions = [*self._writer.transactions, *self._copier.transactions]
        history.reads = list(self._copier.reads)
        for mixer in self._mixers:
            history.sends += mixer.sends
            history.transactions += mixer.transactions
            history.reads += mixer.reads
        history.polls = [poll_of(read, "tail", plan.log) for read in sources.tailed]
        for group in self._groups:
            history.polls += group.polls()
            history.commits += group.commits()
            history.positions += group.positions()
        history.deliveries = [found for group in self._sharers for found in group.deliveries()]
        history.shared = {group.name: list(group.topics) for group in self._sharers}
        history.audience = {group.name: list(group.topics) for group in self._groups}
        history.copies = {plan.log: plan.copy}
        for topic, partitions in plan.topics().items():
            history.final += read_committed(self.bootstrap, topic, partitions)

    # -- during the run

    @property
    def complaints(self) -> list[str]:
        """Returns the errors that no client may get."""
        found = [*self._load.complaints, *self._writer.complaints]
        found += [text for mixer in self._mixers for text in mixer.complaints]
        return found + [text for group in (*self._groups, *self._sharers) for text in group.complaints]

    def lags(self) -> dict[str, int]:
        """Returns the number of acknowledged records that each group has not received."""
        plan = self.plan
        ends = {(plan.log, partition): end for partition, end in self._load.ends().items()}
        ends |= {(plan.transactional, partition): end for partition, end in dict(self._writer.ends).items()}
        seen = {group.name: (group.ends(), group.topics) for group in self._groups}
        # The log has records at all offsets below its end, so their number is as good as an end.
        seen |= {group.name: (group.finished(), group.topics) for group in self._sharers}
        copied = {(plan.log, partition): end for partition, end in dict(self._copier.ends).items()}
        seen[self._copier.name] = (copied, (plan.log,))
        return {
            name: sum(max(0, end - shown.get(log, 0)) for log, end in ends.items() if log[0] in topics)
            for name, (shown, topics) in seen.items()
        }

    def await_acknowledged(self, timeout_s: float) -> None:
        self._load.await_acknowledged(range(self.plan.partitions), timeout_s)

    def _sample(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        churned_s = time.monotonic()
        with (self.directory / SAMPLES_FILE).open("w") as file:
            while not self._is_over.wait(SAMPLE_S):
                sample = self._one_sample()
                file.write(json.dumps(sample) + "\n")
                file.flush()
                self._write_status(sample)
                if self._groups and time.monotonic() - churned_s > self.plan.churn_s:
                    self._chance.choice([*self._groups, *self._sharers]).replace_one()
                    churned_s = time.monotonic()

    def _one_sample(self) -> dict[str, Any]:
        view = self._view()
        return {
            "at_s": time.monotonic(),
            "acknowledged": self._load.acknowledged,
            "transactions": len(self._writer.transactions),
            "copied": self._copier.copied,
            "under_replicated": sum(1 for state in view.values() if set(state.isr) != set(state.replicas)),
            "leaderless": sum(1 for state in view.values() if state.leader < 0),
            "is_view_known": bool(view),
            "lags": self.lags(),
        }

    def _view(self) -> TopicView:
        """Returns {} if no broker answers. The next call asks the broker that answered first."""
        for _ in self._addresses:
            try:
                return view_of_any(self._addresses[:1], self.plan.log)
            except ConnectionError:
                self._addresses.append(self._addresses.pop(0))
        return {}

    def _write_status(self, sample: Mapping[str, Any]) -> None:
        now_s = time.monotonic()
        silence_s = {
            str(partition): round(now_s - last_s, 3) if last_s else None
            for partition, last_s in self._load.last_acknowledged_s().items()
        }
        status = {
            **sample,
            "wall_offset_s": time.time() - now_s,
            "silence_s": silence_s,
            "complaints": self.complaints,
        }
        beside = self.directory / (STATUS_FILE + ".new")
        beside.write_text(json.dumps(status))
        beside.replace(self.directory / STATUS_FILE)


def read_committed(bootstrap: str, topic: str, partitions: int, timeout_s: float = READ_S) -> list[Poll]:
    """Reads each partition from its start to its last stable offset, with a separate client."""
    reader = Consumer(
        {
            **connection(bootstrap),
            "group.id": f"final-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        return _read_to_ends(reader, topic, partitions, timeout_s)
    finally:
        reader.close()


def _read_to_ends(reader: Consumer, topic: str, partitions: int, timeout_s: float) -> list[Poll]:
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    polls: list[Poll] = []
    left = set(range(partitions))
    deadline_s = time.monotonic() + timeout_s
    while left:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{topic}: partitions {sorted(left)} are not at their end, {len(polls)} read")
        for message in reader.consume(2_000, 0.5):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                continue
            assert partition is not None and offset is not None
            read = read_of(partition, offset, message.key(), message.value())  # type: ignore[arg-type]
            polls.append(poll_of(read, "final", topic))
    return polls
