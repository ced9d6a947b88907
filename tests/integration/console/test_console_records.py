"""The pages of the console that show records."""

from __future__ import annotations

import html
import io
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fastavro
import pytest
from confluent_kafka import Producer

from tidelog.console.core.record_scan import Budget
from tidelog.console.record_decoder import RecordDecoder, load_schemas
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration
Serve = Callable[..., Any]
TOPIC = "flights"
TIMEOUT_S = 60


def places(page: str) -> list[tuple[int, int]]:
    """Returns partition and offset of each record on a page."""
    found = re.findall(rf'href="/topics/{TOPIC}/records/(\d+)/(\d+)"', page)
    return [(int(partition), int(offset)) for partition, offset in found]


def continued(page: str) -> str:
    """Returns the path of the link that continues a search."""
    found = re.search(r'href="(\?[^"]+)">[Cc]ontinue', page)
    assert found is not None
    return f"/topics/{TOPIC}/records{html.unescape(found[1])}"


@pytest.fixture
def flights(tidelog: Cluster) -> Cluster:
    """Returns a cluster with 300 records, whose numbers go to three partitions in turn."""
    tidelog.create_topic(TOPIC, 3)
    for partition in range(3):
        numbers = range(partition, 300, 3)
        values = (b'{"n": %d, "seat": {"row": %d}}' % (number, number % 10) for number in numbers)
        tidelog.produce(TOPIC, *values, partition=partition)
    return tidelog


def test_the_newest_records_of_all_partitions_come_first(flights: Cluster, serve_console: Serve) -> None:
    page = serve_console(flights.bootstrap).get(f"/topics/{TOPIC}/records?limit=20").text
    assert len(places(page)) == 20
    assert set(places(page)) > {(index, offset) for index in range(3) for offset in range(94, 100)}
    times = re.findall(r'class="time">([^<]+)<', page)
    assert times == sorted(times, reverse=True)
    assert "Older records" in page


def test_older_records_follow_without_a_gap(flights: Cluster, serve_console: Serve) -> None:
    console = serve_console(flights.bootstrap)
    page = console.get(f"/topics/{TOPIC}/records?partition=1&limit=50").text
    assert places(page)[0] == (1, 99)
    older = re.search(r'href="(\?[^"]+)">Older', page)
    assert older is not None
    page = console.get(f"/topics/{TOPIC}/records{html.unescape(older[1])}").text
    assert places(page) == [(1, offset) for offset in range(50)]


def test_filters_find_records_in_all_partitions(flights: Cluster, serve_console: Serve) -> None:
    console = serve_console(flights.bootstrap)
    page = console.get(f"/topics/{TOPIC}/records?start=oldest&limit=50&json={quote('seat.row=7')}").text
    assert len(places(page)) == 30
    assert "The search read everything from its start to the end." in page
    page = console.get(f"/topics/{TOPIC}/records?partition=2&start=offset&offset=90&value=row").text
    assert places(page) == [(2, offset) for offset in range(90, 100)]


def test_a_search_stops_at_its_budget_and_can_be_continued(flights: Cluster, serve_console: Serve) -> None:
    console = serve_console(flights.bootstrap, budget=Budget(max_records=64))
    path = f"/topics/{TOPIC}/records?partition=0&start=oldest&value=297"
    page = console.get(path).text
    assert places(page) == []
    assert "Stopped after 64 records, the limit of one search." in page
    assert "Continue from offset 64 of partition 0" in page
    assert "About 36 offsets are not searched." in page
    assert places(console.get(continued(page)).text) == [(0, 99)]


def test_records_are_found_by_time(flights: Cluster, serve_console: Serve) -> None:
    flights.create_topic("old", configs={"message.timestamp.before.max.ms": str(2**62)})
    producer = Producer({"bootstrap.servers": flights.bootstrap})
    for timestamp in (1_000_000, 2_000_000):
        producer.produce("old", b"at %d" % timestamp, timestamp=timestamp)
    assert producer.flush(TIMEOUT_S) == 0
    console = serve_console(flights.bootstrap)
    page = console.get("/topics/old/records?start=time&time=1970-01-01T00:20").text
    assert re.findall(r"<pre>\n(at \d+)</pre>", page) == ["at 2000000"]
    page = console.get("/topics/old/records?start=time&time=2000001").text
    assert "No record was found." in page


