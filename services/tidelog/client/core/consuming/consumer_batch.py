"""The records of one fetch of a partition, handed over in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tidelog.client.core.consuming.records import RECORDS_A_CHUNK, BatchReader, ConsumerRecord, deserialize
from tidelog.client.serializers import Deserializer
from tidelog.model.topics import TopicPartition
from tidelog.records.batch import BatchHeader

if TYPE_CHECKING:
    import pyarrow as pa

K = TypeVar("K")
V = TypeVar("V")


class NumpyColumns(NamedTuple):
    """Arrays with one element for each record, in the order of the offsets.

    The bytes of a value are `data[start : start + length]`. A length of -1 is null. `timestamps` are in
    milliseconds since 1970.
    """

    offsets: Any
    timestamps: Any
    data: Any
    key_starts: Any
    key_lengths: Any
    value_starts: Any
    value_lengths: Any


class ConsumerBatch(Generic[K, V]):
    """The records of a partition that one fetch returned, without those that the application has already.

    Iterate over it, or take its columns, which need no Python object for each record. The records are decoded
    each time, so damaged ones raise ValueError here. Such a batch had a right CRC: its producer damaged it.
    """

    __slots__ = (
        "_batches",
        "_count",
        "_raw",
        "_read_key",
        "_read_value",
        "next_offset",
        "place",
        "start_offset",
    )

    def __init__(
        self,
        place: TopicPartition,
        raw: memoryview,
        batches: Sequence[tuple[int, BatchHeader]],
        start_offset: int,
        next_offset: int,
        count: int,
    ) -> None:
        self.place: TopicPartition = place
        self.start_offset: int = start_offset
        """No record has a lower offset."""
        self.next_offset: int = next_offset
        """The offset to commit when all records are dealt with."""
        self._raw = raw
        self._batches = batches
        self._count = count
        self._read_key: Deserializer[K] | None = None
        self._read_value: Deserializer[V] | None = None

    def __repr__(self) -> str:
        return f"<batch of {self.place} offsets {self.start_offset} to {self.next_offset - 1}>"

    @property
    def topic(self) -> str:
        return self.place.topic

    @property
    def partition(self) -> int:
        return self.place.partition

    def set_deserializers(
        self, read_key: Deserializer[K] | None, read_value: Deserializer[V] | None
    ) -> ConsumerBatch[K, V]:
        """Sets the functions that `__iter__` and `records` use, and returns the batch."""
        self._read_key, self._read_value = read_key, read_value
        return self

    def __len__(self) -> int:
        """Returns the number of records."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """The size of the batches in the log, which may be compressed."""
        return sum(header.size_bytes for _, header in self._batches)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """Yields the records. It decodes one batch of the log after another."""
        return self.iterate()

    def iterate(self, *, max_headers: int | None = None) -> Iterator[ConsumerRecord[K, V]]:
        """Yields the records with at most `max_headers` headers each, None for all.

        A compressed batch of two kilobytes can have ten million headers.
        """
        for position, header in self._batches:
            reader = BatchReader(self.place, self._raw, position, header, max_headers)
            while chunk := reader.read(RECORDS_A_CHUNK):
                if chunk[0].offset < self.start_offset:
                    chunk = [record for record in chunk if record.offset >= self.start_offset]
                if self._read_key is not None or self._read_value is not None:
                    deserialize(chunk, self._read_key, self._read_value)
                yield from chunk

    def records(self) -> list[ConsumerRecord[K, V]]:
        """Returns all records."""
        return list(self)

    def to_numpy(self) -> NumpyColumns:
        """Returns the columns as arrays. Raises ImportError without NumPy."""
        import numpy as np

        from tidelog.records.columns.rows import RowBounds, decode_rows, grouped

        columns: list[list[Any]] = [[] for _ in NumpyColumns._fields]
        size_bytes = 0
        bounds = RowBounds(start_offset=self.start_offset)
        for group in grouped(self._raw, self._batches):
            data = np.frombuffer(group.data, np.uint8)
            rows = decode_rows(data, group, bounds)
            places = rows.places
            found = (
                rows.offsets,
                rows.timestamps_us // 1_000,
                data,
                places.key_starts + size_bytes,
                places.key_lengths,
                places.value_starts + size_bytes,
                places.value_lengths,
            )
            for column, array in zip(columns, found, strict=True):
                column.append(array)
            size_bytes += len(data)
        return NumpyColumns._make(
            column[0] if len(column) == 1 else np.concatenate(column) for column in columns
        )

    def to_arrow(
        self, columns: Sequence[str] = ("offset", "timestamp", "key", "value", "headers")
    ) -> pa.Table:
        """Returns the columns as an Arrow table. `topic`, `partition` and `timestampType` are further ones.

        `timestamp` is in microseconds, UTC. A record without headers has null. Raises ImportError without
        PyArrow and NumPy.
        """
        import pyarrow as pa

        from tidelog.records.columns.arrow import ColumnarDecoder
        from tidelog.records.columns.rows import RowBounds

        decoder = ColumnarDecoder(self.place.topic, self.place.partition, tuple(columns))
        bounds = RowBounds(start_offset=self.start_offset)
        return pa.Table.from_batches(decoder.decode(self._raw, self._batches, bounds), schema=decoder.schema)
