"""The Spark job finds exactly what the checker in one process finds, with the same texts."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaoslab.checker import judge_records
from chaoslab.history import (
    ABORTED,
    ACCEPTED,
    ACKNOWLEDGED,
    COMMITTED,
    NO_PLACE,
    NOTHING_COMMITTED,
    REJECTED,
    RELEASED,
    UNKNOWN,
    Commit,
    Delivery,
    History,
    Poll,
    ReaderPosition,
    Send,
    Transaction,
)
from chaoslab.planted import PLANTED, sound
from chaoslab.planted_shares import PLANTED_SHARES, sound_shares
from chaoslab.share_checks import BUFFERED_S, DELIVERY_LIMIT
from chaoslab.spark_checker.__main__ import history_files
from chaoslab.verdict import GARBAGE_READ, KINDS, LOST_WRITE, Verdict
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ALL = 1_000_000
RANDOM_HISTORIES = 40
TOPICS = ("log", "transactions", "copy")


def random_history(seed: int) -> History:
    """Returns a random history, nearly correct or full of faults. Numbers are small, so that entries often
    collide.
    """
    rng = random.Random(seed)
    mess = rng.choice((0.0, 0.02, 0.2, 1.0))
    history = History(
        audience={"group": ["log", "transactions"], "tail": ["log", "log"]},
        copies={"log": "copy"},
        shared={"share": ["log", "log"], "other share": ["transactions", "copy"]},
    )
    names = [f"t#{n}" for n in range(4)]
    history.transactions = [
        Transaction(rng.choice(names), rng.choice((COMMITTED, ABORTED, UNKNOWN)), n, n + 1) for n in range(4)
    ]
    ends: dict[tuple[str, int], int] = {}
    for number in range(rng.randrange(1, 25)):
        topic, partition, key = rng.choice(TOPICS), rng.randrange(2), f"k{rng.randrange(2)}"
        offset = ends.get((topic, partition), 0)
        ends[topic, partition] = offset + rng.choice((1, 1, 1, 2))
        outcome = rng.choice((ACKNOWLEDGED, ACKNOWLEDGED, UNKNOWN))
        transaction = rng.choice(("", "", rng.choice(names), "t#unheard-of"))
        at = rng.choice((offset, NO_PLACE)) if outcome == ACKNOWLEDGED else NO_PLACE
        for _ in range(1 + (rng.random() < mess)):
            history.sends.append(
                Send("p", topic, partition, key, number, outcome, at, number, number + 0.5, transaction)
            )
        history.final.append(Poll("final", "final", 0, topic, partition, offset, key, number, True, 0.0))
        if topic == "log":
            copied = Send("c", "copy", partition, key, number, UNKNOWN, NO_PLACE, 1, 2, rng.choice(names))
            history.sends.append(copied)
            history.final.append(history.final[-1]._replace(topic="copy", offset=100 + offset))
    for reader, group in (("group.1", "group"), ("group.2", "group"), ("tail", "tail")):
        history.polls += [
            poll._replace(reader=reader, group=group, assignment=rng.randrange(1 + (mess > 0.5)))
            for poll in history.final
        ]
    for n in range(rng.randrange(8)):
        at_s = rng.choice((n, n + 0.0005, n / 7, 18434.70622544 + n))
        place = (rng.choice(TOPICS), rng.randrange(2), rng.randrange(NOTHING_COMMITTED, 6))
        history.commits.append(Commit("group", *place, rng.choice((ACKNOWLEDGED, UNKNOWN)), at_s - 0.1, at_s))
        place = (rng.choice(TOPICS), rng.randrange(2), rng.randrange(NOTHING_COMMITTED, 6))
        history.positions.append(
            ReaderPosition("group.1", "group", 0, *place, rng.choice((at_s, at_s + 0.1)), at_s + 1)
        )
    history.deliveries = [
        random_delivery(rng, poll, mess) for poll in history.final for _ in range(rng.choice((1, 1, 1, 2)))
    ]
    for entries in (history.sends, history.polls, history.final, history.deliveries):
        disturb(rng, entries, mess)
    return history


def random_delivery(rng: random.Random, poll: Poll, mess: float) -> Delivery:
    """Returns a delivery that is probably the last one of a record if there is no mess."""
    is_done = rng.random() >= mess / 2
    answer = rng.choice((ACCEPTED, REJECTED) if is_done else (RELEASED, ACCEPTED))
    at_s = rng.choice((1.0, 2.5, 3 + BUFFERED_S, 18434.70622544)) if mess else 1.0
    return Delivery(
        rng.choice(("share.1", "share.2")),
        "share" if poll.topic == "log" else rng.choice(("share", "other share")) if mess else "other share",
        *poll[3:9],
        rng.choice((1, 2, DELIVERY_LIMIT)),
        at_s,
        answer,
        rng.choice((ACKNOWLEDGED, ACKNOWLEDGED, UNKNOWN)),
        at_s + rng.choice((0.5, 1.0)),
    )


def disturb(rng: random.Random, entries: list[Any], mess: float) -> None:
    for index in reversed(range(len(entries))):
        if rng.random() >= mess:
            continue
        entry = entries[index]
        match rng.randrange(6):
            case 0:
                del entries[index]
            case 1:
                entries.insert(rng.randrange(len(entries)), entry)
            case 2:
                entries[index] = entry._replace(offset=rng.randrange(8))
            case 3:
                entries[index] = entry._replace(number=rng.randrange(25))
            case 4:
                entries[index] = entry._replace(partition=rng.randrange(2), key='a "k" é\n%s')
            case _ if isinstance(entry, Poll | Delivery):
                entries[index] = entry._replace(is_intact=False, number=NO_PLACE)


def as_found(verdict: Verdict) -> tuple[list[Any], dict[str, int]]:
    return sorted(verdict.anomalies), dict(verdict.counts)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, History]:
    """Returns histories by path: all planted faults, the correct one, and random ones."""
    directory = tmp_path_factory.mktemp("histories")
    made: dict[str, History] = {"sound": sound(), "empty": History()}
    for plant, _ in PLANTED:
        history = sound()
        plant(history)
        made[plant.__name__] = history
    made["sound shares"] = sound_shares()
    for plant, _ in PLANTED_SHARES:
        history = sound_shares()
        plant(history)
        made[plant.__name__] = history
    made |= {f"random {seed}": random_history(seed) for seed in range(RANDOM_HISTORIES)}
    paths = {str(directory / f"{name}.jsonl.gz"): history for name, history in made.items()}
    for path, history in paths.items():
        history.save(Path(path))
    return paths


def test_both_checkers_find_the_same(
    spark: SparkSession, histories: dict[str, History], tmp_path: Path
) -> None:
    from chaoslab.spark_checker.job import check_histories

    output = str(tmp_path / "anomalies")
    found = {
        one.path: one.verdict for one in check_histories(spark, list(histories), listed=ALL, output=output)
    }
    assert found.keys() == histories.keys()
    differing = [
        path
        for path, history in histories.items()
        if as_found(found[path]) != as_found(judge_records(history))
    ]
    assert not differing
    # The comparison would be empty if nothing was found.
    seen = {kind for path in found if "random" in path for kind in found[path].kinds}
    assert seen == set(KINDS)
    written = spark.read.format("delta").load(output)
    assert written.count() == sum(len(verdict.anomalies) for verdict in found.values())


def test_anomalies_beyond_the_list_are_counted() -> None:
    from pyspark.sql import Row

    from chaoslab.spark_checker.job import _verdicts

    columns = Row("history", "kind", "topic", "partition", "offset", "detail", "nth", "total")
    found = [columns(7, LOST_WRITE, "log", 0, n, "gone", n + 1, 5) for n in range(2)]
    found.append(columns(7, LOST_WRITE, "copy", 0, 0, "not copied", 1, 1))  # checked by another test
    found.append(columns(7, GARBAGE_READ, "log", 0, 0, "what?", 1, 1))
    sound_one, bad = _verdicts({(7, "file:///a%20b/c"): {"sends": 9}, (8, "file:///a"): {}}, found)
    assert sound_one.verdict.is_sound
    assert bad.path == "/a b/c"
    assert not bad.verdict.is_sound
    assert len(bad.verdict.anomalies) == 4
    assert bad.verdict.kinds == {LOST_WRITE: 6, GARBAGE_READ: 1}


def test_directories_are_searched_for_histories(tmp_path: Path) -> None:
    for name in ("b/history.jsonl.gz", "a/x-history.jsonl.gz", "a/other.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = history_files((str(tmp_path), "s3://bucket/history.jsonl.gz"))
    assert found == [
        str(tmp_path / "a/x-history.jsonl.gz"),
        str(tmp_path / "b/history.jsonl.gz"),
        "s3://bucket/history.jsonl.gz",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="make chaos"):
        history_files((str(tmp_path / "empty"),))


def test_lines_keep_their_order_where_a_file_is_split(spark: SparkSession, tmp_path: Path) -> None:
    from chaoslab.spark_checker.operations import read_lines

    history = History(polls=[Poll("r", "g", 0, "log", 0, n, "k", n, True, 0.0) for n in range(400)])
    history.save(tmp_path / "packed.gz")
    (tmp_path / "plain").write_bytes(gzip.decompress((tmp_path / "packed.gz").read_bytes()))
    setting = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "5000")
    try:
        lines = read_lines(spark, [str(tmp_path / "plain")]).selectExpr("*", "spark_partition_id() AS part")
        rows = sorted(lines.filter("list = 'polls'").collect(), key=lambda row: row.seq)
    finally:
        spark.conf.set(setting, before)
    assert len({row.part for row in rows}) > 1
    assert [row.offset for row in rows] == list(range(400))


def text_of(*lines: str) -> bytes:
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


HEAD = '{"audience": {}, "copies": {}}'
COMMIT = '{"commits": ["g", "log", 0, 1, "acknowledged", 1.0, 2.0]}'


def test_an_invalid_entry_is_in_no_list(spark: SparkSession, tmp_path: Path) -> None:
    from chaoslab.spark_checker.operations import read_lines

    strange = ("what is this", COMMIT.replace("1,", '"one",'), '{"commits": ["g", "log", 0]}')
    (tmp_path / "lines").write_text("\n".join((COMMIT, *strange, COMMIT)))
    rows = read_lines(spark, [str(tmp_path / "lines")]).collect()
    assert [row.list for row in rows] == ["commits", None, None, None, "commits"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (text_of(HEAD, COMMIT, "what is this"), "its line 3 is not an entry"),
        (text_of(COMMIT), "it has 0 first lines"),
        (text_of(HEAD, *[COMMIT] * 5_000)[:-100], "cut off"),
        (b"no gzip at all", "cut off or not gzipped"),
        (None, r"no history at .*history\.jsonl\.gz"),
    ],
    ids=["no JSON", "no head", "cut off", "not gzipped", "missing"],
)
def test_a_file_that_is_no_history_is_reported_in_one_sentence(
    spark: SparkSession, tmp_path: Path, content: bytes | None, said: str
) -> None:
    from chaoslab.spark_checker.job import check_histories

    path = tmp_path / "history.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PipelineError, match=said):
        check_histories(spark, [str(path)])
