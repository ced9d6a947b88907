"""shared/peer/kafka-tools-check.sh runs Apache Kafka's own tools against a broker or cluster, check by
check.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from brokerlab.kafka_jars import PEER

SCRIPT = PEER / "kafka-tools-check.sh"
CHECK_LINE = re.compile(r"^(ok|FAIL|skip)\s+(.+?)\s+rc=(\S+)\s*(.*)$")
CHECK_CALL = re.compile(r"^(?:IN=\S+ |TMO=\d+ )*t (?:'([^']+)'|(\S+)) ")
NEEDS_GROUPS = "groups come with the group coordinator"
NEEDS_TRANSACTIONS = "transactions come with the transaction coordinator"
NOT_YET = {
    "ConsoleConsumer": NEEDS_GROUPS,
    "ConsoleConsumer group.protocol=consumer": NEEDS_GROUPS,
    "ConsumerGroup --list": NEEDS_GROUPS,
    "ConsumerGroup --describe": NEEDS_GROUPS,
    "ConsumerGroup --reset-offsets": NEEDS_GROUPS,
    "ConsumerGroup --delete-offsets": NEEDS_GROUPS,
    "ConsumerGroup --delete": NEEDS_GROUPS,
    "GroupsCommand": NEEDS_GROUPS,
    "ProducerPerformance txn": NEEDS_TRANSACTIONS,
    "ConsumerPerformance": NEEDS_GROUPS,
    "EndToEndLatency": NEEDS_GROUPS,
    "VerifiableConsumer": NEEDS_GROUPS,
    "VerifiableConsumer consumer-protocol": NEEDS_GROUPS,
    "TransactionalMessageCopier": NEEDS_TRANSACTIONS,
    "ConsoleConsumer read_committed": NEEDS_TRANSACTIONS,
    "TransactionsCommand list": NEEDS_TRANSACTIONS,
    "TransactionsCommand describe": NEEDS_TRANSACTIONS,
    "ConfigCommand group share.auto.offset.reset": "share groups come later",
    "ConsoleShareConsumer (KIP-932)": "share groups come later",
    "ShareGroup list": "share groups come later",
    "AclCommand --list (needs an authorizer)": "the broker has no authorizer; test_acl_tools.py runs it",
}
"""Checks that this broker cannot pass yet, which are not run. Later issues shorten the list."""


def script_checks() -> list[str]:
    """Returns the names of the script's checks in order, or nothing if the script is missing (the fixture
    then says so).
    """
    if not SCRIPT.exists():
        return []
    names = [CHECK_CALL.match(line) for line in SCRIPT.read_text().splitlines()]
    return [n[1] or n[2] for n in names if n] + ["DumpLogSegments"]


EXPECTED = [name for name in script_checks() if name not in NOT_YET]


def run_checks(
    jars: Path,
    work_dir: Path,
    bootstrap: str,
    replication_factor: int,
    log_dir: Path | None = None,
    timeout_s: float = 280,
) -> dict[str, tuple[str, str]]:
    """Runs the script once without the checks of NOT_YET. Returns check -> (ok|FAIL|skip, its line and its
    output).

    `log_dir` is a broker's directory, for checks that look at its files.
    """
    lines = []
    for line in SCRIPT.read_text().splitlines():
        call = CHECK_CALL.match(line)
        if call is None or (call[1] or call[2]) not in NOT_YET:
            lines.append(line)
    script = work_dir / SCRIPT.name
    script.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "LIBS": str(jars)}
    if log_dir is not None:
        environment["DATA_DIR"] = str(log_dir)
    done = subprocess.run(
        ["bash", str(script), bootstrap, str(replication_factor)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in done.stdout.splitlines():
        match = CHECK_LINE.match(line)
        if match:
            name = match[2]
            found[name] = (match[1], line)
        elif name:
            found[name] = (found[name][0], f"{found[name][1]}\n{line}")
    return found
