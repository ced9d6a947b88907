"""Runs franz-go's SCRAM tests, and our own of its logins and its kadm, against a broker with security."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from brokerlab.secured_broker import ALICE, CASES, PASSWORD, TOPIC, Case, Mechanism, SecuredBroker
from conformance.outcomes import Outcome, results_in

SCRAM_TESTS: Final = ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials")
OUR_TESTS: Final = ("TestAdministration", "TestLogins", "TestRequestsOfRpk")
TIMEOUT_S: Final = 180


def scram_environment(secured: SecuredBroker, bits: int) -> dict[str, str]:
    """Returns the variables with which franz-go's tests find the listener. They use no TLS there."""
    return {
        "KGO_TEST_SCRAM": f"{ALICE}:{PASSWORD}:{bits}",
        "KGO_TEST_SCRAM_SEEDS": secured.bootstrap("SASL_PLAINTEXT"),
    }


def failed_logins(secured: SecuredBroker, binary: Path, directory: Path) -> list[str]:
    """Runs our Go tests, with every case. Returns a line for each failure."""
    cases = directory / "logins.json"
    cases.write_text(json.dumps([_described(secured, case) for case in CASES]))
    done = subprocess.run(
        [str(binary), "-test.v", f"-test.timeout={TIMEOUT_S}s"],
        env={
            **os.environ,
            "LOGINS": str(cases),
            "ADMIN_SEEDS": secured.bootstrap("PLAINTEXT"),
            "LOGIN_SEEDS": secured.bootstrap("SASL_PLAINTEXT"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 30,
        check=False,
    )
    if results_in(done.stdout) == dict.fromkeys(OUR_TESTS, Outcome.PASS):
        return []
    said = [line.strip() for line in done.stdout.splitlines() if "_test.go:" in line]
    return said or [f"{binary.name} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}"]


def _described(secured: SecuredBroker, case: Case) -> dict[str, Any]:
    """Returns the fields of a `login` in logins_test.go."""
    found: dict[str, Any] = {
        "name": str(case),
        "seeds": secured.bootstrap(case.protocol),
        "topic": TOPIC,
        "is_right": case.is_right,
        "is_token": case.mechanism is Mechanism.TOKEN,
        "ca": str(secured.ca) if case.protocol.endswith("SSL") else "",
    }
    if case.mechanism is Mechanism.CERTIFICATE:
        files = secured.client_files(case)
        return found | {"certificate": str(files.certificate), "key": str(files.key)}
    user, password = secured.user_and_password(case)
    if case.mechanism is Mechanism.OAUTHBEARER:
        password = secured.provider.token(secured.oauth_user(case))
    return found | {"mechanism": case.mechanism.sasl_name, "user": user, "password": password}
