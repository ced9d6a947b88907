"""Judges the facts about a cluster and its processes. No I/O, no clock.

Each check returns its findings, one finding if all is well.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tidelog.cli.doctor.facts import (
    ClusterFacts,
    EtcdMember,
    Finding,
    Registrations,
    ServiceMetrics,
    State,
    Unseen,
    not_checked,
    shortened,
)
from tidelog.client.admin.brokers import LogDir, partition_bytes
from tidelog.client.admin.groups import ONGOING, SHARE, STREAMS
from tidelog.client.admin.transactions import PartitionProducer
from tidelog.kernel.instants import DAY_MS, HOUR_MS
from tidelog.model.errors import meaning_of
from tidelog.model.text import counted
from tidelog.model.topics import TopicPartition
from tidelog.observe.availability import PartitionView, leaderless, named, out_of_sync
from tidelog.observe.cluster_reader import OpenTransaction
from tidelog.observe.lag import LogOffsets, full_in_ms, growth_of, left_to_read_ms
from tidelog.observe.number_texts import rough_duration, size_text

LEAST_FREE: Final = 0.05
LITTLE_FREE: Final = 0.15
"""The parts of a volume below which its free space is a failure and a warning."""
FORECAST_MS: Final = 30 * DAY_MS
"""A disk that becomes full later than this is not reported: the last hour says little about next month."""
LONG_TRANSACTION_MS: Final = 5 * 60_000
ENDING_MS: Final = 60_000
OWN_SETTINGS: Final = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "broker.rack",
        "controller.listener.names",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
        "tidelog.metrics.listener",
        "tidelog.probes.listener",
        "tidelog.rpc.advertised.listener",
        "tidelog.rpc.listener",
    }
)
"""Settings that belong to one broker."""
_OWN_ENDINGS: Final = (".file", ".location", ".listener")
_NAMED_SETTINGS: Final = 5
SKEW_WARN_MS: Final = 2_000
SKEW_FAIL_MS: Final = 30_000
EXPIRY_WARN_DAYS: Final = 30
EXPIRY_FAIL_DAYS: Final = 3
SLOW_HEALTH_MS: Final = 100.0
FULL_DATABASE: Final = 0.8
LEASE_WARN_S: Final = 10.0
SLOW_FSYNC_MS: Final = 25.0
"""etcd's own advice is a 99th percentile below 10 ms; the next bucket of its histogram ends at 16 ms."""
TOLD_TRANSITIONS: Final = 4
"""The last transitions of an offline replica that a finding tells: a first failure, and the last attempt."""


def findings_of(facts: ClusterFacts, now_s: float) -> list[Finding]:
    """Returns the findings of all checks. `now_s` is in seconds since 1970."""
    return [
        *check_registrations(facts.registrations, facts.live, facts.partitions),
        *check_answers(facts.silent, facts.live),
        *check_partitions(facts.partitions),
        *check_offline_replicas(facts.metrics),
        *check_leaders(facts.partitions),
        *check_settings(facts.settings),
        *check_confirmed(facts.unconfirmed),
        *check_space(facts.log_directories),
        *check_forecast(facts.log_directories, facts.offsets),
        *check_groups(
            facts.committed, facts.offsets, facts.log_directories, facts.unseen_groups, facts.group_types
        ),
        *check_transactions(facts.transactions, facts.hanging),
        *check_clocks(facts.metrics),
        *check_leases(facts.metrics),
        *check_certificates(facts.certificate_expiry_s, facts.metrics, now_s),
        *check_etcd(facts.etcd),
    ]


