"""`tidelog group`: lists, describes and deletes groups, and sets their offsets (kafka-consumer-groups,
kafka-share-groups and kafka-streams-groups).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import click

from tidelog.cli.admin.group_offsets import delete_group_offsets, reset_offsets
from tidelog.cli.output import OutputFormat, Shown, counted, output_format, print_heading, print_table, say
from tidelog.cli.tool_command import (
    ToolCommand,
    asks_first,
    chosen_groups,
    cluster_options,
    confirm,
    connect,
    group_options,
)
from tidelog.client.admin.groups import (
    GROUP_TYPES,
    SHARE,
    STREAMS,
    Group,
    StreamsTask,
    StreamsTasks,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
)
from tidelog.client.admin.offsets import describe_share_offsets
from tidelog.client.cluster import Cluster
from tidelog.observe.cluster_reader import ClusterReader, uncommitted_count
from tidelog.observe.lag import beyond_end_count, total_of
from tidelog.process.command_help import SuggestingGroup

_STATES = click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Show only groups in this state. Repeatable."
)
_TYPES = click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(GROUP_TYPES),
    help="Show only groups of this type. Repeatable.",
)
_ALL_GROUPS = click.option("--all-groups", is_flag=True, help="All groups of the cluster.")


def _all_groups(cluster: Cluster) -> tuple[str, ...]:
    return tuple(group.group_id for group in list_groups(cluster, [], []))


@click.group(cls=SuggestingGroup)
def command() -> None:
    """List, describe and delete groups of all types, and set their offsets."""


command.add_command(reset_offsets)
command.add_command(delete_group_offsets)


@command.command(
    "list",
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog group list", "tidelog group list --state stable --type consumer"),
)
@_STATES
@_TYPES
@cluster_options
def list_them(states: tuple[str, ...], types: tuple[str, ...]) -> None:
    """List groups with their types and states."""
    with connect() as cluster:
        groups = list_groups(cluster, list(states), list(types))
    print_table(
        ("group", "type", "protocol type", "state"),
        [(group.group_id, group.group_type, group.protocol_type, group.state) for group in groups],
    )


@command.command(
    "describe",
    cls=ToolCommand,
    is_watchable=True,
    examples=("tidelog group describe readers", "tidelog group describe --all-groups --members"),
)
@group_options
@_ALL_GROUPS
@click.option("--members", is_flag=True, help="Show members and their partitions instead of offsets.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="Show the lag of readers with this level. By default, both are shown if they differ.",
)
@cluster_options
def describe(all_groups: bool, members: bool, isolation_level: str | None) -> None:
    """Show the committed offsets and lag of groups, or their members.

    The lag is the number of records up to the high watermark. The "stable lag" of readers with
    isolation.level=read_committed ends at the last stable offset: the first open transaction. A committed
    offset beyond the end of the log has a negative lag. The totals leave out such partitions and those
    without a committed offset; the heading states the number of both.

    A share group has start offsets instead: those of the first records whose delivery is not complete. Its
    lag is the number of records whose delivery is not complete, for all isolation levels.
    """
    chosen = chosen_groups(all_groups=all_groups)
    with connect() as cluster:
        for name in chosen or _all_groups(cluster):
            group = describe_group(cluster, name)
            offsets = None if members else _offsets_of(cluster, group, isolation_level)
            _print_group(group, offsets)
            if offsets is None:
                _print_members(group)
            else:
                print_table(offsets.columns, offsets.rows, name="partitions")


class _Offsets(NamedTuple):
    """The table of a group's offsets. `totals` has the sum of each column of lags that it shows. The totals
    leave out `uncommitted` partitions, which have no committed offset, and those that are committed
    `beyond_end` of the log.
    """

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    totals: dict[str, int | None]
    uncommitted: int | None = None
    beyond_end: int | None = None


def _offsets_of(cluster: Cluster, group: Group, isolation_level: str | None) -> _Offsets:
    if group.group_type == SHARE:
        return _share_offsets(cluster, group)
    return _committed_offsets(cluster, group, isolation_level)


def _print_group(group: Group, offsets: _Offsets | None) -> None:
    totals = {} if offsets is None else offsets.totals
    texts = [group.group_type, group.state]
    if group.epoch is not None:
        texts.append(f"epoch {group.epoch}")
    if group.assignor:
        texts.append(group.assignor)
    texts += [f"coordinator {group.coordinator_id}", counted(len(group.members), "member")]
    texts += [f"total {name} {total}" for name, total in totals.items() if total is not None]
    counts: dict[str, int | None] = {}
    if offsets is not None and offsets.uncommitted is not None:
        counts["uncommitted_partition_count"] = offsets.uncommitted
        counts["beyond_end_partition_count"] = offsets.beyond_end
    if offsets is not None and offsets.uncommitted:
        texts.append(f"{counted(offsets.uncommitted, 'partition')} without a commit (not in the total)")
    if offsets is not None and offsets.beyond_end:
        texts.append(f"{counted(offsets.beyond_end, 'partition')} committed beyond the end")
    print_heading(
        group.group_id,
        f"  {', '.join(texts)}",
        group=group.group_id,
        type=group.group_type,
        state=group.state,
        epoch=group.epoch,
        assignor=group.assignor or None,
        coordinator=group.coordinator_id,
        member_count=len(group.members),
        **{f"total_{name.replace(' ', '_')}": total for name, total in totals.items()},
        **counts,
    )


def _print_members(group: Group) -> None:
    columns: tuple[str, ...] = ("member", "instance", "client", "host", "#partitions", "assignment")
    if group.group_type == STREAMS:
        columns += ("active tasks", "standby tasks", "warmup tasks")
    rows: list[tuple[object, ...]] = []
    for member in group.members:
        places = sorted(member.partitions)
        shown = Shown(
            " ".join(f"{topic}-{partition}" for topic, partition in places),
            [each._asdict() for each in places],
        )
        row = (member.member_id, member.instance_id, member.client_id, member.host, len(places), shown)
        rows.append((*row, *_shown_tasks(member.tasks)) if group.group_type == STREAMS else row)
    print_table(columns, rows, name="members")


def _shown_tasks(tasks: StreamsTasks | None) -> tuple[Shown, Shown, Shown]:
    def shown(found: Iterable[StreamsTask]) -> Shown:
        return Shown(" ".join(map(str, found)), [task._asdict() for task in found])

    found = tasks or StreamsTasks((), (), ())
    return shown(found.active), shown(found.standby), shown(found.warmup)


def _share_offsets(cluster: Cluster, group: Group) -> _Offsets:
    offsets = describe_share_offsets(cluster, group.group_id)
    owners = Counter(place for member in group.members for place in member.partitions)
    rows: list[tuple[object, ...]] = []
    for place in sorted({*offsets, *owners}):
        found = offsets.get(place)
        start_offset, lag = (None, None) if found is None else (found.start_offset, found.lag)
        rows.append((*place, start_offset, lag, owners[place]))
    columns = ("topic", "#partition", "#start offset", "#lag", "#members|member_count")
    return _Offsets(columns, rows, {"lag": total_of(found.lag for found in offsets.values())})


def _committed_offsets(cluster: Cluster, group: Group, isolation_level: str | None) -> _Offsets:
    committed = committed_offsets(cluster, group.group_id)
    owners = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    topics = cluster.topics(sorted({partition.topic for partition in partitions}))
    ends = ClusterReader(cluster).log_ends(topics.values())
    lags = {place: ends.lag_of(place, committed.get(place)) for place in partitions}
    is_stable_only = isolation_level == "read_committed"
    # Programs always get both, so that the keys do not depend on open transactions.
    shows_both = isolation_level is None and (
        output_format() is OutputFormat.JSON or any(lag.depends_on_isolation for lag in lags.values())
    )
    rows: list[tuple[object, ...]] = []
    for place, lag in lags.items():
        owner = owners.get(place)
        plain = (lag.high_watermark, lag.lag)
        of_stable = (lag.last_stable_offset, lag.stable_lag)
        offsets = plain + of_stable if shows_both else of_stable if is_stable_only else plain
        rows.append((*place, lag.committed, *offsets, owner and owner.member_id, owner and owner.host))
    columns: tuple[str, ...] = ("#log end", "#lag")
    totals = {"lag": total_of(lag.lag for lag in lags.values())}
    of_stable_readers = {"stable lag": total_of(lag.stable_lag for lag in lags.values())}
    if is_stable_only:
        columns, totals = ("#last stable", "#stable lag"), of_stable_readers
    if shows_both:
        columns += ("#last stable", "#stable lag")
        totals |= of_stable_readers
    return _Offsets(
        ("topic", "#partition", "#committed", *columns, "member", "host"),
        rows,
        totals,
        uncommitted_count(topics, committed, owners),
        beyond_end_count(lag.lag for lag in lags.values()),
    )


@command.command("delete", cls=ToolCommand, examples=("tidelog group delete readers",))
@group_options
@_ALL_GROUPS
@asks_first
@cluster_options
def delete(all_groups: bool) -> None:
    """Delete groups and their offsets. The groups must have no members.

    On a terminal, it asks first.
    """
    chosen = chosen_groups(all_groups=all_groups)
    with connect() as cluster:
        found = chosen or _all_groups(cluster)
        if found:
            which = f"group {found[0]}" if len(found) == 1 else counted(len(found), "group")
            confirm(f"Delete {which} and all committed offsets?")
        for name in found:
            delete_group(cluster, name)
            say(f"Group {name} deleted.", is_one_of_many=True, group=name)
