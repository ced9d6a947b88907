"""Kills and freezes processes of a cluster on this machine under the load of chaos runs.

Then it judges the history.

PYTHONPATH=services:tests python -m chaoslab.processes --seconds 120 [--seed 1] [--broken NAME]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chaoslab.broken import BROKEN, planted
from chaoslab.checker import judge, permitted
from chaoslab.load import ChaosLoad, ChaosPlan
from chaoslab.load_process import HISTORY_FILE
from clusterlab.tidelog_cluster import TidelogCluster

SETTINGS = {
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
VICTIMS = [
    *(f"broker-{number}" for number in (1, 2, 3)),
    *(f"coordinator-{number}" for number in (1, 2)),
    *(f"controller-{number}" for number in (1, 2)),
]
RECOVERY_S = 60.0
CALM_S = 3.0
"""The pause between a recovery and the next fault."""
FREEZE_SHARE = 0.4
FREEZE_S = 5.5
"""Producers repeat a request after 5 s, so a frozen leader gets both when it continues."""


def trouble(cluster: TidelogCluster, load: ChaosLoad, seconds: float, chance: random.Random) -> Counter[str]:
    """Kills a process and starts it again, or freezes it, until the time is over. Returns the numbers of the
    faults.
    """
    faults: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        victim = chance.choice(VICTIMS)
        role = victim.split("-")[0]
        if chance.random() < FREEZE_SHARE:
            cluster.signal(victim, signal.SIGSTOP)
            time.sleep(FREEZE_S)
            cluster.signal(victim, signal.SIGCONT)
            faults[f"freeze {role}"] += 1
        else:
            cluster.kill(victim)
            cluster.start(victim)
            faults[f"kill {role}"] += 1
        load.await_acknowledged(RECOVERY_S)
        time.sleep(CALM_S)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaoslab.processes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--broken", choices=sorted(BROKEN), help="plant this fault in tidelog first")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    coordinators = ["--coordinators", "2"]
    cluster = TidelogCluster(directory / "cluster", settings=SETTINGS, options=coordinators)
    try:
        with planted(options.broken, directory / "planted"):
            cluster.up()
        plan = ChaosPlan(records_per_s=100, churn_s=8.0, transaction_pause_s=0.1, seed=options.seed)
        with ChaosLoad(cluster.bootstrap, plan, directory / "load") as load:
            load.await_acknowledged(RECOVERY_S)
            faults = trouble(cluster, load, options.seconds, random.Random(options.seed))
    finally:
        cluster.destroy()
    history = load.history
    history.save(directory / HISTORY_FILE)
    verdict = judge(history)
    found = Counter(anomaly.kind for anomaly in permitted(history))
    print(
        f"seed {options.seed}: {faults.total()} faults {dict(faults)};"
        f" {len(history.reads)} transactional reads"
    )
    print(f"{verdict}\npermitted: {dict(found)}; history: {directory / HISTORY_FILE}")
    problems = [*load.complaints, *(f"not read to its end: {name}" for name in load.unread)]
    print("\n".join(problems), end="")
    return 0 if verdict.is_sound and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
