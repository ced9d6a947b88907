"""Every error code in the answer to each command: one line that names the item, without a bare code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.cluster import Cluster as Client
from tidelog.model.errors import RETRIABLE_ERRORS, ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CODE_NAME = re.compile(r"\b[A-Z]+_[A-Z_]+\b")
FINAL = [code for code in ErrorCode if code and code not in RETRIABLE_ERRORS]
"""The codes after which a command does not ask again."""
DEALT_WITH = {
    # The group may be a classic one, about which another request asks.
    "ConsumerGroupDescribe": {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND},
    # The broker has the records already.
    "Produce": {ErrorCode.DUPLICATE_SEQUENCE_NUMBER},
}
FINAL_OF_CONSUMERS = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.UNSUPPORTED_VERSION,
)
"""Consumers deal with many other codes themselves, for example by joining their group again."""
READ = "consume flights --from-beginning --max-messages 1 --timeout-ms 2000"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster() as cluster:
        cluster.create_topic("flights")
        cluster.produce("flights", b"a")
        with Client(cluster.bootstrap, client_id="reader") as client:
            commit_offsets(client, "readers", {TopicPartition("flights", 0): CommittedOffset(1)})
        yield cluster


@pytest.mark.parametrize(
    ("command", "api", "item"),
    [
        ("topic create new", "CreateTopics", "topic 'new'"),
        ("topic delete flights", "DeleteTopics", "topic 'flights'"),
        ("topic alter flights --partitions 9", "CreatePartitions", "topic 'flights'"),
        ("topic describe flights", "Metadata", "topic 'flights'"),
        ("offsets flights", "ListOffsets", "topic 'flights' partition 0"),
        ("delete-records flights --partition 0 --offset 1", "DeleteRecords", "flights\t0"),
        ("group list", "ListGroups", "groups of broker 1"),
        ("group describe readers", "ConsumerGroupDescribe", "group 'readers'"),
        ("group describe readers", "DescribeGroups", "group 'readers'"),
        ("group describe readers", "OffsetFetch", "group 'readers'"),
        ("group describe readers", "FindCoordinator", "coordinator of 'readers'"),
        ("group delete readers", "DeleteGroups", "group 'readers'"),
        (
            "group reset-offsets readers --topic flights --to-earliest --execute",
            "OffsetCommit",
            "group 'readers'",
        ),
        ("group delete-offsets readers --topic flights", "OffsetDelete", "group 'readers'"),
        ("transactions list", "ListTransactions", "transactions of broker 1"),
        ("transactions describe tx", "DescribeTransactions", "transactional id 'tx'"),
        ("log-dirs", "DescribeLogDirs", "log directories of broker 1"),
        ("elect-leaders --election-type preferred --all-topic-partitions", "ElectLeaders", "election of"),
        ("reassign --list", "ListPartitionReassignments", "reassignments"),
        ("user list", "DescribeUserScramCredentials", "users"),
        ("acl list", "DescribeAcls", "ACLs"),
        ("perf produce flights --num-records 1", "Produce", "flights-0"),
    ],
)
def test_each_code_becomes_a_sentence_with_the_item(
    running: Cluster, command: str, api: str, item: str
) -> None:
    assert (
        wrong_answers(
            running, command, api, item, [each for each in FINAL if each not in DEALT_WITH.get(api, ())]
        )
        == []
    )


@pytest.mark.parametrize(
    ("command", "api", "item"),
    [
        (READ, "Fetch", "flights-0"),
        (READ, "ListOffsets", "topic 'flights' partition 0"),
        (f"{READ} --group g", "ConsumerGroupHeartbeat", "group 'g'"),
        (f"{READ} --group g", "OffsetFetch", "group 'g'"),
        (f"{READ} --group g", "OffsetCommit", "group 'g'"),
    ],
)
def test_a_consumer_that_can_not_go_on_names_the_item(
    running: Cluster, command: str, api: str, item: str
) -> None:
    assert wrong_answers(running, command, api, item, FINAL_OF_CONSUMERS) == []


def wrong_answers(
    running: Cluster, command: str, api: str, item: str, codes: Iterable[ErrorCode]
) -> list[str]:
    wrong: list[str] = []
    runner = CliRunner(env={"TIDELOG_BOOTSTRAP_SERVER": running.bootstrap})
    for code in codes:
        with running.fail(api, code, times=None) as fault:
            done = runner.invoke(main, [*command.split(), "--request-timeout-ms", "5000"])
        last = done.stderr.splitlines()[-1] if done.stderr else ""
        text = f"{last}\n{done.stdout}"
        if (
            not fault.hits
            or done.exit_code != 1
            or not last.startswith("tidelog: ")
            or item not in text
            or CODE_NAME.search(text)
        ):
            wrong.append(f"{code.name}: {done.exit_code} {fault.hits} {text} {done.exception!r}")
    return wrong
