"""A Produce request that is traced: its appends, and the traces that its messages were made in."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.handlers import transactional_produce
from tidelog.broker.handlers.one_batch import OneBatch
from tidelog.broker.handlers.produce import DelayedProduce, Produce
from tidelog.broker.tracing.traced_request import TracedRequest
from tidelog.model.trace_context import TRACEPARENT, Attributes
from tidelog.records.batch import CURRENT_MAGIC, BatchHeader, parse_header
from tidelog.records.record import read_headers, records_of, scan_records
from tidelog.wire.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.request import RequestContext


def handle(broker: Broker, request: ProduceRequest | OneBatch, context: RequestContext) -> object:
    produce = TracedProduce(broker, request, context)
    produce.describe()
    if request.transactional_id is not None:
        return transactional_produce.answer(produce)
    return produce.answer()


class TracedProduce(Produce):
    __slots__ = ()

    @property
    def traced(self) -> TracedRequest:
        assert isinstance(self.context, TracedRequest)
        return self.context

    def describe(self) -> None:
        request = self.request
        found: dict[str, str | int | float | bool] = {"tidelog.acks": request.acks}
        if request.transactional_id is not None:
            found["tidelog.transactional_id"] = request.transactional_id
        names = [self.topic_name(topic) for topic in request.topic_data]
        if len(names) == 1 and names[0] is not None:
            found["messaging.destination.name"] = names[0]
        self.traced.trace.note(found)

    def _append(self, topic: str | None, data: PartitionProduceData | OneBatch) -> PartitionProduceResponse:
        trace, records = self.traced.trace, data.records
        header = None if records is None else _header_of(memoryview(records))
        if header is not None and records is not None:
            traceparent = first_traceparent(memoryview(records), header)
            if traceparent is not None:
                trace.link(traceparent)
        with trace.step("append", _describe(topic, data, header)) as span:
            answer = super()._append(topic, data)
            if answer.error_code:
                span.set_attribute("error.type", str(answer.error_code))
            else:
                span.set_attribute("messaging.kafka.offset", answer.base_offset)
            return answer

    def _watch(self, operation: DelayedProduce) -> None:
        self.traced.trace.begin_wait("replication wait")
        super()._watch(operation)


def _describe(
    topic: str | None, data: PartitionProduceData | OneBatch, header: BatchHeader | None
) -> Attributes:
    found: dict[str, str | int | float | bool] = {"messaging.destination.partition.id": str(data.index)}
    if topic is not None:
        found["messaging.destination.name"] = topic
    if header is not None:
        found["messaging.batch.message_count"] = header.record_count
        found["messaging.message.body.size"] = header.size_bytes
    return found


def _header_of(records: memoryview) -> BatchHeader | None:
    try:
        header = parse_header(records)
    except ValueError:  # refused in a moment, in Kafka's words
        return None
    return header if header.magic == CURRENT_MAGIC else None


def first_traceparent(records: memoryview, header: BatchHeader) -> str | None:
    """Of the first record of an uncompressed batch: where it was made. None if it doesn't say."""
    if header.compression or header.record_count < 1:
        return None
    try:
        body = records_of(records, header)
        for span in islice(scan_records(body, header.record_count), 1):
            for name, value in read_headers(body, span.headers_start, span.end):
                if name == TRACEPARENT and value is not None:
                    return value.decode("ascii", errors="replace")
    except ValueError:  # records that are not sound; nobody has looked at them yet
        return None
    return None
