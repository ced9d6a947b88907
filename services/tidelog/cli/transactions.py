"""`tidelog transactions`: lists, describes and ends transactions (kafka-transactions)."""

from __future__ import annotations

import time

import click

from tidelog.cli.confirmation import asks_first, confirm
from tidelog.cli.hanging_transactions import abort, describe_them, find_them
from tidelog.cli.output import print_heading, print_table, say
from tidelog.cli.protocol_int import ProtocolInt
from tidelog.cli.tool_command import ToolCommand, ToolError, cluster_options, connect
from tidelog.client.admin.groups import (
    ANY_DURATION,
    ONGOING,
    TRANSACTION_STATES,
    describe_transaction,
    fence_producer,
    list_transactions,
)
from tidelog.process.command_help import SuggestingGroup
from tidelog.settings.setting import LONG_MAX


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, describe and end transactions, and find and abort hanging ones."""


command.add_command(describe_them)
command.add_command(find_them)
command.add_command(abort)


@command.command(
    "list",
    cls=ToolCommand,
    is_watchable=True,
    examples=(
        "tidelog transactions list",
        "tidelog transactions list --running-longer-than-ms 60000",
    ),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(TRANSACTION_STATES, case_sensitive=False),
    help="Show only transactions in this state. Repeatable.",
)
@click.option(
    "--running-longer-than-ms",
    type=ProtocolInt(LONG_MAX, min=0),
    help="Show only transactions that have been open for longer than this time.",
)
@cluster_options
def list_them(
    states: tuple[str, ...],
    running_longer_than_ms: int | None,
    bootstrap_server: str,
    request_timeout_ms: int,
) -> None:
    """List transactional ids with their producers and states."""
    duration_ms = ANY_DURATION if running_longer_than_ms is None else running_longer_than_ms
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        found = list_transactions(cluster, list(states), duration_ms)
    print_table(
        ("transactional id", "#coordinator", "#producer id", "state"),
        [(row.transactional_id, row.coordinator_id, row.producer_id, row.state) for row in found],
    )


@command.command("describe", cls=ToolCommand, examples=("tidelog transactions describe orders-writer",))
@click.argument("names", metavar="[TRANSACTIONAL_ID]...", nargs=-1)
@click.option(
    "--transactional-id",
    "more_names",
    multiple=True,
    metavar="TRANSACTIONAL_ID",
    help="A transactional id, instead of the arguments. Repeatable.",
)
@cluster_options
def describe(
    names: tuple[str, ...], more_names: tuple[str, ...], bootstrap_server: str, request_timeout_ms: int
) -> None:
    """Show the state, age and partitions of transactional ids."""
    chosen = (*names, *more_names)
    if not chosen:
        raise click.UsageError("Give a transactional id, or --transactional-id TRANSACTIONAL_ID.")
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        for name in chosen:
            found = describe_transaction(cluster, name)
            is_open = found.start_time_ms >= 0
            age_ms = max(0, int(time.time() * 1000) - found.start_time_ms)
            since = f", begun {age_ms} ms ago" if is_open else ""
            print_heading(
                name,
                f"  {found.state}{since}, producer {found.producer_id} epoch {found.producer_epoch},"
                f" timeout {found.timeout_ms} ms",
                transactional_id=name,
                state=found.state,
                age_ms=age_ms if is_open else None,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                timeout_ms=found.timeout_ms,
            )
            print_table(("topic", "#partition"), sorted(found.partitions), name="partitions")


@command.command(
    "force-terminate",
    cls=ToolCommand,
    examples=("tidelog transactions force-terminate orders-writer",),
)
@click.argument("name", metavar="[TRANSACTIONAL_ID]", required=False)
@click.option(
    "--transactional-id",
    "other_name",
    metavar="TRANSACTIONAL_ID",
    help="The transactional id, instead of the argument.",
)
@asks_first
@cluster_options
def force_terminate(
    name: str | None, other_name: str | None, bootstrap_server: str, request_timeout_ms: int
) -> None:
    """Abort the open transaction of a transactional id, in all of its partitions.

    Its producer is fenced: it can no longer write, and fails at its next call until it starts again.
    On a terminal, it asks first.
    """
    if name and other_name and name != other_name:
        raise click.UsageError(f"Give only one transactional id: '{name}' or '{other_name}'.")
    chosen = name or other_name
    if not chosen:
        raise click.UsageError("Give a transactional id, or --transactional-id TRANSACTIONAL_ID.")
    with connect(bootstrap_server, request_timeout_ms) as cluster:
        found = describe_transaction(cluster, chosen)
        if found.state != ONGOING:
            raise ToolError(
                f"transactional id '{chosen}' has no transaction to abort: it is in {found.state}"
            )
        confirm(f"Abort the transaction of {chosen} and fence its producer?")
        fence_producer(cluster, chosen, found.timeout_ms)
    say(
        f"The transaction of {chosen} was aborted, and its producer is fenced.",
        transactional_id=chosen,
        producer_id=found.producer_id,
        partitions=[str(place) for place in sorted(found.partitions)],
    )
