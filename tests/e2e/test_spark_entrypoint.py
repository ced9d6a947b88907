"""The commands that the Spark image's entry point starts, with stubs for tini and Java."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENTRYPOINT = Path(__file__).resolve().parents[2] / "deploy/images/spark-entrypoint"
OF_SPARK = {
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_HOME": "/opt/spark",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "spark-application-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "a-exec-3",
}


def started(directory: Path, *arguments: str, **environment: str) -> list[str]:
    for name in ("tini", "java"):
        stub = directory / name
        following = 'shift 2; exec "$@"' if name == "tini" else 'printf "%s\\n" "java" "$@"'
        stub.write_text(f"#!/bin/bash\n{following}\n")
        stub.chmod(0o755)
    outer = {"PATH": f"{directory}:{os.environ['PATH']}"}
    command = [str(ENTRYPOINT), *arguments]
    done = subprocess.run(
        command, env={**outer, **environment}, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_executor_has_sparks_command_line(tmp_path: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} with a space" for number in range(12)}
    said = started(tmp_path, "executor", **OF_SPARK, **options)
    assert said[0] == "java"
    assert said[1:13] == [f"-Dn={number} with a space" for number in range(12)], "in Spark's order"
    assert said[13:15] == ["-Xms512m", "-Xmx512m"]
    assert said[16].endswith(":/opt/spark/jars/*"), "not expanded by the shell"
    assert said[17].endswith(".KubernetesExecutorBackend")
    pairs = dict(zip(said[18::2], said[19::2], strict=True))
    assert pairs["--driver-url"] == OF_SPARK["SPARK_DRIVER_URL"]
    assert pairs["--podName"] == "a-exec-3"
    assert pairs["--hostname"] == "10.0.0.8"


def test_other_commands_run_unchanged(tmp_path: Path) -> None:
    assert started(tmp_path, "java", "a b", "c") == ["java", "a b", "c"]


def test_an_executor_without_spark_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([str(ENTRYPOINT), "executor"], capture_output=True, timeout=30, check=False)
    assert done.returncode != 0
