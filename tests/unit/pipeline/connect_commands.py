"""Runs commands of tidelog in one process, one after the other: reads lines of arguments and writes lines
with the results.
"""

from __future__ import annotations

import json
import sys

from click.testing import CliRunner

from tidelog.cli.main import main

if __name__ == "__main__":
    for line in sys.stdin:
        result = CliRunner().invoke(main, json.loads(line))
        failure = "" if result.exception is None else repr(result.exception)
        outcome = {"exit": result.exit_code, "said": result.stdout, "told": f"{result.stderr}{failure}"}
        sys.stdout.write(f"{json.dumps(outcome)}\n")
        sys.stdout.flush()
