"""Processes with members of a group, and descriptions of the group by the broker."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.cluster import BrokerConnection
from tidelog.client.errors import ClientError
from tidelog.wire.codec import record_codec
from tidelog.wire.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.records.consumer_protocol_assignment import ConsumerProtocolAssignment

SCRIPT = Path(__file__).with_name("member_process.py")
WAIT_S = 60.0


class MemberProcess:
    """A process with `members` consumers, whose output is read continuously."""

    def __init__(self, bootstrap: str, group: str, topic: str, members: int = 1, **settings: str) -> None:
        command = [sys.executable, str(SCRIPT), "--bootstrap", bootstrap, "--group", group]
        command += ["--topic", topic, "--members", str(members)]
        for name, value in settings.items():
            command += ["--set", f"{name.replace('_', '.')}={value}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.owned: list[set[tuple[str, int]]] = [set() for _ in range(members)]
        self.read: list[tuple[int, int]] = []
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._follow, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _follow(self, output: IO[str]) -> None:
        for line in output:
            word, number, rest = line.rstrip().split(" ", 2)
            if word == "read":
                partition, offset = rest.split()
                self.read.append((int(partition), int(offset)))
                continue
            partitions = {(topic, partition) for topic, partition in json.loads(rest)}
            if word == "assigned":
                self.owned[int(number)] |= partitions
            else:
                self.owned[int(number)] -= partitions

    def stop(self) -> None:
        """Stops the process cleanly, so that its members leave the group."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)


def describe(bootstrap: str, group: str) -> DescribedGroup:
    """Returns the group's description by its current coordinator; without a state if there is none."""
    try:
        coordinator = _find_coordinator(parse_bootstrap(bootstrap)[0], group)
        with BrokerConnection.open(coordinator) as broker:
            request = DescribeGroupsRequest(groups=[group])
            return broker.call(request, DescribeGroupsResponse, at_most=5).groups[0]
    except ClientError as error:
        return DescribedGroup(group_id=group, group_state="", error_message=str(error))


def _find_coordinator(address: Address, group: str) -> Address:
    with BrokerConnection.open(address) as broker:
        request = FindCoordinatorRequest(coordinator_keys=[group])
        found = broker.call(request, FindCoordinatorResponse, at_least=4).coordinators[0]
    if found.error_code:
        raise ClientError(f"no coordinator of {group}: error {found.error_code}")
    return Address(found.host, found.port)


def assignments(described: DescribedGroup) -> dict[str, set[tuple[str, int]]]:
    """Returns each member's partitions, as the description of a stable group contains them."""
    codec = record_codec(ConsumerProtocolAssignment)
    return {
        member.member_id: {
            (topic.topic, partition)
            for topic in codec.decode(member.member_assignment, newer_as_newest=True).assigned_partitions
            for partition in topic.partitions
        }
        for member in described.members
    }


def await_stable(bootstrap: str, group: str, members: int, timeout_s: float = WAIT_S) -> DescribedGroup:
    """Waits for a stable group with this number of members."""
    last: list[DescribedGroup] = []

    def is_stable() -> bool:
        last[:] = [describe(bootstrap, group)]
        return last[0].group_state == "Stable" and len(last[0].members) == members

    try:
        await_true(is_stable, timeout_s)
    except TimeoutError:
        found = last[0]
        raise TimeoutError(
            f"{group} has {len(found.members)} members in state {found.group_state!r} "
            f"(error {found.error_code}: {found.error_message}), not {members}, stable"
        ) from None
    return last[0]


def await_true(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)
