"""Brokers and their segment files give a verification the same view of the same log."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import end_offset, new_producer
from tidelog.client.admin.logs import fetch_batches
from tidelog.client.cluster import Cluster
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.pipeline.segments.storage import Storage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.pipeline.verify.judge import topic_uuid
from tidelog.pipeline.verify.log_reader import Hole, LogReader, holes_of
from tidelog.pipeline.verify.logs import BrokerLog, SegmentLog
from tidelog.records.batch import iterate_headers

TIMEOUT_S: Final = 60.0
MARKERS: Final = [Hole(25, 26, "marker"), Hole(31, 32, "marker")]
HOLES: Final = [MARKERS[0], Hole(26, 31, "abort"), MARKERS[1]]
END: Final = 42


@pytest.fixture
def topic(broker: BrokerProcess, new_topic: Callable[..., str]) -> str:
    """A topic with 20 plain, 5 committed, 5 aborted and 10 plain records, all of them in segment files up to
    a checkpoint.
    """
    name = new_topic()
    plain = new_producer(broker.bootstrap)
    transactional = new_producer(broker.bootstrap, transactional_id=name)
    transactional.init_transactions(30)

    def send(producer: Any, count: int) -> None:
        for number in range(count):
            producer.produce(name, b"v%d" % number, partition=0)
        producer.flush(30)

    send(plain, 20)
    for commits in (True, False):
        transactional.begin_transaction()
        send(transactional, 5)
        (transactional.commit_transaction if commits else transactional.abort_transaction)(30)
    # The coordinator answers before the marker is in the log, so a record sent now could overtake the marker.
    until(lambda: end_offset(broker.bootstrap, name) == 32, "no marker of the aborted transaction")
    send(plain, 10)
    until(
        lambda: (
            visible_logs(Storage(), [str(broker.data_dir)], [name], unknown_is_empty=True)[0].end_offset
            == END
        ),
        f"no checkpoint tells of {END} offsets",
    )
    return name


def until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def holes(log: LogReader, topic: str, start: int, end: int) -> list[Hole]:
    """Returns the holes as a task finds them."""
    opener = pickle.loads(pickle.dumps(log.opener()))
    return list(holes_of(opener.batches(topic, 0, start, end), start, end))


@pytest.mark.integration
def test_both_readers_return_the_same(broker: BrokerProcess, topic: str) -> None:
    for is_committed, found in ((True, HOLES), (False, MARKERS)):
        brokers = BrokerLog(broker.bootstrap, is_committed=is_committed)
        segments = SegmentLog((str(broker.data_dir),), is_committed=is_committed)
        ids = set()
        for log in (brokers, segments):
            extent = log.extents([topic])[topic, 0]
            assert (extent.start, extent.end, extent.is_compacted) == (0, END, False), log.place
            assert extent.topic_id is not None
            ids.add(topic_uuid(extent.topic_id))
            assert [tuple(each) for each in log.epochs({(topic, 0): (3, END)})[topic, 0]] == [(0, 3)]
            assert holes(log, topic, 0, END) == found, log.place
            assert holes(log, topic, 30, 32) == [
                hole._replace(start=max(30, hole.start)) for hole in found if hole.end > 30
            ]
            assert holes(log, topic, 33, END) == []
        assert len(ids) == 1


@pytest.mark.integration
def test_batches_come_in_pages(broker: BrokerProcess, topic: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        described = cluster.topic(topic)
        offset, pages = 0, 0
        while offset < END:
            page = fetch_batches(cluster, described, 0, offset, max_bytes=1)  # at least one batch
            headers = [header for _, header in iterate_headers(page.data)]
            assert headers[0].base_offset <= offset
            offset, pages = headers[-1].last_offset + 1, pages + 1
        assert pages >= 6
        assert fetch_batches(cluster, described, 0, 20).aborted == ((26, headers_producer(cluster, topic)),)
        with pytest.raises(KafkaError) as refused:
            fetch_batches(cluster, described, 0, END + 1)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def headers_producer(cluster: Cluster, topic: str) -> int:
    """Returns the id of the transactional producer."""
    page = fetch_batches(cluster, cluster.topic(topic), 0, 26)
    return next(header.producer_id for _, header in iterate_headers(page.data))


@pytest.mark.integration
def test_a_missing_topic_has_no_extent(broker: BrokerProcess) -> None:
    assert BrokerLog(broker.bootstrap).extents(["no-such-topic"]) == {}
