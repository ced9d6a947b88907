"""Finds the jars of Apache Kafka, and runs its Java tools and a broker of the test's own."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
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
ECOSYSTEM_VERSION = "4.3.1"
ECOSYSTEM_LIBS = "KAFKA_ECOSYSTEM_LIBS"
ECOSYSTEM_JARS = {
    "connect-file": "e330c491309d8f839f2abd7260c72a3687d6d82ecf2ba0f7699a46d41a46dcac",
    "connect-mirror": "0d091c7ba172827dc42ed09fdf4390876a90ab627fd8d2bb002016f9785617e1",
    "connect-runtime": "9df3d2f78f8a1740af358dd78ccdf1396559223e0cfbf1a697ab9363dead6175",
    "kafka-streams": "bd73f3805e116f711e8456ee89a8a5b43ff5dcf5a5bb865afae29deae89e7c4b",
    "kafka-tools": "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c",
}
"""The artifacts of org.apache.kafka with the SHA-256 of their jars."""
_LOGGING = "2.25.4"
_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>ecosystem</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
    "<version>{version}</version></dependency>\n"
)
START_TIMEOUT_S = 180


class KafkaUnavailableError(RuntimeError):
    """Java or the jars are missing. The message says which."""


def cache_directory() -> Path:
    """Returns the directory for what tests download and build once."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Lets other processes of the tests wait, because two downloads into one directory disturb each other."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f"tidelog-tests-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
    with one_at_a_time("kafka"):
        found = subprocess.run(
            [str(script), "libs"], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    if found.returncode:
        raise KafkaUnavailableError(f"kafka-up.sh libs failed: {found.stderr.strip()[-500:]}")
    return Path(found.stdout.strip())


def find_ecosystem_jars() -> Path:
    """Returns the directory with the jars of Kafka Connect, MirrorMaker and Kafka Streams:
    $KAFKA_ECOSYSTEM_LIBS, else one that Maven fills at first use.
    """
    if os.environ.get(ECOSYSTEM_LIBS):
        return Path(os.environ[ECOSYSTEM_LIBS])
    for command in ("java", "mvn"):
        if shutil.which(command) is None:
            raise KafkaUnavailableError(f"{command} is not installed")
    libs = cache_directory() / "kafka-ecosystem" / f"libs-{ECOSYSTEM_VERSION}"
    with one_at_a_time("ecosystem"):
        if not (libs / ".ok").exists():
            _fetch_ecosystem(libs)
            (libs / ".ok").touch()
    return libs


def _fetch_ecosystem(libs: Path) -> None:
    wanted = [("org.apache.kafka", artifact, ECOSYSTEM_VERSION) for artifact in ECOSYSTEM_JARS]
    wanted += [("org.apache.logging.log4j", name, _LOGGING) for name in ("log4j-slf4j-impl", "log4j-1.2-api")]
    dependencies = "".join(
        _DEPENDENCY.format(group=group, artifact=artifact, version=version)
        for group, artifact, version in wanted
    )
    libs.mkdir(parents=True, exist_ok=True)
    pom = libs.parent / "pom.xml"
    pom.write_text(_POM.format(dependencies=dependencies))
    found = subprocess.run(
        ["mvn", "-B", "-ntp", "-q", "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies"]
        + ["-DincludeScope=runtime", f"-DoutputDirectory={libs}"],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_TIMEOUT_S,
        check=False,
    )
    if found.returncode:
        raise KafkaUnavailableError(f"mvn failed: {(found.stdout + found.stderr).strip()[-500:]}")
    for artifact, expected in ECOSYSTEM_JARS.items():
        jar = libs / f"{artifact}-{ECOSYSTEM_VERSION}.jar"
        if hashlib.sha256(jar.read_bytes()).hexdigest() != expected:
            raise KafkaUnavailableError(f"{jar} is not the jar that the tests know: remove {libs}")


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


def _free_base_port() -> int:
    """Returns a port that is free now, as are those 1,000 and 2,000 above it, which shared/peer uses. If the
    port were taken, the test would talk to the broker that has it, while its own broker ends.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 28_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for each in (port, port + 1_000, port + 2_000):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port


class PeerKafka:
    def __init__(
        self, state_dir: Path, name: str = "served", settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings` are settings of the broker besides those of shared/peer."""
        self._name = name
        port = _free_base_port()
        self._environment = {
            **os.environ,
            "NAME": name,
            "BASE_PORT": str(port),
            "STATE_DIR": str(state_dir),
            "KAFKA_HEAP": "512m",
        }
        if settings:
            lines = [f"{name}={value}" for name, value in settings.items()]
            self._environment["EXTRA_PROPS_TEXT"] = "\n".join(lines)
        self._home = state_dir / f"kafka-{name}"
        self.data_dir = self._home / "1" / "data"
        self.bootstrap = f"127.0.0.1:{port}"

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [str(PEER / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        self._run("kafka-up.sh", "1")

    def stop(self) -> None:
        self._run("kafka-down.sh", self._name, "--keep")

    def kill(self) -> None:
        """Sends SIGKILL. Logs keep their state, and indexes keep their full preallocated length."""
        for pid in (self._home / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        self.stop()
