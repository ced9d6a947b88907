"""Runs the load as a process: `python -m chaoslab.load_process --bootstrap B --directory D`.

It runs until SIGTERM or SIGINT, or for `--seconds`. Then it reads everything, judges the history (unless
another process will), and writes `history.jsonl.gz` and `verdict.json` beside the samples. The exit code is 0
if there is no anomaly.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from brokerlab.command_config import secure_from_environment
from chaoslab.checker import Verdict, judge
from chaoslab.load import ChaosLoad, ChaosPlan

HISTORY_FILE, VERDICT_FILE = "history.jsonl.gz", "verdict.json"
FIRST_ACKNOWLEDGED_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument(
        "--prefix",
        default="chaos",
        help="prefix of topics, groups and transactional ids; by default, a new one",
    )
    parser.add_argument("--records-per-s", type=float, default=200)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--min-insync-replicas", type=int, default=2)
    parser.add_argument("--no-verdict", action="store_true", help="do not judge the history")
    parser.add_argument("--seconds", type=float, default=None)
    options = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    options.directory.mkdir(parents=True, exist_ok=True)
    plan = ChaosPlan(
        prefix=options.prefix,
        records_per_s=options.records_per_s,
        replicas=options.replicas,
        min_insync_replicas=options.min_insync_replicas,
    )
    secure_from_environment(options.bootstrap)
    load = ChaosLoad(options.bootstrap, plan, options.directory)
    with load:
        load.await_acknowledged(FIRST_ACKNOWLEDGED_S)
        print("ready", flush=True)
        over.wait(options.seconds)
    load.history.save(options.directory / HISTORY_FILE)
    verdict = Verdict((), {}) if options.no_verdict else judge(load.history)
    write_verdict(options.directory / VERDICT_FILE, verdict, load)
    if not options.no_verdict:
        print(verdict, flush=True)
    return 0 if verdict.is_sound and not load.complaints and not load.unread else 1


def write_verdict(path: Path, verdict: Verdict, load: ChaosLoad) -> None:
    found = {
        "anomalies": [anomaly._asdict() for anomaly in verdict.anomalies],
        "counts": dict(verdict.counts),
        "complaints": load.complaints,
        "unread": load.unread,
    }
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
