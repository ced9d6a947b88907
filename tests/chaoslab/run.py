"""A chaos run: the load as a process, experiments of deploy/chaos one after the other, and the report."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaoslab.report import EVENTS_FILE, write_report

ROOT = Path(__file__).resolve().parents[2]
CHAOS = ROOT / "deploy/chaos"
EXPERIMENTS = CHAOS / "experiments"
READY_S = 120.0
FINISH_S = 900.0
CALM_S = 3.0
"""The pause between experiments, so that the pictures show the recovery."""


@dataclass(frozen=True)
class RunPlan:
    namespace: str
    release: str
    bootstrap: str
    experiments: Sequence[str]
    """Names of files in deploy/chaos/experiments."""
    title: str = "Chaos run"
    records_per_s: float = 200
    environment: Mapping[str, str] | None = None
    limit_s: float = 4 * 3600.0
    """The time after which no further experiment begins. The report names the omitted ones."""


def run(plan: RunPlan, directory: Path) -> dict[str, Any]:
    """Runs the experiments and returns the content of report.json. After SIGTERM, the current experiment is
    the last one.
    """
    stopping: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    try:
        return _run(plan, directory, stopping)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(plan: RunPlan, directory: Path, stopping: Sequence[int]) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / EVENTS_FILE).unlink(missing_ok=True)
    prefix = f"chaos-{uuid.uuid4().hex[:6]}"
    topic = f"{prefix}-log"
    os.environ.update(plan.environment or {})
    os.environ.update(
        {
            "TIDELOG_CHAOS_NAMESPACE": plan.namespace,
            "TIDELOG_CHAOS_RELEASE": plan.release,
            "TIDELOG_CHAOS_TOPIC": topic,
            "TIDELOG_CHAOS_EVENTS": str(directory / EVENTS_FILE),
            "TIDELOG_CHAOS_LOAD": str(directory),
        }
    )
    load = _start_load(plan, prefix, directory)
    done: list[dict[str, Any]] = []
    began_s = time.monotonic()
    try:
        for name in plan.experiments:
            if stopping or time.monotonic() - began_s > plan.limit_s:
                say(f"{name}: left out, {'stopping' if stopping else 'the time is over'}")
                continue
            done.append(run_experiment(name, directory))
            say(f"{name}: {done[-1]['status']} in {done[-1]['seconds']:.0f} s")
            for failure in done[-1]["failures"]:
                say(f"    {failure}")
            time.sleep(CALM_S)
    finally:
        _end_load(load)
    return write_report(directory, topic, done, plan.title)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _start_load(plan: RunPlan, prefix: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chaoslab.load_process", "--bootstrap", plan.bootstrap]
    command += ["--directory", str(directory), "--prefix", prefix, "--no-verdict"]
    command += ["--records-per-s", str(plan.records_per_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    path = directory / "load.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    deadline_s = time.monotonic() + READY_S
    while "ready\n" not in path.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.kill()
            raise RuntimeError(f"the load did not begin: {path.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
    return process


def _end_load(process: subprocess.Popen[bytes]) -> None:
    """Ends the load, which then drains, reads everything and judges."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(FINISH_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_experiment(name: str, directory: Path) -> dict[str, Any]:
    """Runs an experiment with Chaos Toolkit's library, like `chaos run`. Its journal is kept beside the
    history.
    """
    if str(CHAOS) not in sys.path:
        sys.path.insert(0, str(CHAOS))
    from chaoslib.experiment import load_experiment
    from chaoslib.experiment import run_experiment as run_by_toolkit

    logging.getLogger("logzero_default").setLevel(logging.WARNING)
    logging.getLogger("chaostoolkit").setLevel(logging.ERROR)
    began_s = time.monotonic()
    journal = run_by_toolkit(load_experiment(str(EXPERIMENTS / f"{name}.yaml")))
    with (directory / "journals.jsonl").open("a") as file:
        file.write(json.dumps(journal, default=str) + "\n")
    return {
        "name": name,
        "title": journal["experiment"]["title"],
        "status": journal["status"],
        "deviated": journal["deviated"],
        "seconds": round(time.monotonic() - began_s, 1),
        "failures": [_failure(run) for run in journal["run"] if run["status"] != "succeeded"],
    }


def _failure(run: Mapping[str, Any]) -> str:
    exception = run.get("exception") or [""]
    return f"{run['activity']['name']}: {run['status']}: {str(exception[-1]).strip()}"
