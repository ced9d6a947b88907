"""The pages of the console in front of clusters inside the process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tidelog.client.cluster import Cluster as Client
from tidelog.kernel.instants import WallMs
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
FREEZE_TIMEOUT_S = 4
Serve = Callable[..., Any]
TIMEOUT_S = 60
READS_OF_A_SAMPLE = 3
"""The number of reads of the clock after which a sample is certainly in the history."""


def words(text: str) -> str:
    """Returns the text of a page without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_the_overview_shows_brokers_and_controller(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic("flights", 3)
    answer = serve_console(tidelog.bootstrap).get("/")
    assert answer.status == 200
    text = words(answer.text)
    # Other tests may have left internal topics.
    counts = (
        r"1 brokers \d+ active controller \d+ topics (\d+) partitions 0 under-replicated 0 without a leader"
    )
    found = re.search(counts, text)
    assert found is not None
    assert int(found[1]) >= 3
    assert f"1 {tidelog.bootstrap} up {found[1]} {found[1]}" in text


def test_every_answer_forbids_foreign_content(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    for path in ("/", "/topics", "/static/console.js", "/nothing"):
        policy = console.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
    page = console.get("/").text
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)
    assert not re.search(r"\son[a-z]+=|\sstyle=|<script>|<style", page)


def test_other_hosts_and_other_methods_are_refused(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    assert console.get("/", host="attacker.example").status == 400
    assert [console.get("/topics", method=each).status for each in ("POST", "PUT", "DELETE")] == [405] * 3


def test_topics_show_offsets_and_sizes(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic("flights", 2, configs={"retention.ms": "7200000"})
    tidelog.produce("flights", *(b"%04d" % number for number in range(10)))
    console = serve_console(tidelog.bootstrap)
    row = re.search(r"<tr><th[^>]*><a href=\"/topics/flights\">.*?</tr>", console.get("/topics").text)
    assert row is not None
    assert re.fullmatch(r"flights 2 1 0 0 10 – \d+ B", words(row[0]))  # noqa: RUF001 -- an en dash
    page = words(console.get("/topics/flights").text)
    assert "2 partitions 1 replicas of each 10 offsets" in page
    assert re.search(r" 0 1 0 1 1 0 5 5 \d+ B 1 1 0 1 1 0 5 5 \d+ B ", page)
    assert "retention.ms 7200000 DYNAMIC_TOPIC_CONFIG (changed)" in page


def test_the_list_of_topics_searches_names(tidelog: Cluster, serve_console: Serve) -> None:
    for name in ("flights", "crews", "crew-changes"):
        tidelog.create_topic(name)
    page = serve_console(tidelog.bootstrap).get("/topics?q=crew").text
    assert re.findall(r'href="/topics/([^"?]+)"', page) == ["crew-changes", "crews"]
    assert 'value="crew"' in page


def test_a_search_text_is_escaped(tidelog: Cluster, serve_console: Serve) -> None:
    page = serve_console(tidelog.bootstrap).get("/topics?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_settings_of_a_broker_name_their_source(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    assert "num.partitions 1 DEFAULT_CONFIG" in words(console.get("/settings?broker=1").text)
    assert console.get("/settings?broker=x").status == 200


def test_what_does_not_exist_is_not_found(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    answer = console.get("/topics/nothing")
    assert answer.status == 404
    assert "topic &#39;nothing&#39; does not exist." in answer.text
    assert console.get("/nothing").status == 404


def test_events_show_a_broker_that_dies(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    cluster = tidelog_cluster(3)
    cluster.create_topic("flights", 6)
    console = serve_console(cluster.bootstrap)
    is_killed = False
    for name, data in console.events("/events/"):
        text = words(data)
        if name == "read":
            assert data.endswith(" UTC")
        elif not is_killed:
            assert "3 brokers" in text
            cluster.kill_broker(2)
            is_killed = True
        elif "2 of 3 brokers up" in text and "6 under-replicated" in text:
            assert "Broker 2 stopped." in text
            assert "Partitions with missing replicas" in text
            break


def test_the_history_contains_what_happened_while_nobody_looked(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    cluster = tidelog_cluster(3)
    read = threading.Semaphore(0)

    def wall() -> WallMs:
        read.release()
        return WallMs(time.time_ns() // 1_000_000)

    console = serve_console(cluster.bootstrap, sample_interval_ms=50, wall=wall)
    for _ in range(READS_OF_A_SAMPLE):
        assert read.acquire(timeout=TIMEOUT_S)
    cluster.kill_broker(2)
    with Client(cluster.bootstrap) as client:
        while len(client.describe().brokers) == 3:
            time.sleep(0.01)
    page = words(console.get("/").text)
    assert "2 brokers" in page
    assert "Broker 2 stopped." in page


def test_a_cluster_that_is_down_is_an_error_with_the_last_reading(serve_console: Serve) -> None:
    with Cluster() as cluster:
        cluster.create_topic("flights")
        console = serve_console(cluster.bootstrap)
        assert console.get("/topics").status == 200
        unseen = console.get("/settings", host=None)
        assert unseen.status == 200
        events = console.events("/events/topics")
        assert next(events)[0] == "fragment"
        cluster.close()
        for name, data in events:
            if name == "fragment" and "The page shows what was read before." in data:
                assert "flights" in data
                break
        events.close()
    assert console.get("/topics/flights").status == 502


def test_a_frozen_broker_hides_only_its_own_partitions(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    cluster = tidelog_cluster(3)
    cluster.create_topic("flights", 3)
    cluster.produce("flights", *(b"%d" % number for number in range(9)))
    frozen = next(each for each in (3, 2) if cluster.leader("flights", 0) != each)
    cluster.pause(frozen)
    page = words(serve_console(cluster.bootstrap, timeout_s=1).get("/topics/flights").text)
    assert page.count(" 0 3 3 ") == 2  # start, last stable offset and high watermark
    assert " – – – " in page  # noqa: RUF001 -- en dashes
    cluster.resume(frozen)


def test_pages_name_the_brokers_that_do_not_answer(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    cluster = tidelog_cluster(3)
    cluster.create_topic("flights", 3)
    cluster.produce("flights", b"1", b"2", b"3")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "spotters"})
    consumer.commit(offsets=[TopicPartition("flights", index, 0) for index in range(3)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    coordinator = admin.describe_consumer_groups(["spotters"])["spotters"].result(60).coordinator.id
    frozen = next(each for each in (3, 2) if each != coordinator)
    paths = ("/topics", "/topics/flights", "/groups", "/group?id=spotters", "/transactions")
    console = serve_console(cluster.bootstrap, timeout_s=1)
    for path in paths:
        assert "did not answer" not in console.get(path).text
    cluster.pause(frozen)
    console = serve_console(cluster.bootstrap, timeout_s=1)
    answers = {path: console.get(path) for path in paths}
    cluster.resume(frozen)
    for path, answer in answers.items():
        assert answer.status == 200, path
        assert f"These brokers did not answer, or not completely: {frozen}." in answer.text
    assert "No open transaction was found." in answers["/transactions"].text


def test_a_frozen_broker_delays_searches_and_settings_only_once(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    """The settings were those of broker 1, and each search waited for it."""
    cluster = tidelog_cluster(3)
    cluster.create_topic("flights", 3)
    cluster.produce("flights", *(b"%d" % number for number in range(9)))
    led = next(each for each in range(3) if cluster.leader("flights", each) == 1)
    console = serve_console(",".join(reversed(cluster.bootstrap.split(","))), timeout_s=FREEZE_TIMEOUT_S)
    cluster.pause(1)
    page = console.get("/settings").text
    assert "Settings of broker 2" in page
    assert "These brokers did not answer, or not completely: 1." in page
    began_s = time.monotonic()
    answers = [
        console.get("/topics/flights/records"),
        console.get(f"/topics/flights/records/{led}/0"),
        console.get("/settings"),
        console.get("/settings?broker=1"),
    ]
    assert time.monotonic() - began_s < FREEZE_TIMEOUT_S
    cluster.resume(1)
    assert [answer.status for answer in answers] == [200, 502, 200, 502]


def test_the_number_of_viewers_is_bounded(
    tidelog: Cluster, serve_console: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.console.pages.MAX_VIEWERS", 1)
    console = serve_console(tidelog.bootstrap)
    events = console.events("/events/topics")
    assert next(events)[0] == "fragment"
    assert console.get("/events/").status == 503
    events.close()


def test_a_head_request_for_live_updates_is_refused(tidelog: Cluster, serve_console: Serve) -> None:
    """It would hold a place among the viewers without an end."""
    console = serve_console(tidelog.bootstrap)
    answer = console.get("/events/topics", method="HEAD")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert console.get("/topics", method="HEAD").status == 200


def test_names_that_cannot_exist_are_not_found(tidelog: Cluster, serve_console: Serve) -> None:
    console = serve_console(tidelog.bootstrap)
    for path in (
        "/topics/a%20b",
        "/topics/..",
        "/topics/a%20b/records",
        "/topics/a%20b/records/0/0",
        "/group",
    ):
        answer = console.get(path)
        assert answer.status == 404, path
        assert 'role="alert"' in answer.text, path


def test_a_slash_at_the_end_leads_nowhere_else(tidelog: Cluster, serve_console: Serve) -> None:
    """A redirection would name http, which is wrong behind a proxy that terminates TLS."""
    answer = serve_console(tidelog.bootstrap).get("/topics/")
    assert answer.status == 404
    assert "location" not in answer.headers


def test_a_page_of_topics_behind_the_last_one_is_the_last_one(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic("flights")
    page = serve_console(tidelog.bootstrap).get("/topics?page=999").text
    assert 'href="/topics/flights"' in page
    assert "No topic has such a name." not in page


def test_a_deleted_topic_is_not_shown_any_more(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic("flights", 3)
    console = serve_console(tidelog.bootstrap)
    events = console.events("/events/topics/flights")
    assert "Leaders, replicas and offsets" in next(events)[1]
    admin = AdminClient({"bootstrap.servers": tidelog.bootstrap})
    admin.delete_topics(["flights"])["flights"].result(TIMEOUT_S)
    fragment = next(data for name, data in events if "does not exist" in data)
    assert "Leaders, replicas and offsets" not in fragment
    assert console.get("/topics/flights").status == 404
