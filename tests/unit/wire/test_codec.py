"""Properties of the codec that handlers rely on: records without copies in both directions, defaults, the
table of APIs, and lazy imports.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from uuid import UUID, uuid4

import pytest

from tidelog.wire import codec, headers
from tidelog.wire.api_keys import ApiKey, api_spec, find_api_spec
from tidelog.wire.messages.describe_quorum import RequestTopicData, ResponseTopicData
from tidelog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData
from tidelog.wire.messages.metadata import MetadataRequest
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC_ID = uuid4()


class FileRangeLike:
    """An object that has only a length, like a range of a file."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


@pytest.mark.parametrize("version", range(3, 14))
def test_produced_records_are_views_into_the_frame(version: int) -> None:
    records = b"records of a batch"
    request = ProduceRequest(topic_data=[TopicProduceData("t", TOPIC_ID, [PartitionProduceData(0, records)])])
    frame = bytearray(b"".join(codec.request_encoder(ApiKey.PRODUCE, version)(request)))
    decoded, _ = codec.request_decoder(ApiKey.PRODUCE, version)(memoryview(frame), 0)
    view = decoded.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view == records
    frame[frame.find(b"records")] = ord("R")
    assert view == b"Records of a batch"


@pytest.mark.parametrize("version", range(4, 19))
def test_fetched_records_are_chunks_without_a_copy(version: int) -> None:
    view, file_range = memoryview(b"abc"), FileRangeLike(300)
    partitions = [PartitionData(i, records=r) for i, r in enumerate([view, None, b"", file_range])]
    response = FetchResponse(responses=[FetchableTopicResponse("t", TOPIC_ID, partitions)])
    chunks = codec.response_encoder(ApiKey.FETCH, version)(response)
    assert [type(chunk) for chunk in chunks] == [
        bytes,
        memoryview,
        bytes,
        FileRangeLike,
        *([bytes] * (version >= 12)),
    ]
    assert chunks[1] is view
    assert chunks[3] is file_range
    body = b"".join(chunk if isinstance(chunk, bytes | memoryview) else bytes(len(chunk)) for chunk in chunks)
    decoded, end = codec.response_decoder(ApiKey.FETCH, version)(body, 0)
    assert end == len(body)
    assert [p.records for p in decoded.responses[0].partitions] == [b"abc", None, b"", bytes(300)]


def test_a_tagged_struct_of_defaults_is_not_sent() -> None:
    encode = codec.response_encoder(ApiKey.FETCH, 17)
    plain = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData()])])
    defaults = FetchResponse(
        responses=[FetchableTopicResponse(partitions=[PartitionData(current_leader=LeaderIdAndEpoch())])]
    )
    assert encode(plain) == encode(defaults)


def test_every_uuid_is_the_right_one_beyond_the_bound_of_the_cache() -> None:
    encode, decode = codec.request_encoder(ApiKey.PRODUCE, 13), codec.decoder(ProduceRequest, 13)
    ids = [UUID(int=n) for n in range(20_000)]
    body = b"".join(
        encode(ProduceRequest(topic_data=[TopicProduceData(topic_id=topic_id) for topic_id in ids]))
    )
    for _ in range(2):
        assert [topic.topic_id for topic in decode(body, 0)[0].topic_data] == ids


def test_null_in_a_field_that_is_not_nullable_is_refused() -> None:
    encode = codec.request_encoder(ApiKey.OFFSET_FETCH, 5)
    with pytest.raises((TypeError, AttributeError)):
        encode(codec.request_class(ApiKey.OFFSET_FETCH)(group_id=None))


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(struct.error):
        codec.response_encoder(ApiKey.FETCH, 12)(FetchResponse(session_id=1 << 31))


def test_strings_longer_than_kafkas_are_refused() -> None:
    long = "x" * 32_768
    with pytest.raises(struct.error):
        codec.request_encoder(ApiKey.SASL_HANDSHAKE, 0)(
            codec.request_class(ApiKey.SASL_HANDSHAKE)(mechanism=long)
        )
    api_versions = codec.request_class(ApiKey.API_VERSIONS)
    encode = codec.request_encoder(ApiKey.API_VERSIONS, 3)
    with pytest.raises(ValueError, match="longer than 32767"):
        encode(api_versions(client_software_name=long))
    body = b"".join(encode(api_versions(client_software_name=long[1:])))
    assert codec.request_decoder(ApiKey.API_VERSIONS, 3)(body, 0)[0].client_software_name == long[1:]


def test_defaults_are_kafkas() -> None:
    assert MetadataRequest() == MetadataRequest(topics=[], allow_auto_topic_creation=True)
    assert FetchResponse().responses is not FetchResponse().responses


def test_structs_of_one_name_in_one_api() -> None:
    assert RequestTopicData is not ResponseTopicData


def test_table_of_apis() -> None:
    produce = api_spec(ApiKey.PRODUCE)
    assert (produce.min_version, produce.max_version) == (3, 13)
    assert api_spec(ApiKey.INIT_PRODUCER_ID).max_version == 5, "version 6 is unstable in Kafka 4.3"
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.name_in_kafka == "OffsetForLeaderEpoch"
    assert find_api_spec(7) is None


def test_headers_of_unknown_versions_and_apis() -> None:
    newer = headers.encode_request_header(ApiKey.API_VERSIONS, 99, 7, "c") + b"body"
    assert headers.decode_request_header(newer, 0) == (18, 99, 7, "c", len(newer) - 4)
    unknown = b"\x03\xe7\0\0\0\0\0\x07\xff\xff"
    assert headers.decode_request_header(memoryview(unknown), 0) == (999, 0, 7, None, 10)
    assert headers.response_begin(ApiKey.API_VERSIONS, 99).pack(5, 7) == b"\0\0\0\x05\0\0\0\x07"
    assert headers.response_begin(ApiKey.API_VERSIONS, 4).pack(5, 7) == b"\0\0\0\x05\0\0\0\x07"


def test_tagged_fields_in_headers_are_skipped() -> None:
    request = b"\0\x12\0\x03\0\0\0\x09\0\x01c\x01\x05\x02ab"
    assert headers.decode_request_header(request, 0) == (18, 3, 9, "c", len(request))
    assert headers.decode_response_header(b"\0\0\0\x09\x01\x05\x02ab", 0, ApiKey.PRODUCE, 9) == (9, 9)


def test_modules_of_apis_are_imported_at_first_use() -> None:
    code = (
        "import sys\nfrom tidelog.wire import codec\n"
        "def loaded(): return sorted(m for m in sys.modules if m.startswith('tidelog.wire.messages.'))\n"
        "assert loaded() == ['tidelog.wire.messages.apis'], loaded()\n"
        "codec.request_decoder(0, 13)\n"
        "assert loaded() == ['tidelog.wire.messages.apis', 'tidelog.wire.messages.produce'], loaded()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
