"""Tests the chart on a real Kubernetes (`make e2e`).

    python -m e2e            everything: install, clients, kills of every pod, upgrade and rollback, chaos
    python -m e2e --short    what CI always runs: install, helm test, clients, three pod kills
    python -m e2e --turn 7   prints the longer suites, beginning with the seventh, counted round and round
    python -m e2e --only pipeline    one suite, on a release of this version

It uses the cluster of KUBECONFIG if that is set; its nodes must have the images (--tag, --previous-tag).
Otherwise it uses the lab of ../shared/k8s-lab, with images made from this checkout, and stops a lab that it
started. It exits with 77 and `NOT RUN: ...` if no lab is available.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

from e2e import settings
from e2e.lab import ROOT, Lab, LabUnavailableError
from e2e.outcome import Outcome

SUITES: Final = Path(__file__).parent / "suites"
NOT_RUN: Final = 77
SHORT: Final = ("test_install.py", "test_clients.py", "test_pod_kills.py")
PIPELINE: Final = "test_pipeline.py"
UPGRADE: Final = "test_upgrade.py"
LONG_TESTS: Final = "every_pod"
FULL: Final = (
    UPGRADE,
    *SHORT,
    "test_scaling.py",
    "test_secure_move.py",
    PIPELINE,
    "test_chaos.py",
    "test_lab_alerts.py",
)
IN_TURN: Final = tuple(name for name in FULL if name not in ("test_install.py", "test_clients.py"))
"""The suites that --short leaves out, or runs without its long tests."""
OLDER: Final = ("HEAD~40", "HEAD~15", "HEAD~5", "HEAD")
"""The commit to look for a previous version in, as long as no tag has the chart."""


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.turn is not None:
        sys.stdout.write(f"{' '.join(suites_in_turn(arguments.turn))}\n")
        return 0
    from_previous = UPGRADE in _suites(arguments)
    arguments.previous = (arguments.previous or _previous_revision()) if from_previous else ""
    signal.signal(signal.SIGTERM, _interrupted)  # stops what was started then, too
    began_s = time.monotonic()
    lab = Lab()
    try:
        if not os.environ.get("KUBECONFIG"):
            try:
                lab.up()
            except LabUnavailableError as reason:
                sys.stdout.write(f"NOT RUN: e2e on a real cluster: {reason}\n")
                return NOT_RUN
            os.environ.update(lab.environment)
            sys.stdout.write(f"the lab is up after {time.monotonic() - began_s:.0f} s\n")
            if not arguments.keep_images:
                lab.load_images(arguments.tag, "HEAD")
                if from_previous:
                    lab.load_images(arguments.previous_tag, arguments.previous)
                if PIPELINE in _suites(arguments):
                    lab.load_spark_image(arguments.tag, "HEAD")
        return _run(arguments, began_s)
    finally:
        if not arguments.keep_lab:
            lab.down()


def _run(arguments: argparse.Namespace, began_s: float) -> int:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "outcome.json"
        os.environ[settings.OUTCOME] = str(file)
        os.environ[settings.TAG] = arguments.tag
        os.environ[settings.PREVIOUS_TAG] = arguments.previous_tag
        os.environ[settings.NAMESPACE] = arguments.namespace
        os.environ[settings.SLOWNESS] = str(arguments.slowness)
        suites = [str(SUITES / name) for name in _suites(arguments)]
        options = ["-rfE", "-s", "-p", "no:cacheprovider", "--timeout=3600", "--override-ini=addopts="]
        if arguments.previous:
            previous = Path(directory) / "previous"
            _export(arguments.previous, previous)
            os.environ[settings.PREVIOUS_ROOT] = str(previous)
            sys.stdout.write(f"the previous version is that of {arguments.previous}\n")
        if arguments.short:
            options += ["-x", "-k", f"not {LONG_TESTS}"]
        failed = pytest.main(
            [*options, "--strict-markers", "--import-mode=importlib", *suites, *arguments.pytest]
        )
        outcome = Outcome.load(file)
    for name, value in outcome.figures.items():
        sys.stdout.write(f"{name}: {value:.1f}\n")
    sys.stdout.write(f"{outcome.line()} ({time.monotonic() - began_s:.0f} s)\n")
    return int(failed)


def suites_in_turn(number: int) -> list[str]:
    """Returns the suites IN_TURN as --only takes them, beginning with the one whose turn it is."""
    names = [name.removeprefix("test_").removesuffix(".py") for name in IN_TURN]
    first = number % len(names)
    return names[first:] + names[:first]


def _suites(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.only:
        return (f"test_{arguments.only}.py",)
    return SHORT if arguments.short else FULL


def _previous_revision() -> str:
    """Returns the newest release that has the chart, or an older commit that has it."""
    tags = _git("tag", "--merged", "HEAD", "--sort=-creatordate").stdout.decode().split()
    for revision in (*tags, *OLDER):
        needed = ("charts/tidelog/templates/roll", "deploy/helm/lab.yaml")
        if all(_git("cat-file", "-e", f"{revision}:{path}").returncode == 0 for path in needed):
            return revision
    raise SystemExit("no revision has the chart")


def _export(revision: str, directory: Path) -> None:
    """Exports chart and values of that revision."""
    archive = _git("archive", revision, "charts", "deploy/helm")
    if archive.returncode:
        raise SystemExit(f"git archive {revision}: {archive.stderr.decode()}")
    directory.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="e2e", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="run what CI runs")
    parser.add_argument("--only", default="", metavar="SUITE", help="run one suite, such as pipeline")
    parser.add_argument(
        "--turn",
        type=int,
        metavar="N",
        help="only print the suites that --short leaves out, beginning with the N-th in turn",
    )
    parser.add_argument("--keep-lab", action="store_true", help="keep a lab that was started")
    parser.add_argument("--keep-images", action="store_true", help="use the loaded images")
    parser.add_argument("--tag", default="dev", help="tag of the image localhost/tidelog")
    parser.add_argument(
        "--previous-tag", default="previous", help="tag of the image from which the release is upgraded"
    )
    parser.add_argument(
        "--previous", default="", help="revision of that image; by default, the newest release"
    )
    parser.add_argument("--namespace", default="tidelog-e2e")
    parser.add_argument(
        "--slowness", type=float, default=3.0 if os.environ.get("CI") else 1.0, help="factor for time limits"
    )
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest")
    return parser


if __name__ == "__main__":
    sys.exit(main())