def check_registrations(
    registrations: Registrations | Unseen, live: Collection[int], partitions: Sequence[PartitionView] | Unseen
) -> list[Finding]:
    """Looks for brokers with replicas that are not registered, and for services without a registration."""
    check = "registrations"
    found: list[Finding] = []
    held = () if isinstance(partitions, Unseen) else partitions
    dead = sorted({broker_id for p in held for broker_id in p.replicas} - set(live))
    for broker_id in dead:
        count = sum(broker_id in partition.replicas for partition in held)
        found.append(
            Finding(
                check,
                State.FAIL,
                f"broker {broker_id} holds {counted(count, 'replica')} and is not registered",
                f"start it, or move its replicas: tidelog rebalance --without {broker_id} --execute",
            )
        )
    if isinstance(registrations, Registrations):
        reported = {f"broker-{broker_id}" for broker_id in dead}
        found += [
            Finding(check, State.FAIL, f"{name} is not registered", "read its log, and start it again")
            for name in registrations.missing
            if name not in reported
        ]
        lone = "is registered without a lease, so nobody would notice its death"
        found += [
            Finding(check, State.FAIL, f"{name} {lone}", "restart it") for name in registrations.without_lease
        ]
    else:
        found.append(not_checked("services", registrations))
    if any(finding.state is not State.UNKNOWN for finding in found):
        return shortened(found)
    text = f"registered: {counted(len(live), 'broker')}; no other broker holds replicas"
    if isinstance(registrations, Registrations):
        text += f"; all {registrations.count} services have leases in etcd"
    return [Finding(check, State.OK, text), *found]


def check_answers(silent: Mapping[int, str], live: Collection[int]) -> list[Finding]:
    """Looks for brokers that are registered and do not answer."""
    check = "answers"
    step = "read the broker's log; if its process hangs, restart it"
    found = [
        Finding(check, State.FAIL, f"broker {broker_id} is registered and does not answer: {reason}", step)
        for broker_id, reason in sorted(silent.items())
    ]
    return shortened(found) or [Finding(check, State.OK, f"all registered brokers answer ({len(live)})")]


def check_partitions(partitions: Sequence[PartitionView] | Unseen) -> list[Finding]:
    """Looks for partitions that are offline, below min.insync.replicas, or not fully in sync."""
    check = "replicas"
    if isinstance(partitions, Unseen):
        return [not_checked(check, partitions)]
    step = "start the missing brokers; 'tidelog topic describe' shows the replicas"
    found: list[Finding] = []
    offline = leaderless(partitions)
    if offline:
        text = f"without a leader, so not usable: {counted(len(offline), 'partition')}, {named(offline)}"
        found.append(Finding(check, State.FAIL, text, step))
    under_min = [p for p in partitions if p.is_under_min_isr and p.leader >= 0]
    if under_min:
        text = f"below min.insync.replicas, so without acks=all: {counted(len(under_min), 'partition')}, "
        found.append(Finding(check, State.FAIL, text + named(under_min), step))
    lacking = [p for p in out_of_sync(partitions) if not p.is_under_min_isr and p.leader >= 0]
    if lacking:
        brokers = sorted({replica for partition in lacking for replica in partition.lacking})
        of_them = f"{counted(len(lacking), 'partition')}, {named(lacking)}"
        text = f"replicas out of sync on brokers {_ids(brokers)}: {of_them}"
        found.append(Finding(check, State.WARN, text, step))
    return found or [
        Finding(check, State.OK, f"all replicas are in sync ({counted(len(partitions), 'partition')})")
    ]


def check_leaders(partitions: Sequence[PartitionView] | Unseen) -> list[Finding]:
    """Looks for leaders that are not the first replica."""
    check = "leaders"
    if isinstance(partitions, Unseen):
        return [not_checked(check, partitions)]
    other = [p for p in partitions if p.leader >= 0 and p.replicas and p.leader != p.replicas[0]]
    if not other:
        return [Finding(check, State.OK, "every leader is the preferred one")]
    electable = sum(partition.replicas[0] in partition.isr for partition in other)
    step = (
        f"'tidelog elect-leaders' makes {electable} of the preferred ones leaders, because they are in sync"
        if electable
        else "wait until the preferred leaders are in sync"
    )
    text = f"not led by the preferred leader: {counted(len(other), 'partition')}, {named(other)}"
    return [Finding(check, State.WARN, text, step)]