def test_a_record_has_a_page_with_headers_and_all_bytes(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic(TOPIC)
    producer = Producer({"bootstrap.servers": tidelog.bootstrap})
    producer.produce(
        TOPIC, b"x" * 9_000 + b"<end>", b"\xff\x00", headers=[("trace", b"ab-1"), ("none", None)]
    )
    assert producer.flush(TIMEOUT_S) == 0
    console = serve_console(tidelog.bootstrap)
    preview = console.get(f"/topics/{TOPIC}/records").text
    assert "end&gt;" not in preview
    assert "6.8 KiB more" in preview
    page = console.get(f"/topics/{TOPIC}/records/0/0").text
    assert "x&lt;end&gt;</pre>" in page
    assert "000000  ff 00 " in page
    assert re.search(r'<th scope="row">trace</th><td><pre>\nab-1</pre>', page)
    missing = console.get(f"/topics/{TOPIC}/records/0/1")
    assert missing.status == 404
    assert "There is no record at this offset." in missing.text


def test_a_frozen_leader_hides_only_records_of_its_own_partitions(
    tidelog_cluster: Callable[..., Cluster], serve_console: Serve
) -> None:
    cluster = tidelog_cluster(3)
    cluster.create_topic(TOPIC, 3)
    for partition in range(3):
        cluster.produce(TOPIC, b"record", partition=partition)
    hidden = next(each for each in range(3) if cluster.leader(TOPIC, each) == 3)
    shown = (hidden + 1) % 3
    console = serve_console(cluster.bootstrap, timeout_s=3, budget=Budget(max_ms=60_000))
    cluster.pause(3)
    begin_s = time.monotonic()
    record = console.get(f"/topics/{TOPIC}/records/{shown}/0")
    took_s = time.monotonic() - begin_s
    silent = console.get(f"/topics/{TOPIC}/records/{hidden}/0")
    found = console.get(f"/topics/{TOPIC}/records")
    cluster.resume(3)
    assert "record</pre>" in record.text
    assert took_s < 3
    assert silent.status == 502
    assert f"no leader answers for partition {hidden} of topic &#39;flights&#39;." in silent.text
    assert "There is no record at this offset." not in silent.text
    assert sorted(places(found.text)) == [(each, 0) for each in range(3) if each != hidden]
    assert f"No leader answers for partitions {hidden}." in found.text
    assert "The search read everything from its start to the end of the other partitions." in found.text


def test_only_committed_records_leave_out_an_open_and_an_aborted_transaction(
    tidelog: Cluster, serve_console: Serve
) -> None:
    tidelog.create_topic(TOPIC)
    producer = Producer({"bootstrap.servers": tidelog.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(TIMEOUT_S)
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.produce(TOPIC, b"committed" if is_committed else b"aborted")
        producer.flush(TIMEOUT_S)
        if is_committed:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"open")
    producer.flush(TIMEOUT_S)
    console = serve_console(tidelog.bootstrap)
    path = f"/topics/{TOPIC}/records?start=oldest"
    values = re.findall(r"<td><pre>\n(\w+)</pre>", console.get(path).text)
    assert values == ["committed", "aborted", "open"]
    values = re.findall(r"<td><pre>\n(\w+)</pre>", console.get(f"{path}&isolation=committed").text)
    assert values == ["committed"]
    producer.abort_transaction(TIMEOUT_S)


def test_avro_is_decoded_shown_and_filtered(tidelog: Cluster, serve_console: Serve, tmp_path: Path) -> None:
    fields = [{"name": "number", "type": "int"}, {"name": "to", "type": "string"}]
    schema = {"type": "record", "name": "Flight", "fields": fields}
    (tmp_path / f"{TOPIC}-value.avsc").write_text(json.dumps(schema))
    parsed = fastavro.parse_schema(schema)
    tidelog.create_topic(TOPIC)
    values = []
    for number in range(100):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, {"number": number, "to": "Köln" if number % 2 else "Oslo"})
        values.append(b"\0\0\0\0\7" + body.getvalue())
    deep = b"\x02" * 100_000
    tidelog.produce(TOPIC, *values, deep)
    schemas = RecordDecoder(load_schemas(tmp_path), None)
    console = serve_console(tidelog.bootstrap, schemas=schemas)
    page = console.get(f"/topics/{TOPIC}/records?start=oldest&json=number%3D42").text
    assert places(page) == [(0, 42)]
    assert html.unescape(page).count('"to": "Oslo"') == 1
    page = console.get(f"/topics/{TOPIC}/records?start=oldest&value={quote('Köln')}").text
    assert places(page) == [(0, number) for number in range(1, 100, 2)]
    record = html.unescape(console.get(f"/topics/{TOPIC}/records/0/42").text)
    assert '{\n  "number": 42,\n  "to": "Oslo"\n}' in record
    assert "Avro, 11 B. The schema is flights-value.avsc." in record
    record = console.get(f"/topics/{TOPIC}/records/0/100").text
    assert "It does not fit flights-value.avsc: " in record


def test_wrong_searches_are_refused_with_a_sentence(flights: Cluster, serve_console: Serve) -> None:
    console = serve_console(flights.bootstrap)
    for query, status, text in (
        ("partition=x", 400, "The partition &#39;x&#39; is not a number"),
        ("json=a", 400, "is not PATH=VALUE"),
        ("partition=9", 404, "topic &#39;flights&#39; has no partition 9."),
    ):
        answer = console.get(f"/topics/{TOPIC}/records?{query}")
        assert answer.status == status
        assert text in answer.text
    assert console.get("/topics/nothing/records").status == 404
    assert console.get(f"/topics/{TOPIC}/records/0/{'9' * 5_000}").status == 404
    assert console.get(f"/topics/{TOPIC}/records/x/0").status == 404


def test_only_some_searches_run_at_a_time(flights: Cluster, serve_console: Serve) -> None:
    console = serve_console(flights.bootstrap)
    path = f"/topics/{TOPIC}/records"
    slow = flights.delay("Fetch", 1, times=None, client_id="tidelog-console")
    with ThreadPoolExecutor(4) as browsers:
        found = [browsers.submit(console.get, path) for _ in range(4)]
        answers = [each.result() for each in found]
    slow.end()
    assert sorted(answer.status for answer in answers) == [200, 200, 503, 503]
    assert any("Other searches are running." in answer.text for answer in answers)
    assert console.get(path).status == 200


def test_records_that_would_mislead_their_reader(tidelog: Cluster, serve_console: Serve) -> None:
    tidelog.create_topic("odd")
    producer = Producer({"bootstrap.servers": tidelog.bootstrap, "log_level": 0})
    headers = [("h\u202eder", b"x"), ("<b>", None)]
    producer.produce("odd", b'\n<script>alert("1")</script>', key="gnp.\u202eexe", headers=headers)
    assert not producer.flush(TIMEOUT_S)
    console = serve_console(tidelog.bootstrap)
    for path in ("/topics/odd/records", "/topics/odd/records/0/0"):
        page = console.get(path).text
        # A browser leaves out the first line break after <pre>.
        assert "<pre>\n\n&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;</pre>" in page
        assert "gnp.\\u202eexe" in page
        assert "h\\u202eder" in page
        assert "&lt;b&gt;" in page
        assert "\u202e" not in page
    sought = quote("\u202e")
    page = console.get(f"/topics/odd/records?start=oldest&key={sought}&value={quote('<script>')}").text
    assert "1 record<" in page
    assert 'value="\u202e"' in page  # the field is sent as it was typed


def places_of(topic: str, page: str) -> list[tuple[int, int]]:
    found = re.findall(rf'href="/topics/{topic}/records/(\d+)/(\d+)"', page)
    return [(int(partition), int(offset)) for partition, offset in found]


def test_the_newest_records_of_one_full_partition_fill_the_page(
    tidelog: Cluster, serve_console: Serve
) -> None:
    tidelog.create_topic("skewed", 50)
    tidelog.produce("skewed", *(b"%d" % number for number in range(100)), partition=49)
    tidelog.produce("skewed", b"x", partition=3)
    page = serve_console(tidelog.bootstrap).get("/topics/skewed/records?limit=20").text
    assert sorted(places_of("skewed", page)) == [(3, 0), *((49, offset) for offset in range(81, 100))]
    assert "Older records" in page


def test_the_newest_records_are_not_those_of_the_first_partitions(
    tidelog: Cluster, serve_console: Serve
) -> None:
    tidelog.create_topic("wide", 60)
    producer = Producer({"bootstrap.servers": tidelog.bootstrap, "log_level": 0})
    for partition in range(60):
        producer.produce("wide", b"x", partition=partition, timestamp=1_000_000 + 1_000 * partition)
    assert not producer.flush(TIMEOUT_S)
    console = serve_console(tidelog.bootstrap)
    page = console.get("/topics/wide/records?limit=20").text
    assert places_of("wide", page) == [(partition, 0) for partition in range(59, 39, -1)]
    older = re.search(r'href="(\?[^"]+)">Older', page)
    assert older is not None
    seen, link = [], older[1]
    for _ in range(3):
        page = console.get(f"/topics/wide/records{html.unescape(link)}").text
        seen += places_of("wide", page)
        following = re.search(r'href="(\?[^"]+)">Following', page)
        link = following[1] if following else ""
    assert set(seen) >= {(partition, 0) for partition in range(40)}


def test_the_newest_records_of_transactions_are_behind_their_markers(
    tidelog: Cluster, serve_console: Serve
) -> None:
    tidelog.create_topic("payments", 30)
    producer = Producer(
        {"bootstrap.servers": tidelog.bootstrap, "log_level": 0, "transactional.id": "payments"}
    )
    producer.init_transactions()
    for _ in range(3):
        producer.begin_transaction()
        for partition in range(30):
            producer.produce("payments", b"x", partition=partition)
        producer.commit_transaction()
    page = serve_console(tidelog.bootstrap).get("/topics/payments/records?limit=20").text
    assert len(places_of("payments", page)) == 20
    assert {offset for _, offset in places_of("payments", page)} == {4}
