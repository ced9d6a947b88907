"""Runs the test suite of franz-go's client against three brokers (`make conformance`).

Compares the result of each test with `outcomes.txt` and lets franz-go log in with each mechanism at a broker
with security. Exits with 1 if something differs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from brokerlab.secured_broker import SecuredBroker
from clusterlab.tidelog_cluster import TidelogCluster
from conformance.logins import SCRAM_TESTS, failed_logins, scram_environment
from conformance.outcomes import Outcome, mismatches, read_outcomes, results_in

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "conformance"
LOGINS = BUILD / "logins.test"
PACKAGE = "github.com/twmb/franz-go"
BUILD_TIMEOUT_S = 900
SUITE_TIMEOUT_S = 1500
ALONE_TIMEOUT_S = 300
TRIES_OF_UNSTEADY = 8
TRIES_ALONE = 2


class Suite:
    """The compiled tests and the brokers at `seeds`."""

    def __init__(self, seeds: str, records: int) -> None:
        self._binary = BUILD / "kgo.test"
        self._directory = ""
        self._environment = {
            **os.environ,
            "KGO_SEEDS": seeds,
            "KGO_TEST_RF": "3",
            "KGO_TEST_RECORDS": str(records),
            "KGO_LOG_LEVEL": "none",
        }

    def against(self, seeds: str) -> None:
        self._environment["KGO_SEEDS"] = seeds

    def with_variables(self, variables: Mapping[str, str]) -> None:
        self._environment.update(variables)

    def build(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        for binary, package in ((self._binary, f"{PACKAGE}/pkg/kgo"), (LOGINS, ".")):
            subprocess.run(
                ["go", "test", "-c", "-o", str(binary), package],
                cwd=HERE,
                check=True,
                timeout=BUILD_TIMEOUT_S,
            )
        found = subprocess.run(
            ["go", "list", "-m", "-f", "{{.Dir}}", PACKAGE],
            cwd=HERE,
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        self._directory = f"{found.stdout.strip()}/pkg/kgo"

    def run(self, name: str, tests: Sequence[str] = ()) -> dict[str, Outcome]:
        """Runs all tests or the named ones, and writes their output to `NAME.log`."""
        timeout_s = ALONE_TIMEOUT_S if tests else SUITE_TIMEOUT_S
        command = [str(self._binary), "-test.v", f"-test.timeout={timeout_s}s"]
        if tests:
            command.append(f"-test.run=^({'|'.join(map(re.escape, tests))})$")
        log = BUILD / f"{name}.log"
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s + 30,
                check=False,
            )
        return results_in(log.read_text(errors="replace"))


def run_again(suite: Suite, expected: Mapping[str, Outcome], found: dict[str, Outcome]) -> Iterable[str]:
    """Repeats failed tests alone and yields a line for each: some tests fail occasionally by design, and a
    slow machine may exceed a test's time limit.
    """
    for test in sorted(name for name, outcome in found.items() if outcome is Outcome.FAIL):
        tries = TRIES_OF_UNSTEADY if expected.get(test) is Outcome.UNSTEADY else TRIES_ALONE
        for attempt in range(1, tries + 1):
            found[test] = suite.run(f"{test}-{attempt}", [test]).get(test, Outcome.FAIL)
            if found[test] is not Outcome.FAIL:
                break
        yield f"{test} failed beside others; alone: {found[test].value} after {attempt} of {tries} tries"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument(
        "--records", type=int, default=1000, help="messages of each ETL test; the suite itself uses 500000"
    )
    parser.add_argument(
        "--seeds", default=os.environ.get("KGO_SEEDS", ""), help="addresses of running brokers"
    )
    arguments = parser.parse_args()
    if shutil.which("go") is None:
        print("skipped: Go is not installed")
        return 1 if os.environ.get("REQUIRE_ALL") else 0
    expected = read_outcomes((HERE / "outcomes.txt").read_text())
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-conformance-") as directory:
        cluster = secured = None
        seeds = arguments.seeds
        try:
            suite = Suite(seeds, arguments.records)
            try:
                suite.build()
            except subprocess.CalledProcessError as error:
                print(f"the suite cannot be built: {' '.join(error.cmd)} ended with {error.returncode}")
                return 1
            print(f"built after {time.monotonic() - began_s:.0f} s", flush=True)
            if not seeds:
                settings = {"group.initial.rebalance.delay.ms": "0"}
                cluster = TidelogCluster(Path(directory), controllers=1, settings=settings)
                suite.against(",".join(cluster.up().addresses.values()))
            secured = SecuredBroker(Path(directory))
            suite.with_variables(scram_environment(secured, 512))
            found = suite.run("kgo")
            for line in run_again(suite, expected, found):
                print(line, flush=True)
            suite.with_variables(scram_environment(secured, 256))
            with_sha_256 = suite.run("scram-sha-256", SCRAM_TESTS)
            problems = [
                f"{test} with SHA-256: {outcome.value}"
                for test, outcome in with_sha_256.items()
                if outcome is not Outcome.PASS
            ]
            problems += failed_logins(secured, LOGINS, Path(directory))
        finally:
            if secured is not None:
                secured.close()
            if cluster is not None:
                cluster.destroy()
    problems += mismatches(expected, found)
    for problem in problems:
        print(problem)
    passed = sum(outcome is Outcome.PASS for outcome in found.values())
    took_s = time.monotonic() - began_s
    print(f"{passed} of {len(found)} tests passed, {len(problems)} not as expected, {took_s:.0f} s")
    print(f"the output of the tests: {BUILD}/kgo.log")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