def check_settings(settings: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    """Looks for settings that should be the same on all brokers, and are not."""
    check = "settings"
    if not settings:
        return [not_checked(check, Unseen("no broker answers"))]
    names = sorted({name for values in settings.values() for name in values})
    found: list[str] = []
    for name in names:
        if name in OWN_SETTINGS or name.endswith(_OWN_ENDINGS) or name.startswith("listener.name."):
            continue
        values = {broker: held.get(name, "(not set)") for broker, held in sorted(settings.items())}
        if len(set(values.values())) > 1:
            found.append(f"{name} is " + ", ".join(f"{v!r} on {b}" for b, v in values.items()))
    if found:
        more = len(found) - _NAMED_SETTINGS
        text = "; ".join(found[:_NAMED_SETTINGS]) + (f"; and {more} more" if more > 0 else "")
        step = "make them equal in the brokers' files, or with 'tidelog config alter --broker-defaults'"
        return [Finding(check, State.WARN, f"brokers differ: {text}", step)]
    return [
        Finding(
            check, State.OK, f"{len(names)} settings have the same values on all brokers ({len(settings)})"
        )
    ]


def check_confirmed(unconfirmed: Sequence[str] | Unseen) -> list[Finding]:
    """Looks for topics from which nothing is deleted because their settings were lost."""
    check = "topic settings"
    if isinstance(unconfirmed, Unseen):
        return [not_checked(check, unconfirmed)]
    if not unconfirmed:
        return [Finding(check, State.OK, "the settings of all topics are known")]
    text = f"lost, so nothing is deleted: {counted(len(unconfirmed), 'topic')}, {named(unconfirmed)}"
    step = "'tidelog topic confirm-settings' shows what would apply; set what they need, then confirm it"
    return [Finding(check, State.WARN, text, step)]


def check_space(directories: Sequence[LogDir]) -> list[Finding]:
    """Looks for data directories that are offline or nearly full."""
    check = "disk space"
    found: list[Finding] = []
    least: tuple[float, LogDir] | None = None
    for directory in directories:
        place = f"{directory.path} of broker {directory.broker_id}"
        if directory.error:
            step = "repair the disk and restart the broker; 'tidelog doctor DIR' examines its files"
            found.append(
                Finding(check, State.FAIL, f"{place} is offline ({meaning_of(directory.error)})", step)
            )
            continue
        if directory.total_bytes <= 0:
            found.append(
                Finding(check, State.UNKNOWN, f"not checked: the broker does not report the size of {place}")
            )
            continue
        free = directory.usable_bytes / directory.total_bytes
        if least is None or free < least[0]:
            least = (free, directory)
        if free < LITTLE_FREE:
            state = State.FAIL if free < LEAST_FREE else State.WARN
            text = f"{place} has {free:.0%} free ({size_text(directory.usable_bytes)})"
            step = "enlarge the volume, shorten retention.ms, or move replicas with 'tidelog rebalance'"
            found.append(Finding(check, state, text, step))
    if any(finding.state is not State.UNKNOWN for finding in found) or least is None:
        return shortened(found) or [not_checked(check, Unseen("no broker reports a data directory"))]
    fullest = f"{least[1].path} of broker {least[1].broker_id}"
    text = (
        f"the fullest volume is that of {fullest}: {least[0]:.0%} free ({size_text(least[1].usable_bytes)})"
    )
    return [*found, Finding(check, State.OK, text)]


def check_forecast(
    directories: Sequence[LogDir], offsets: Mapping[TopicPartition, LogOffsets] | Unseen
) -> list[Finding]:
    """Forecasts when disks are full, from the records of the last hour and what retention keeps of them."""
    check = "disk forecast"
    if isinstance(offsets, Unseen):
        return [not_checked(check, offsets)]
    found: list[Finding] = []
    looked, total_rate = 0, 0.0
    for directory in directories:
        if directory.error or directory.usable_bytes < 0:
            continue
        looked += 1
        growths = [
            growth_of(offsets[replica.place], replica.size_bytes)
            for replica in directory.replicas
            if replica.place in offsets
        ]
        total_rate += sum(rate for rate, _ in growths)
        full_ms = full_in_ms(directory.usable_bytes, growths)
        if full_ms is not None and full_ms < FORECAST_MS:
            text = (
                f"{directory.path} of broker {directory.broker_id} is full in {rough_duration(full_ms)} "
                "if the topics grow as in the last hour"
            )
            step = "enlarge the volume, shorten retention.ms, or move replicas with 'tidelog rebalance'"
            found.append(Finding(check, State.FAIL if full_ms < DAY_MS else State.WARN, text, step))
    if not looked:
        return [not_checked(check, Unseen("no broker reports the free bytes of its data directory"))]
    if found:
        return shortened(found)
    per_hour = size_text(int(total_rate * HOUR_MS))
    text = (
        f"no disk becomes full within {FORECAST_MS // DAY_MS} days; all replicas of topics with retention "
        f"together grew by {per_hour} an hour"
    )
    return [Finding(check, State.OK, text)]


def check_groups(
    committed: Mapping[str, Mapping[TopicPartition, int]] | Unseen,
    offsets: Mapping[TopicPartition, LogOffsets] | Unseen,
    directories: Sequence[LogDir],
    unseen_groups: Mapping[str, str],
    types: Mapping[str, str],
) -> list[Finding]:
    """Looks for groups whose next records are deleted, or soon will be. `types` are those of the groups."""
    check = "groups"
    if isinstance(committed, Unseen):
        return [not_checked(check, committed)]
    if isinstance(offsets, Unseen):
        return [not_checked(check, offsets)]
    sizes = partition_bytes(directories)
    found = [
        finding
        for group_id, positions in sorted(committed.items())
        for finding in _group_findings(group_id, types.get(group_id, ""), positions, offsets, sizes)
    ]
    found += [
        not_checked(check, Unseen(f"{_named_group(group_id, types.get(group_id, ''))}: {reason}"))
        for group_id, reason in sorted(unseen_groups.items())
    ]
    if any(finding.state is not State.UNKNOWN for finding in found):
        return shortened(found)
    text = f"no group is about to lose records to retention ({counted(len(committed), 'group')})"
    return [Finding(check, State.OK, text), *shortened(found)]


def _named_group(group_id: str, group_type: str) -> str:
    """Returns how a text names a group: with its type, unless it is a group of consumers."""
    return f"{group_type} group {group_id}" if group_type in (SHARE, STREAMS) else f"group {group_id}"


def _group_findings(
    group_id: str,
    group_type: str,
    positions: Mapping[TopicPartition, int],
    offsets: Mapping[TopicPartition, LogOffsets],
    sizes: Mapping[TopicPartition, int],
) -> list[Finding]:
    lost: dict[str, int] = {}
    ageing: dict[str, int] = {}
    for key, position in sorted(positions.items()):
        log = offsets.get(key)
        name = f"{key[0]}-{key[1]}"
        if log is None:
            continue
        if position < log.log_start_offset:
            lost[name] = log.log_start_offset - position
        elif (left_ms := left_to_read_ms(log, position, sizes.get(key, 0))) is not None:
            ageing[name] = left_ms
    found = []
    name = _named_group(group_id, group_type)
    if lost:
        # Members of a share group may have read some of the records after its start offset.
        amount = f"up to {sum(lost.values())}" if group_type == SHARE else str(sum(lost.values()))
        text = f"{name} has lost {amount} records that were deleted before it read them: {named(lost)}"
        step = f"start its members, or accept the loss: they continue at the log start ({group_id})"
        found.append(Finding("groups", State.FAIL, text, step))
    if ageing:
        within = rough_duration(min(ageing.values()))
        text = (
            f"{name} loses records within {within}, because it reads more slowly than retention deletes: "
            f"{named(ageing)}"
        )
        step = "add members, or raise retention.ms of the topics until the group has caught up"
        found.append(Finding("groups", State.WARN, text, step))
    return found


def check_transactions(
    transactions: Sequence[OpenTransaction] | Unseen, hanging: Sequence[PartitionProducer] | Unseen
) -> list[Finding]:
    """Looks for transactions that should have ended, because readers of committed records wait for them.

    Nobody ends a hanging transaction, which its coordinator does not know (KIP-664), but an operator.
    """
    check = "transactions"
    if isinstance(transactions, Unseen):
        return [not_checked(check, transactions)]
    found: list[Finding] = []
    unseen: list[Finding] = []
    if isinstance(hanging, Unseen):
        unseen = [not_checked(check, Unseen(f"hanging transactions: {hanging.reason}", hanging.next_step))]
    else:
        found += [_hanging(producer) for producer in hanging]
    known = [(row.transaction, row.age_ms) for row in transactions if row.age_ms is not None]
    for transaction, age_ms in known:
        age, timeout_ms = rough_duration(age_ms), transaction.timeout_ms
        name, quoted = transaction.transactional_id, shlex.quote(transaction.transactional_id)
        logs = f"read the logs of its coordinator: tidelog transactions describe {quoted}"
        if transaction.state != ONGOING:
            if age_ms > max(ENDING_MS, timeout_ms + ENDING_MS):
                text = f"{name} is in {transaction.state} and was begun {age} ago"
                found.append(Finding(check, State.FAIL, text, logs))
        elif age_ms > timeout_ms + ENDING_MS:
            text = (
                f"{name} has been open for {age}, longer than its timeout of "
                f"{rough_duration(timeout_ms)}, and was not aborted"
            )
            found.append(Finding(check, State.FAIL, text, logs))
        elif age_ms > LONG_TRANSACTION_MS:
            text = f"{name} has been open for {age}; read_committed readers wait for it"
            step = f"read its producer's log, or abort it: tidelog transactions force-terminate {quoted}"
            found.append(Finding(check, State.WARN, text, step))
    if found:
        return shortened([*found, *unseen])
    text = f"no transaction is open for too long ({len(known)} open)"
    return [Finding(check, State.OK, text), *unseen]


def _hanging(producer: PartitionProducer) -> Finding:
    topic, partition = producer.place
    text = (
        f"no coordinator knows the transaction of producer {producer.producer_id} in {producer.place}, which "
        f"is open since offset {producer.start_offset}, so read_committed readers wait"
    )
    step = (
        f"abort it: tidelog transactions abort {topic} --partition {partition} "
        f"--start-offset {producer.start_offset}"
    )
    return Finding("transactions", State.WARN, text, step)


def check_offline_replicas(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Names the replicas whose logs a broker cannot use, each with its last transitions."""
    step = "repair the disk and restart the broker; 'tidelog doctor DIR' examines its files"
    return shortened(
        [
            Finding(
                "replicas",
                State.FAIL,
                f"{replica.topic}-{replica.partition} is offline on broker {broker_id}: "
                + "; ".join(replica.story[-TOLD_TRANSITIONS:]),
                step,
            )
            for broker_id, each in sorted(metrics.items())
            if not isinstance(each, Unseen)
            for replica in each.offline
        ]
    )


def check_clocks(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Compares the brokers' clocks by the `Date` headers of their metrics endpoints."""
    check = "clocks"
    seen = _seen(metrics)
    if isinstance(seen, Unseen):
        return [not_checked(check, seen)]
    ahead = {broker_id: each.clock_ahead_ms for broker_id, each in seen.items()}
    error_ms = max(each.clock_error_ms for each in seen.values())
    first, last = min(ahead, key=lambda b: ahead[b]), max(ahead, key=lambda b: ahead[b])
    accuracy = f"measured to {error_ms / 1000:.1f} s by the Date header of their metrics"
    if len(ahead) == 1:
        skew_ms = abs(ahead[first])
        text = f"the clock of broker {first} and this machine's differ by {skew_ms / 1000:.1f} s, {accuracy}"
    else:
        skew_ms = ahead[last] - ahead[first]
        text = (
            f"the clocks of {len(ahead)} brokers differ by {skew_ms / 1000:.1f} s "
            f"(broker {last} is ahead of {first}), {accuracy}"
        )
    certain_ms = max(0, skew_ms - error_ms)
    silent = _silent(check, metrics)
    if certain_ms < SKEW_WARN_MS:
        return [Finding(check, State.OK, text), *silent]
    state = State.FAIL if certain_ms >= SKEW_FAIL_MS else State.WARN
    return [Finding(check, state, text, "synchronize the clocks (NTP): retention depends on them"), *silent]


def check_leases(metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    """Looks for brokers that have not renewed their lease for a while, or have lost one."""
    check = "leases"
    seen = _seen(metrics)
    if isinstance(seen, Unseen):
        return [not_checked(check, seen)]
    found: list[Finding] = []
    for broker_id, each in sorted(seen.items()):
        if each.lease_age_s is not None and each.lease_age_s > LEASE_WARN_S:
            text = f"broker {broker_id} renewed its lease {each.lease_age_s:.0f} s ago"
            found.append(Finding(check, State.WARN, text, "check etcd and the broker's event loop"))
        if each.lost_leases:
            text = f"broker {broker_id} has lost {each.lost_leases} leases since its start"
            found.append(Finding(check, State.WARN, text, "check etcd's latency and the broker's pauses"))
    if found:
        return shortened(found)
    ages = [each.lease_age_s for each in seen.values() if each.lease_age_s is not None]
    if not ages:
        return [not_checked(check, Unseen("the brokers' metrics have no lease"))]
    brokers = counted(len(ages), "broker")
    text = f"all leases were renewed within {max(ages):.0f} s, and none was lost ({brokers})"
    return [Finding(check, State.OK, text), *_silent(check, metrics)]


def check_certificates(
    expiry_s: Mapping[str, float] | Unseen, metrics: Mapping[int, ServiceMetrics | Unseen], now_s: float
) -> list[Finding]:
    """Looks for certificates that expire soon, those of listeners and those among the services."""
    check = "certificates"
    known: dict[str, float] = {} if isinstance(expiry_s, Unseen) else dict(expiry_s)
    seen = _seen(metrics)
    if not isinstance(seen, Unseen):
        for broker_id, each in seen.items():
            for use, at_s in each.certificate_expiry_s.items():
                known[f"broker {broker_id} ({use})"] = at_s
    if not known:
        return [
            not_checked(
                check, expiry_s if isinstance(expiry_s, Unseen) else Unseen("there is no certificate")
            )
        ]
    found: list[Finding] = []
    for holder, at_s in sorted(known.items(), key=lambda row: row[1]):
        days = (at_s - now_s) / 86_400
        if days < EXPIRY_WARN_DAYS:
            state = State.FAIL if days < EXPIRY_FAIL_DAYS else State.WARN
            when = f"expires in {days:.1f} days" if days >= 0 else f"expired {-days:.1f} days ago"
            step = (
                "renew it; a local cluster: tidelog cluster renew-certificates --data-dir DIR; "
                "a release of the chart: helm upgrade"
            )
            found.append(Finding(check, state, f"the certificate of {holder} {when}", step))
    first = min(known, key=lambda holder: known[holder])
    days = (known[first] - now_s) / 86_400
    text = f"the first certificate to expire is that of {first}, in {days:.0f} days ({len(known)} examined)"
    return shortened(found) or [Finding(check, State.OK, text)]


def check_etcd(members: Sequence[EtcdMember] | Unseen) -> list[Finding]:
    """Judges etcd's health, the time of a read by a quorum, the time of its fsyncs, and its size."""
    check = "etcd"
    if isinstance(members, Unseen):
        return [not_checked(check, members)]
    found: list[Finding] = []
    for member in members:
        if member.problem:
            step = "read etcd's log; without a majority of its servers, nothing can change in the cluster"
            found.append(Finding(check, State.FAIL, f"{member.name}: {member.problem}", step))
            continue
        if member.health_ms > SLOW_HEALTH_MS:
            text = f"{member.name} needs {member.health_ms:.0f} ms for a read by a quorum"
            found.append(Finding(check, State.WARN, text, "give etcd its own, faster disk and enough CPU"))
        if member.fsync_p99_ms is not None and member.fsync_p99_ms > SLOW_FSYNC_MS:
            text = f"{member.name}: 99 % of the fsyncs of its log take up to {member.fsync_p99_ms:.0f} ms"
            found.append(Finding(check, State.WARN, text, "give etcd its own, faster disk"))
        if member.database_bytes and member.quota_bytes:
            used = member.database_bytes / member.quota_bytes
            if used > FULL_DATABASE:
                text = f"{member.name} uses {used:.0%} of its quota of {size_text(member.quota_bytes)}"
                found.append(
                    Finding(check, State.FAIL, text, "compact and defragment etcd, or raise its quota")
                )
    if found:
        return shortened(found)
    slowest = max(member.health_ms for member in members)
    text = f"healthy ({counted(len(members), 'server')}), a read by a quorum takes {slowest:.1f} ms"
    return [Finding(check, State.OK, text)]


def _seen(metrics: Mapping[int, ServiceMetrics | Unseen]) -> dict[int, ServiceMetrics] | Unseen:
    seen = {broker: each for broker, each in metrics.items() if not isinstance(each, Unseen)}
    reasons = [each for each in metrics.values() if isinstance(each, Unseen)]
    return seen or (reasons[0] if reasons else Unseen("there is no broker"))


def _silent(check: str, metrics: Mapping[int, ServiceMetrics | Unseen]) -> list[Finding]:
    return [
        not_checked(check, Unseen(f"broker {broker_id}: {each.reason}", each.next_step))
        for broker_id, each in sorted(metrics.items())
        if isinstance(each, Unseen)
    ]


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))
