"""`tidelog elect-leaders`: elects preferred leaders, or unclean ones (kafka-leader-election)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from tidelog.cli.output import counted, note, print_table
from tidelog.cli.partition_file import parse_partition_rows, read_text_file
from tidelog.cli.protocol_int import ProtocolInt
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.reassignments import PREFERRED, UNCLEAN, Election, elect_leaders
from tidelog.model.errors import ErrorCode, meaning_of
from tidelog.model.topics import TopicPartition
from tidelog.settings.setting import INT_MAX

_TYPES: Final = {"preferred": PREFERRED, "unclean": UNCLEAN}


@click.command(
    cls=ToolCommand,
    examples=(
        "tidelog elect-leaders --election-type preferred --all-topic-partitions",
        "tidelog elect-leaders --election-type unclean --topic flights --partition 0",
    ),
)
@click.option(
    "--election-type",
    type=click.Choice(list(_TYPES), case_sensitive=False),
    required=True,
    help="preferred elects the first replica. unclean elects any live replica of a partition without a "
    "leader, and may lose records.",
)
@click.option("--topic", metavar="TOPIC", help="The topic, with --partition.")
@click.option("--partition", type=ProtocolInt(INT_MAX, min=0), help="The partition, with --topic.")
@click.option(
    "--path-to-json-file",
    "file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Several partitions: {"partitions": [{"topic": "t", "partition": 0}]}.',
)
@click.option("--all-topic-partitions", "all_partitions", is_flag=True, help="All partitions.")
@cluster_options
def command(
    election_type: str,
    topic: str | None,
    partition: int | None,
    file: Path | None,
    all_partitions: bool,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """Elect the leaders of partitions."""
    if (topic is not None) + (file is not None) + all_partitions != 1:
        raise click.UsageError("Give one of --topic, --path-to-json-file and --all-topic-partitions.")
    if (topic is None) != (partition is None):
        raise click.UsageError("Give --topic and --partition together.")
    places: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        places = [TopicPartition(topic, partition)]
    elif file is not None:
        text = read_text_file("--path-to-json-file", file)
        places = list(parse_partition_rows(text, f"--path-to-json-file {file}"))
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        results = sorted(elect_leaders(cluster, _TYPES[election_type.lower()], places).items())
    if not results:
        note("No partition needs an election.")
    print_table(("topic", "#partition", "result"), [(*place, outcome(found)) for place, found in results])
    failed = sum(
        1 for _, found in results if found.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    )
    if failed:
        raise ToolError(f"{counted(failed, 'partition', 'has', 'have')} no new leader")


def outcome(election: Election) -> str:
    """Returns the result in one phrase."""
    if election.code is ErrorCode.NONE:
        return "elected"
    if election.code is ErrorCode.ELECTION_NOT_NEEDED:
        return "not needed"
    return f"failed: {election.message or meaning_of(election.code)}"
