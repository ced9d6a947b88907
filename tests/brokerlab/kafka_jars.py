"""Finds the jars of Apache Kafka's own Java tools and runs the tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PEER = REPOSITORY.parent / "shared" / "peer"
TOOLS = "org.apache.kafka.tools"
JAVA_OPTIONS = ["-Xmx256m", "-XX:TieredStopAtLevel=1"]
LOG_CONFIGURATION = (
    "Configuration: { Appenders: { Console: { name: E, target: SYSTEM_ERR, "
    'PatternLayout: { pattern: "%p %m%n" } } }, '
    "Loggers: { Root: { level: WARN, AppenderRef: [ { ref: E } ] } } }"
)
DOWNLOAD_TIMEOUT_S = 600


class KafkaUnavailableError(RuntimeError):
    """Java or the jars are missing. The message says which."""


def find_jars() -> Path:
    """Returns the directory of Kafka's jars: $KAFKA_LIBS, else the one that shared/peer/kafka-up.sh downloads
    at first use.
    """
    if shutil.which("java") is None:
        raise KafkaUnavailableError("java is not installed")
    from_environment = os.environ.get("KAFKA_LIBS")
    if from_environment:
        if not Path(from_environment).is_dir():
            raise KafkaUnavailableError(f"KAFKA_LIBS={from_environment} is no folder")
        return Path(from_environment)
    script = PEER / "kafka-up.sh"
    if not script.exists():
        raise KafkaUnavailableError("no Kafka jars: set KAFKA_LIBS, or put shared/peer beside the checkout")
    found = subprocess.run(
        [str(script), "libs"], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
    )
    if found.returncode:
        raise KafkaUnavailableError(f"kafka-up.sh libs failed: {found.stderr.strip()[-500:]}")
    return Path(found.stdout.strip())


class JavaTools:
    """Runs the main classes of Kafka's jars."""

    def __init__(self, jars: Path, work_dir: Path) -> None:
        self.jars = jars
        self._log_configuration = work_dir / "log4j2.yaml"
        self._log_configuration.write_text(LOG_CONFIGURATION)

    def run(
        self, main_class: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(main_class, *arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """Returns the command. Class names without a dot before the first capital are taken from
        org.apache.kafka.tools.
        """
        name = main_class if main_class.startswith(("kafka.", "org.")) else f"{TOOLS}.{main_class}"
        return [
            "java",
            *JAVA_OPTIONS,
            f"-Dlog4j2.configurationFile={self._log_configuration}",
            "-cp",
            f"{self.jars}/*",
            name,
            *arguments,
        ]

    def check(self, main_class: str, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> str:
        """Runs a tool like run() and returns its output. A non-zero exit raises AssertionError."""
        done = self.run(main_class, *arguments, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, (
            f"{main_class} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout
