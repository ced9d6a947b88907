"""Fixtures that run helm on the chart. Without helm, the tests are skipped."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts/tidelog"
HELM_TIMEOUT_S = 60
KUBERNETES_VERSION = "1.34.0"
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]


@pytest.fixture(scope="session")
def helm() -> str:
    places = [
        str(Path(place).expanduser()) for place in ("~/.cache/tidelog/tools/bin", "~/.cache/k8s-lab/bin")
    ]
    found = shutil.which("helm", path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip("helm is not installed: make kube-tools")
    return found


@pytest.fixture(scope="session")
def render(helm: str) -> Render:
    """`render("NAME=VALUE", ...)` returns the chart's manifests. Assignments are --set options."""
    # yaml belongs to the extra `lab`. Without it, pytest skips the tests here but still loads this file.
    import yaml

    @functools.cache
    def rendered(*assignments: str) -> list[Manifest]:
        options = [option for assignment in assignments for option in ("--set", assignment)]
        done = subprocess.run(
            [helm, "template", "t", str(CHART), "--kube-version", KUBERNETES_VERSION, *options],
            capture_output=True,
            text=True,
            timeout=HELM_TIMEOUT_S,
            check=True,
        )
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    return rendered
