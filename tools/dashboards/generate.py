"""Writes charts/tidelog/dashboards/*.json. With --check, compares the files with what it would write.

python tools/dashboards/generate.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import broker
import cluster
import groups
import kubernetes
import lag
import share_groups
from panels import Dashboard, dashboard_json

TARGET = Path(__file__).resolve().parents[2] / "charts" / "tidelog" / "dashboards"
DASHBOARDS: dict[str, Dashboard] = {
    "cluster": cluster.DASHBOARD,
    "lag": lag.DASHBOARD,
    "broker": broker.DASHBOARD,
    "groups": groups.DASHBOARD,
    "share-groups": share_groups.DASHBOARD,
    "kubernetes": kubernetes.DASHBOARD,
}


def main() -> int:
    wrong = []
    for name, dashboard in DASHBOARDS.items():
        path = TARGET / f"{name}.json"
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
