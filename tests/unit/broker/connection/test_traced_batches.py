"""A traced Produce request reads only the traceparent of the first record of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.broker.requests.tracing import MAX_SEARCHED_HEADERS, error_codes, first_traceparent
from tidelog.records.batch import BATCH_HEADER_BYTES, parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

TEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = (("other", b"x"), ("traceparent", TEXT.encode()))


def batch(*headers: Iterable[tuple[str, bytes | None]], **options: int) -> memoryview:
    records = [Record(n, 1_000, None, b"value", tuple(of_one)) for n, of_one in enumerate(headers)]
    return memoryview(bytearray(build_batch(records, **options)))


def found(records: memoryview) -> str | None:
    return first_traceparent(records, parse_header(records))


def test_the_traceparent_of_the_first_record() -> None:
    assert found(batch(HEADERS, ())) == TEXT


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(batch(()), id="no headers"),
        pytest.param(batch((("other", b"x"),)), id="another header"),
        pytest.param(batch((("traceparent", None),)), id="null"),
        pytest.param(batch((), HEADERS), id="of the second"),
        pytest.param(batch(HEADERS, compression=1), id="compressed"),
    ],
)
def test_a_batch_without_a_traceparent(records: memoryview) -> None:
    assert found(records) is None


def test_few_of_many_headers_are_searched() -> None:
    """A client must not hold the event loop with a batch of half a million headers."""
    many = (("", None),) * 500_000
    last = (*many, ("traceparent", TEXT.encode()))
    records = batch(last)
    begun = time.process_time()
    assert found(records) is None
    assert time.process_time() - begun < 0.05
    searched = (*many[: MAX_SEARCHED_HEADERS - 1], ("traceparent", TEXT.encode()))
    assert found(batch(searched)) == TEXT


@given(st.data())
def test_damaged_records_have_no_traceparent(data: st.DataObject) -> None:
    """The CRC of these batches has not been checked yet."""
    records = batch(HEADERS)
    header = parse_header(records)
    place = data.draw(st.integers(BATCH_HEADER_BYTES, len(records) - 1))
    records[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(BATCH_HEADER_BYTES, len(records)))
    text = first_traceparent(records[:cut], header)
    assert text is None or isinstance(text, str)


def test_errors_of_answers() -> None:
    produced = ProduceResponse(
        [TopicProduceResponse("t", partition_responses=[PartitionProduceResponse(0, 6)])]
    )
    assert 6 in list(error_codes(produced))
    fetched = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[PartitionData(0, 1)])])
    assert list(error_codes(fetched)) == [0, 1]
    assert not any(error_codes(object()))
