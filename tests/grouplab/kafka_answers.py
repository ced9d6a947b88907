"""Runs one of the Java programs in this directory, which answer each input line with one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

from brokerlab.kafka_jars import JAVA_OPTIONS

TIMEOUT_S = 240


def ask_java(jars: Path, program: Path, lines: list[str]) -> list[str]:
    command = ["java", *JAVA_OPTIONS, "-Dfile.encoding=UTF-8", "-cp", f"{jars}/*", str(program)]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = done.stdout.removesuffix("\n").split("\n")
    assert len(answers) == len(lines)
    return answers
