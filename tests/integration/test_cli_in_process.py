"""The command line with a broker in the process of the test: formats, names, and completion."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from brokerlab.command_line import InProcessTools
from tidelog.cli.main import main
from tidelog.cli.tool_command import sentence_of
from tidelog.client.admin.groups import CommittedOffset, commit_offsets
from tidelog.client.cluster import Cluster as Client
from tidelog.client.errors import BrokerGoneError
from tidelog.client.threads.consumer import Consumer
from tidelog.client.threads.producer import Producer
from tidelog.model.errors import KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.testing import Cluster

pytestmark = pytest.mark.integration

TOPIC = "flights"
GROUP = "readers"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster() as cluster:
        cluster.create_topic(TOPIC, 2)
        cluster.produce(TOPIC, b"a", b"b", b"c")
        with Client(cluster.bootstrap, client_id="reader") as client:
            commit_offsets(client, GROUP, {TopicPartition(TOPIC, 0): CommittedOffset(1)})
        yield cluster.bootstrap


@pytest.fixture
def tools(bootstrap: str) -> InProcessTools:
    return InProcessTools(bootstrap)


def test_topics(tools: InProcessTools) -> None:
    assert TOPIC in [row["topic"] for row in tools.document("topic", "list")]
    (topic,) = tools.document("topic", "describe", TOPIC)
    assert topic["topic"] == TOPIC
    assert topic["partitions"][1] == {
        "partition": 1,
        "leader": 1,
        "replicas": [1],
        "in_sync": [1],
        "offline": [],
    }
    created = tools.document("topic", "create", "made", "--partitions", "3", "--config", "retention.ms=9")
    assert (created["topic"], created["is_created"], created["partitions"]) == ("made", True, 3)
    (made,) = tools.document("topic", "describe", "made")
    assert made["configs"] == {"retention.ms": "9"}
    assert tools.document("topic", "delete", "made")["is_deleted"] is True
    assert tools.document("topic", "describe", "--unavailable-partitions") == []


def test_groups(tools: InProcessTools) -> None:
    (listed,) = tools.document("group", "list")
    assert listed["group"] == GROUP
    (group,) = tools.document("group", "describe", GROUP)
    assert (group["group"], group["state"], group["member_count"]) == (GROUP, "Empty", 0)
    assert [row["committed"] for row in group["partitions"]] == [1]
    lag = group["partitions"][0]["lag"]
    assert isinstance(lag, int)
    assert (group["coordinator"], group["total_lag"], group["total_stable_lag"]) == (1, lag, lag)
    (members,) = tools.document("group", "describe", GROUP, "--members")
    assert members["members"] == []
    assert "total_lag" not in members


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["cluster", "describe"], dict),
        (["cluster", "describe", "--api-versions"], list),
        (["cluster", "check"], list),
        (["config", "describe", "--topic", TOPIC], list),
        (["offsets", TOPIC], list),
        (["offsets", TOPIC, "--time", "latest"], list),
        (["rebalance"], dict),
        (["rebalance", "--verify"], dict),
        (["transactions", "list"], list),
        (["dlq", "list"], list),
        (["log-dirs"], list),
        (["top", "--once", "--interval", "0.5"], list),
        (["plan", "add", "1"], dict),
        (["elect-leaders", "--election-type", "preferred", "--all-topic-partitions"], list),
        (["reassign", "--list"], list),
        (["transactions", "find-hanging"], list),
        (["group", "reset-offsets", GROUP, "--topic", TOPIC, "--to-earliest"], dict),
        (["group", "reset-offsets", GROUP, "--topic", TOPIC, "--to-earliest", "--export"], dict),
        (["user", "list"], list),
        (["perf", "produce", "perf", "--num-records", "10", "--format", "json"], dict),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_command_prints_one_document(
    tools: InProcessTools, arguments: list[str], kind: type[object]
) -> None:
    if "perf" in arguments:
        tools.run("topic", "create", "perf", "--if-not-exists")
    assert isinstance(tools.document(*arguments), kind)


def test_numbers_are_numbers(tools: InProcessTools) -> None:
    rows = tools.document("offsets", TOPIC)
    assert [(row["topic"], row["partition"], row["earliest"]) for row in rows] == [
        (TOPIC, 0, 0),
        (TOPIC, 1, 0),
    ]
    assert sum(row["offsets"] for row in rows) == 3


def test_a_table_when_piped(tools: InProcessTools) -> None:
    shown = tools.run("offsets", TOPIC, "--format", "table").stdout
    assert "───" in shown
    assert TOPIC in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topic", "describe", "flihts"], "topic 'flihts' does not exist. Did you mean 'flights'?"),
        (["consume", "flihts"], "topic 'flihts' does not exist. Did you mean 'flights'?"),
        (["offsets", "fligt"], "no topic matches 'fligt'. Did you mean 'flights'?"),
        (["topic", "describe", "xyzzy"], "topic 'xyzzy' does not exist; 'tidelog topic list' shows"),
        (["group", "describe", "raeders"], "group 'raeders' does not exist. Did you mean 'readers'?"),
        (["group", "delete", "raeders"], "group 'raeders' does not exist. Did you mean 'readers'?"),
        (["group", "delete", "xyzzy"], "group 'xyzzy' does not exist; 'tidelog group list' shows"),
        (["transactions", "describe", "xyzzy"], "transactional id 'xyzzy': it does not exist; 'tidelog"),
    ],
)
def test_names_that_do_not_exist(tools: InProcessTools, arguments: list[str], message: str) -> None:
    result = tools.run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"tidelog: {message}")
    assert result.stderr.count("\n") == 1


def test_a_group_with_members_is_not_deleted(bootstrap: str, tools: InProcessTools) -> None:
    with Consumer[bytes, bytes](bootstrap, {"group.id": "busy"}) as member:
        member.subscribe([TOPIC])
        while not member.assignment():
            member.poll(0.1)
        result = tools.run("group", "delete", "--group", "busy")
    assert result.exit_code == 1
    assert result.stderr.startswith("tidelog: group 'busy' has members; stop its members first")
    assert tools.document("group", "delete", "busy") == [{"message": "Group busy deleted.", "group": "busy"}]


def test_groups_are_named_as_in_kafkas_tool(tools: InProcessTools) -> None:
    for arguments in (["--group", GROUP], ["--all-groups"], [GROUP, "--group", GROUP]):
        found = tools.document("group", "describe", *arguments)
        assert GROUP in [group["group"] for group in found]
    for arguments in ([], [GROUP, "--all-groups"]):
        assert tools.run("group", "describe", *arguments).exit_code == 2


def test_names_of_the_cluster_are_completed(bootstrap: str) -> None:
    completion = BashComplete(main, {}, "tidelog", "_TIDELOG_COMPLETE")
    for words in (["topic", "describe"], ["offsets"], ["topic", "describe", "--topic"]):
        found = completion.get_completions([*words[:2], "-b", bootstrap, *words[2:]], "fl")
        assert [item.value for item in found] == [TOPIC]
    found = completion.get_completions(["group", "describe", "-b", bootstrap], "read")
    assert [item.value for item in found] == [GROUP]


def test_perf_works_with_its_defaults(tools: InProcessTools) -> None:
    """With small values, a batch of the default size exceeded max.message.bytes."""
    assert tools.run("topic", "create", "small", "--if-not-exists").exit_code == 0
    result = tools.run("perf", "produce", "small", "--record-size", "100", "--num-records", "12000")
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_single_record_that_is_too_large_is_told_the_limit_that_helps(
    tools: InProcessTools, bootstrap: str
) -> None:
    """The advice was a smaller --batch-size, which changes nothing for one record."""
    assert tools.run("topic", "create", "limited", "--if-not-exists").exit_code == 0
    measured = ["perf", "produce", "limited", "--num-records", "1", "--record-size"]
    refused = tools.run(*measured, "2000000").stderr
    assert "max.message.bytes, 1048588; raise max.message.bytes with 'tidelog config alter" in refused
    assert "--batch-size" not in refused
    assert tools.run(*measured, str(1 << 26)).stderr.startswith("tidelog: topic partition limited-0")
    assert tools.run(*measured, str((1 << 26) + 1)).exit_code == 2
    with (
        Producer[bytes, bytes](bootstrap, {"max.request.size": 1000}) as producer,
        pytest.raises(KafkaError) as raised,
    ):
        producer.send("limited", b"x" * 2000)
    assert sentence_of(raised.value).endswith(
        "for topic 'limited' exceeds max.request.size, 1000; send smaller records, or use a producer with a "
        "larger max.request.size"
    )


def test_the_hint_of_an_invalid_setting_works_as_it_is(tools: InProcessTools) -> None:
    result = tools.run("topic", "create", "t", "--config", "no.such=1")
    hint = result.stderr.partition("'tidelog ")[2].partition("'")[0].split()
    assert hint == ["config", "describe", "--all"]
    names = [row["name"] for row in tools.document(*hint)]
    assert "log.retention.ms" in names


def test_only_changes_that_happened_are_reported(tools: InProcessTools) -> None:
    refused = tools.run("config", "alter", "--broker", "1", "principal.builder.class=a.B")
    assert refused.exit_code == 1
    assert "principal.builder.class: it names a Java class" in refused.stderr
    broker = ["config", "alter", "--broker", "1"]
    for deleted in ("num.io.threads", "log.retention.ms"):
        result = tools.run(*broker, "--delete-config", deleted)
        assert result.stdout == "No setting of broker '1' was changed.\n"
        assert result.stderr == f"These settings were not set before: {deleted}.\n"
    for resource in (["--broker", "1"], ["--broker-defaults"]):
        changed = tools.document("config", "alter", *resource, "log.retention.ms=9000000")
        assert (changed["changed"], changed["settings"]) == (True, ["log.retention.ms"])
        changed = tools.document("config", "alter", *resource, "--delete-config", "log.retention.ms,x")
        assert changed["settings"] == ["log.retention.ms"]
    assert tools.run("config", "alter", "--topic", TOPIC, "retention.ms=90000000").exit_code == 0
    assert tools.document("config", "alter", "--topic", TOPIC, "--delete-config", "retention.ms")["changed"]


def test_brokers_are_no_controllers() -> None:
    """Each broker names itself in Metadata, because it forwards the requests for the controller."""
    with Cluster(2) as cluster:
        tools = InProcessTools(cluster.bootstrap)
        described = tools.document("cluster", "describe")
        (seen,) = tools.document("top", "--once", "--interval", "0.5")
        shown = tools.run("cluster", "describe", "--format", "table").output
    assert "Group coordinators and etcd are unknown to clients; see 'tidelog doctor'." in shown
    assert described["controllers"] == [{"controller": described["controller_id"], "state": "active"}]
    assert [row["state"] for row in described["brokers"]] == ["up", "up"]
    assert seen["summary"]["controller"] == str(described["controller_id"])
    assert [row["role"] for row in seen["brokers"]] == [None, None]


def test_a_broker_that_goes_away_is_not_blamed_for_its_listeners() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic(TOPIC, 1)
        leader = cluster.leader(TOPIC)
        with Client(cluster.bootstrap, timeout_s=60.0) as client:
            connection = client.broker(leader)
            cluster.kill_broker(leader)
            while not connection.is_closed:
                time.sleep(0.01)
            with pytest.raises(BrokerGoneError, match=f"broker {leader} no longer answers: ") as raised:
                client.broker(leader)
    assert sentence_of(raised.value).endswith("; 'tidelog cluster describe' shows the brokers that run")


def test_a_generated_assignment_is_one_document(tools: InProcessTools, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    options = ("--generate", "--topics-to-move-json-file", str(file), "--broker-list", "1")
    found = tools.document("reassign", *options)
    assert [row["replicas"] for row in found["proposed"]["partitions"]] == [[1], [1]]
    assert found["current"] == found["proposed"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "many", "--partitions", "2147483648"],
        ["topic", "create", "many", "--replication-factor", "32768"],
        ["topic", "alter", TOPIC, "--partitions", "2147483648"],
        ["delete-records", TOPIC, "--partition", "0", "--offset", "9223372036854775808"],
        ["elect-leaders", "--election-type", "preferred", "--topic", TOPIC, "--partition", "2147483648"],
        ["transactions", "list", "--running-longer-than-ms", "9223372036854775808"],
        ["transactions", "abort", TOPIC, "--partition", "0", "--producer-epoch", "32768"],
        ["topic", "list", "--request-timeout-ms", "2147483648"],
    ],
    ids=" ".join,
)
def test_a_number_that_no_request_can_hold_is_named(tools: InProcessTools, arguments: list[str]) -> None:
    result = tools.run(*arguments)
    assert result.exit_code == 2, result.exception
    option, number = arguments[-2:]
    assert f"Invalid value for '{option}': {number} is more than {int(number) - 1}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["offsets", TOPIC, "--time", "-7"], "--time -7: expected latest, earliest, "),
        (
            ["offsets", TOPIC, "--time", "9223372036854775808"],
            "--time 9223372036854775808: expected latest, ",
        ),
        (
            ["user", "delete", "nobody"],
            "users: The user nobody has no SCRAM credentials; 'tidelog user list'",
        ),
    ],
)
def test_a_wrong_value_is_named(tools: InProcessTools, arguments: list[str], message: str) -> None:
    result = tools.run(*arguments)
    assert result.exit_code == 1, result.exception
    assert result.stderr.startswith(f"tidelog: {message}")


def test_a_key_separator_without_keys_is_refused(tools: InProcessTools) -> None:
    result = tools.run("produce", TOPIC, "--key-separator", ":")
    assert result.exit_code == 2
    assert "--key-separator requires --parse-key" in result.stderr


def test_ids_and_names_that_do_not_exist_are_refused(tools: InProcessTools) -> None:
    rebalanced = tools.run("rebalance", "--without", "9")
    assert rebalanced.exit_code == 1
    assert "--without 9: no broker has this id; the brokers are 1" in rebalanced.stderr
    listed = tools.run("transactions", "list", "--state", "Bogus")
    assert listed.exit_code == 2
    assert "'Bogus' is not one of 'empty', 'ongoing'" in listed.stderr
    assert tools.run("transactions", "list", "--state", "ongoing").exit_code == 0
    sent = tools.run("perf", "produce", TOPIC, "--record-size", str(1 << 31))
    assert sent.exit_code == 2
    assert "--record-size" in sent.stderr


def test_a_setting_that_has_no_effect_is_stored_and_shown(tools: InProcessTools) -> None:
    broker = ("--broker", "1")
    assert tools.run("config", "alter", *broker, "sasl.kerberos.min.time.before.relogin=58000").exit_code == 0
    shown = {row["name"]: row["value"] for row in tools.document("config", "describe", *broker)}
    assert shown["sasl.kerberos.min.time.before.relogin"] == "58000"
    tools.run("config", "alter", *broker, "--delete-config", "sasl.kerberos.min.time.before.relogin")
    assert tools.document("config", "describe", *broker) == []
