"""Runs the command line tools as processes."""

from __future__ import annotations

import os
import subprocess

from brokerlab.broker_process import tidelog_command


class Tools:
    """Runs `tidelog ...` against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {**os.environ, "TIDELOG_BOOTSTRAP_SERVER": bootstrap}

    def run(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*tidelog_command(), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=60,
            env=self.environment,
            check=False,
        )

    def output(self, *arguments: object, stdin: bytes = b"") -> str:
        """Returns the standard output of a successful call."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def refusal(self, *arguments: object, stdin: bytes = b"") -> str:
        """Returns the single line on standard error of a failed call."""
        done = self.run(*arguments, stdin=stdin)
        text = done.stderr.decode()
        assert done.returncode == 1, text
        assert text.startswith("tidelog: ")
        assert text.count("\n") == 1
        return text
