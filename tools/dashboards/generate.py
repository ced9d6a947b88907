"""Writes charts/tidelog/dashboards/*.json and docs/dashboards/dev.json. With --check, compares the files with
what it would write.

python tools/dashboards/generate.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import broker
import cluster
import dev
import groups
import kubernetes
import lag
import share_groups
from panels import Dashboard, dashboard_json

ROOT = Path(__file__).resolve().parents[2]
OF_THE_CHART = ROOT / "charts" / "tidelog" / "dashboards"
OUTSIDE_THE_CHART = ROOT / "docs" / "dashboards"
DASHBOARDS: dict[str, Dashboard] = {
    "cluster": cluster.DASHBOARD,
    "lag": lag.DASHBOARD,
    "broker": broker.DASHBOARD,
    "groups": groups.DASHBOARD,
    "share-groups": share_groups.DASHBOARD,
    "kubernetes": kubernetes.DASHBOARD,
}
DEV: dict[str, Dashboard] = {"dev": dev.DASHBOARD}
"""The dashboards of processes that the chart does not install."""


def main() -> int:
    wrong = []
    targets = [(OF_THE_CHART / f"{name}.json", dashboard) for name, dashboard in DASHBOARDS.items()]
    targets += [(OUTSIDE_THE_CHART / f"{name}.json", dashboard) for name, dashboard in DEV.items()]
    for path, dashboard in targets:
        text = json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"
        if path.exists() and path.read_text() == text:
            continue
        wrong.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if wrong and "--check" in sys.argv:
        sys.stderr.write(f"not what tools/dashboards makes: {', '.join(wrong)}; run it and commit\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
