#!/usr/bin/env python3
"""Measures thousands of partitions with three replicas on three brokers: the time to create them, the time
until other brokers lead after a kill, and the cost of the idle brokers. Prints a table.

    python tests/bench/many_partitions.py [--partitions 2000] [--topics 20]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from clusterlab.many_partitions import Limits, measure
from clusterlab.tidelog_cluster import TidelogCluster


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=2000, help="number of all partitions")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--idle-seconds", type=float, default=20)
    options = parser.parse_args()
    limits = Limits()
    table = Table(title=f"{options.partitions} partitions, 3 replicas, 3 brokers")
    for heading in ("measure", "value", "limit", "reached"):
        table.add_column(heading)
    with tempfile.TemporaryDirectory(prefix="tidelog-many-") as directory:
        cluster = TidelogCluster(Path(directory) / "data")
        try:
            cluster.up()
            found = measure(cluster, options.partitions, options.topics, options.idle_seconds)
        finally:
            cluster.destroy()
    for row in found.rows(limits):
        table.add_row(*row.cells, style=None if row.is_reached else "red")
    Console(highlight=False).print(table)
    return 0 if all(row.is_reached for row in found.rows(limits)) else 1


if __name__ == "__main__":
    sys.exit(main())
