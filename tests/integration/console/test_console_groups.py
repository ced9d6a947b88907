"""The pages of the console that show groups and open transactions."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from grouplab.mixed_groups import SHARE, STREAMS, StreamsThread, create_groups, share_member
from tidelog.model.topics import TopicPartition as Place
from tidelog.observe.number_texts import UNKNOWN
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
Serve = Callable[..., Any]
TOPIC = "flights"
TIMEOUT_S = 60


def words(text: str) -> str:
    """Returns the text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def commit(cluster: Cluster, group: str, **offsets: int) -> None:
    """Commits offsets of partitions that are named as in `p0`, as a group without members."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    places = [TopicPartition(TOPIC, int(name[1:]), offset) for name, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@pytest.fixture
def member(tidelog: Cluster) -> Iterator[Consumer]:
    """Returns a member of the group `pilots` that has partitions."""
    tidelog.create_topic(TOPIC, 2, configs={"retention.ms": "7200000"})
    settings = {"bootstrap.servers": tidelog.bootstrap, "group.id": "pilots", "client.id": "cockpit"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    deadline_s = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline_s, "the consumer got no partitions"
        consumer.poll(0.1)
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_group_shows_members_lag_and_forecast(
    tidelog: Cluster, member: Consumer, serve_console: Serve
) -> None:
    tidelog.produce(TOPIC, *(b"%d" % number for number in range(10)), partition=1)
    commit(tidelog, "spotters", p1=3)
    console = serve_console(tidelog.bootstrap)
    page = words(console.get("/group?id=spotters").text)
    assert "Empty" in page
    assert "7 records of lag" in page
    row = re.search(r"flights 1 3 10 7 7 ([\d.]+ m?s) in (1 h 59 min) at the earliest, by retention.ms", page)
    assert row is not None
    page = words(console.get("/group?id=pilots").text)
    assert "Stable" in page
    assert re.search(r"cockpit-\S+ cockpit \S+ 2 flights-0, flights-1", page)


def test_both_lags_are_shown_where_they_differ(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic(TOPIC)
    tidelog.produce(TOPIC, b"1", b"2")
    commit(tidelog, "spotters", p0=1)
    console = serve_console(tidelog.bootstrap)
    assert "for read_committed" not in console.get("/group?id=spotters").text
    producer = Producer({"bootstrap.servers": tidelog.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for _ in range(4):
        producer.produce(TOPIC, b"open")
    producer.flush(TIMEOUT_S)
    for _, data in console.events("/events/group?id=spotters"):
        page = words(data)
        if "5 records of lag 1 of lag for read_committed" in page:
            break
    assert "flights 0 1 6 5 1 " in page
    assert "spotters consumer Empty 5 1" in words(console.get("/groups").text).replace("classic", "consumer")
    page = words(console.get("/transactions").text)
    assert re.search(r"1 open transaction .* writer Ongoing [\d.]+ m?s 1 min 0 s \d+ \d+ flights-0", page)
    producer.commit_transaction(TIMEOUT_S)


def test_lost_records_are_shown(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic(TOPIC)
    tidelog.produce(TOPIC, b"1", b"2", b"3")
    commit(tidelog, "spotters", p0=1)
    tidelog.expire(TOPIC)
    page = words(serve_console(tidelog.bootstrap).get("/group?id=spotters").text)
    assert "Lost: retention deleted 2 offsets that the group had not read" in page


def test_without_groups_and_transactions_the_pages_say_so(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    assert "There are no groups." in console.get("/groups").text
    assert "No transaction is open." in console.get("/transactions").text
    answer = console.get("/group?id=%3Cb%3E")
    assert answer.status == 404
    assert "group &#39;&lt;b&gt;&#39; does not exist" in answer.text


def test_share_groups_and_streams_groups_have_pages(tidelog: Cluster, serve_console: Serve) -> None:
    create_groups(tidelog)
    console = serve_console(tidelog.bootstrap)
    page = words(console.get(f"/group?id={SHARE}").text)
    assert "Empty share, epoch" in page
    assert "2 records of lag" in page
    assert re.search(r"flights 0 3 5 2 [\d.]+ m?s", page)
    with share_member(tidelog.bootstrap), StreamsThread(tidelog.bootstrap) as thread:
        thread.commit({Place(TOPIC, 0): 1})
        page = words(console.get(f"/group?id={SHARE}").text)
        assert "Stable share" in page
        member_id = re.search(r"simple .* (\S+) worker \S+ 2 flights-0, flights-1", page)
        assert member_id is not None
        assert re.search(rf"flights 1 0 0 0 0 ms .* {member_id[1]}", page)
        page = words(console.get(f"/group?id={STREAMS}").text)
        assert "streams, epoch" in page
        assert re.search(r"flights 0 1 5 4 4 .* thread-1", page)
        listed = console.get("/groups").text
        assert f'<a href="/group?id={SHARE}">' in listed
        assert f"{SHARE} share Stable 2 {UNKNOWN}" in words(listed)
        assert f"{STREAMS} streams Stable 4 4" in words(listed)


def test_lost_records_of_a_share_group_are_shown(tidelog: Cluster, serve_console: Serve) -> None:
    create_groups(tidelog)
    tidelog.expire(TOPIC)
    page = words(serve_console(tidelog.bootstrap).get(f"/group?id={SHARE}").text)
    assert "Lost: retention deleted 2 offsets that the group had not read" in page


def test_names_of_groups_that_would_mislead_their_reader(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic(TOPIC)
    group_id = "<b>\u202egnp\x07\u2028&"
    commit(tidelog, group_id, p0=0)
    console = serve_console(tidelog.bootstrap)
    shown = "&lt;b&gt;\\u202egnp\\u0007\\u2028&amp;"
    page = console.get("/groups").text
    found = re.search(r'<a href="(/group\?id=[^"]+)">([^<]+)</a>', page)
    assert found is not None
    assert found[2] == shown
    page = console.get(html.unescape(found[1]))
    assert page.status == 200
    assert f"<h1>Group {shown}</h1>" in page.text
    assert "\u202e" not in page.text
    events = console.events(f"/events{html.unescape(found[1])}")
    assert next(events)[0] == "fragment"
