"""Random logs of a compacted topic, each generated from a seed.

They have plain, idempotent and transactional producers, all codecs, tombstones, late records and rolls.
"""

from __future__ import annotations

from random import Random

from brokerlab.log_batches import append, make_marker
from brokerlab.logs import OwnedLog
from tidelog.records.builder import build_batch
from tidelog.records.record import Record


class RandomWriter:
    """Writes to a log that is sometimes closed and opened. The producers continue after that."""

    def __init__(self, seed: int, start_ms: int, *, keys: int = 20) -> None:
        self._random = Random(seed)
        self._keys = keys
        self.now_ms = start_ms
        self.leader_epoch = 0
        self._sequences = dict.fromkeys(range(100, 104), 0)
        self._epochs = dict.fromkeys(range(100, 108), 0)
        self._open: set[int] = set()

    def write(self, log: OwnedLog, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self._random.randrange(1, 50)
            choice = self._random.random()
            if choice < 0.5:
                self._batch(log, -1)
            elif choice < 0.65:
                self._batch(log, self._random.randrange(100, 104))
            elif choice < 0.85:
                producer_id = self._random.randrange(104, 108)
                self._batch(log, producer_id, is_transactional=True)
                self._open.add(producer_id)
            elif choice < 0.95:
                if self._open:
                    self._end(log, self._random.choice(sorted(self._open)))
            else:
                log.roll(self.now_ms)

    def end_all(self, log: OwnedLog) -> None:
        for producer_id in sorted(self._open):
            self._end(log, producer_id)

    def _end(self, log: OwnedLog, producer_id: int) -> None:
        self._open.discard(producer_id)
        append(
            log,
            make_marker(
                log.log_end_offset,
                is_commit=self._random.random() < 0.5,
                producer_id=producer_id,
                producer_epoch=self._epochs[producer_id],
                timestamp=self.now_ms,
                leader_epoch=self.leader_epoch,
            ),
            self.now_ms,
        )

    def _batch(self, log: OwnedLog, producer_id: int, *, is_transactional: bool = False) -> None:
        random, base = self._random, log.log_end_offset
        count = random.choice([1, 1, 1, 2, 5, 80])
        records = [
            Record(
                base + number,
                self.now_ms + random.randrange(-30, 30),
                None if random.random() < 0.02 else self._key(),
                None if random.random() < 0.2 else random.randbytes(random.choice([0, 3, 40, 200])),
                ((("h", b"x"),) if random.random() < 0.1 else ()),
            )
            for number in range(count)
        ]
        sequence = -1
        if producer_id >= 0:
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + count
        batch = build_batch(
            records,
            base_offset=base,
            leader_epoch=self.leader_epoch,
            compression=random.choice([0, 0, 0, 1, 2, 3, 4]),
            log_append_time_ms=self.now_ms if random.random() < 0.1 else None,
            producer_id=producer_id,
            producer_epoch=self._epochs.get(producer_id, -1),
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        append(log, bytes(batch), self.now_ms)

    def _key(self) -> bytes:
        number = self._random.randrange(self._keys)
        return b"key-%d" % number + b"-" * (number * 7)  # short keys, and some whose length needs two bytes
