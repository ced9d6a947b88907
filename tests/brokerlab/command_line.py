"""Runs the command line tools as processes, or in the process of the test."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from click.testing import CliRunner, Result

from brokerlab.broker_process import tidelog_command
from tidelog.cli.main import main


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


class InProcessTools:
    """Runs `tidelog ...` against one broker in the process of the test, which is faster."""

    def __init__(self, bootstrap: str) -> None:
        self._runner = CliRunner(env={"TIDELOG_BOOTSTRAP_SERVER": bootstrap})

    def run(self, *arguments: object, stdin: bytes = b"") -> Result:
        return self._runner.invoke(main, [str(argument) for argument in arguments], input=stdin)

    def output(self, *arguments: object, stdin: bytes = b"") -> str:
        """Returns the standard output of a successful call."""
        done = self.run(*arguments, stdin=stdin)
        assert done.exit_code == 0, (done.stderr, done.exception)
        return done.stdout

    def document(self, *arguments: object) -> Any:  # of the command's shape
        """Returns what a successful call prints with `--format json`."""
        return json.loads(self.output(*arguments, "--format", "json"))

    def rows(self, *arguments: object) -> list[list[str]]:
        """Returns the lines of a successful call, split at tabs."""
        return [line.split("\t") for line in self.output(*arguments).splitlines()]

    def refusal(self, *arguments: object, stdin: bytes = b"") -> str:
        """Returns the standard error of a failed call, whose last line is the reason."""
        done = self.run(*arguments, stdin=stdin)
        assert done.exit_code == 1, (done.output, done.exception)
        assert done.stderr.splitlines()[-1].startswith("tidelog: "), done.exception
        return done.stderr

    def failed_rows(self, *arguments: object) -> tuple[str, list[list[str]]]:
        """Returns the standard error and the lines of a failed call."""
        done = self.run(*arguments)
        assert done.exit_code == 1, (done.output, done.exception)
        return done.stderr, [line.split("\t") for line in done.stdout.splitlines()]
