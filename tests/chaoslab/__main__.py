"""Runs chaos experiments on an installed release: `python -m chaoslab --namespace N --release R --bootstrap
B`.

    python -m chaoslab ... --experiments kill-leader,kill-etcd     these, in this order
    python -m chaoslab ... --kills 30                              all kinds, repeated until 30 kills

The last line gives kills, anomalies and the longest gap. The exit code is 0 if there is no anomaly and every
experiment completed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chaoslab.report import PAGE_FILE, is_good, line
from chaoslab.run import EXPERIMENTS, RunPlan, run, say

KILLS = {
    "rolling-kills": 8,
    "kill-leader": 1,
    "kill-coordinator": 1,
    "kill-two": 2,
    "kill-controller": 1,
    "kill-follower": 1,
    "kill-etcd": 1,
    "kill-standby-controller": 1,
}
"""The number of pods that each experiment kills on a release of 3 brokers, 2 controllers, 2 coordinators and
1 etcd member.
"""
OTHERS = (
    "freeze-leader",
    "freeze-coordinator",
    "freeze-controller",
    "partition-brokers",
    "partition-etcd",
    "delete-claim",
    "full-volume",
    "etcd-away",
    "upgrade",
    "scale-3-5-3",
)


LONG = ("etcd-away", "upgrade", "scale-3-5-3")
"""Experiments that take minutes, so they come last."""


def schedule(kills: int, others: tuple[str, ...] = OTHERS) -> list[str]:
    """Returns experiments with at least that many kills in total, and the other kinds once each, in between
    or at the end.
    """
    names: list[str] = []
    rest = [name for name in others if name not in LONG]
    done = 0
    while done < kills:
        for name, count in KILLS.items():
            if done >= kills:
                break
            if name == "rolling-kills" and done:
                continue
            names.append(name)
            done += count
            if rest:
                names.append(rest.pop(0))
    return names + rest + [name for name in others if name in LONG]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="chaoslab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--release", required=True)
    parser.add_argument("--bootstrap", required=True, help="brokers' addresses for clients on this machine")
    parser.add_argument("--directory", type=Path, default=Path("build/chaos"), help="directory of the report")
    parser.add_argument("--experiments", default="", help="names of experiments, separated by commas")
    parser.add_argument("--without", default="", help="kinds to omit")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--records-per-s", type=float, default=200)
    parser.add_argument("--title", default="Chaos run")
    options = parser.parse_args()
    left_out = options.without.split(",")
    others = tuple(name for name in OTHERS if name not in left_out)
    names = options.experiments.split(",") if options.experiments else schedule(options.kills, others)
    missing = [name for name in names if not (EXPERIMENTS / f"{name}.yaml").exists()]
    if missing:
        parser.error(f"no such experiment: {', '.join(missing)}")
    plan = RunPlan(
        options.namespace,
        options.release,
        options.bootstrap,
        names,
        title=options.title,
        records_per_s=options.records_per_s,
    )
    report = run(plan, options.directory)
    for anomaly in report["anomalies"][:10]:
        say(f"{anomaly['kind']}: {anomaly}")
    for complaint in (*report["complaints"], *report["unread"]):
        say(complaint)
    say(f"report: {options.directory / PAGE_FILE}")
    print(line(report), flush=True)
    return 0 if is_good(report) else 1


if __name__ == "__main__":
    sys.exit(main())
