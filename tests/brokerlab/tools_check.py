"""shared/peer/kafka-tools-check.sh runs Apache Kafka's own tools against a broker or cluster, check by
check.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from brokerlab.kafka_jars import PEER

SCRIPT = PEER / "kafka-tools-check.sh"
CHECK_LINE = re.compile(r"^(ok|FAIL|skip)\s+(.+?)\s+rc=(\S+)\s*(.*)$")
CHECK_CALL = re.compile(r"^(?:IN=\S+ |TMO=\d+ )*t (?:'([^']+)'|(\S+)) ")
SHARE_GROUPS = frozenset(
    ("ConfigCommand group share.auto.offset.reset", "ConsoleShareConsumer (KIP-932)", "ShareGroup list")
)
"""The checks of share groups (KIP-932), which tidelog does not serve."""
NEEDS_AUTHORIZER = "AclCommand --list (needs an authorizer)"
OF_ONE_BROKER = frozenset(
    (
        "ConsoleConsumer",
        "ConsoleConsumer group.protocol=consumer",
        "ConsumerGroup --list",
        "ConsumerGroup --describe",
        "ConsumerGroup --reset-offsets",
        "ConsumerGroup --delete-offsets",
        "ConsumerGroup --delete",
        "GroupsCommand",
        "ProducerPerformance txn",
        "ConsumerPerformance",
        "EndToEndLatency",
        "VerifiableConsumer",
        "VerifiableConsumer consumer-protocol",
        "TransactionalMessageCopier",
        "ConsoleConsumer read_committed",
        "TransactionsCommand list",
        "TransactionsCommand describe",
        NEEDS_AUTHORIZER,
    )
)
"""The checks that run only against one broker with an authorizer, because each of them takes seconds. Other
tests use groups and transactions on a cluster.
"""


def script_checks() -> list[str]:
    """Returns the names of the script's checks in order, or nothing if the script is missing (the fixture
    then says so).
    """
    if not SCRIPT.exists():
        return []
    names = [CHECK_CALL.match(line) for line in SCRIPT.read_text().splitlines()]
    return [n[1] or n[2] for n in names if n] + ["DumpLogSegments"]


EXPECTED = [name for name in script_checks() if name not in SHARE_GROUPS]
EXPECTED_OF_CLUSTER = [name for name in EXPECTED if name not in OF_ONE_BROKER]


def run_checks(
    jars: Path,
    work_dir: Path,
    bootstrap: str,
    replication_factor: int,
    log_dir: Path | None = None,
    timeout_s: float = 280,
    expected: Sequence[str] = EXPECTED,
) -> dict[str, tuple[str, str]]:
    """Runs the `expected` checks of the script. Returns check -> (ok|FAIL|skip, its line and its
    output).

    `log_dir` is a broker's directory, for checks that look at its files.
    """
    lines = []
    for line in SCRIPT.read_text().splitlines():
        call = CHECK_CALL.match(line)
        if call is None or (call[1] or call[2]) in expected:
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
