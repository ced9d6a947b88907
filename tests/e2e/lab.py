"""The cluster that the suites run on: KUBECONFIG's, or the single node of ../shared/k8s-lab.

A lab that already runs is used and left running. A lab that was started here is stopped at the end, even
after a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LAB: Final = Path(os.environ.get("K8S_LAB", ROOT.parent / "shared/k8s-lab"))
IMAGES: Final = ROOT / "tools/kubernetes/lab_images.sh"
UP_TIMEOUT_S: Final = 2400.0
"""The time limit of a first build, which takes 5 to 9 minutes on two free cores."""
DOWN_TIMEOUT_S: Final = 120.0
ANSWER_TIMEOUT_S: Final = 15.0


class LabUnavailableError(RuntimeError):
    """This machine cannot run the lab. The message says why."""


class Lab:
    """`environment` holds the variables that kubectl and helm need to reach the cluster."""

    def __init__(self) -> None:
        self.is_ours = False
        self.environment: Mapping[str, str] = {}

    def up(self) -> None:
        """Starts the lab unless it runs. Raises LabUnavailableError if this machine cannot run it."""
        self._expect_possible()
        self.environment = self._exports()
        if self._answers():
            return
        self.is_ours = True
        self._run("cluster-down.sh", timeout_s=DOWN_TIMEOUT_S)  # remains of a machine that went down
        done = self._run("cluster-up.sh", timeout_s=UP_TIMEOUT_S)
        if done.returncode:
            self._run("cluster-down.sh", timeout_s=DOWN_TIMEOUT_S)
            done = self._run("cluster-up.sh", timeout_s=UP_TIMEOUT_S)
        if done.returncode:
            self.down()
            raise LabUnavailableError(f"cluster-up.sh failed:\n{_end_of(done.stdout)}")

    def down(self) -> None:
        if self.is_ours:
            self._run("cluster-down.sh", timeout_s=DOWN_TIMEOUT_S)
            self.is_ours = False

    def load_images(self, tag: str, revision: str) -> None:
        """Loads tidelog's image of a revision of this repository, and etcd's, under this tag."""
        self._make_images(revision, tag)

    def load_spark_image(self, tag: str, revision: str) -> None:
        """Loads the Spark jobs' image of that revision."""
        self._make_images(revision, tag, "spark")

    def _make_images(self, revision: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(IMAGES), *arguments],
            env={**os.environ, "REVISION": revision, "K8S_LAB": str(LAB)},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"no image of {revision}: {IMAGES.name} failed")

    def _expect_possible(self) -> None:
        if not (LAB / "cluster-up.sh").exists():
            raise LabUnavailableError(f"{LAB} does not exist, and KUBECONFIG is not set")
        if os.geteuid():
            raise LabUnavailableError("the lab needs root, and KUBECONFIG is not set")
        unshare = shutil.which("unshare")
        if unshare is None or subprocess.run([unshare, "-n", "-m", "true"], check=False).returncode:
            raise LabUnavailableError("no namespaces can be made on this machine")

    def _exports(self) -> dict[str, str]:
        said = self._run("cluster-up.sh", "env", timeout_s=ANSWER_TIMEOUT_S).stdout
        found = re.search(r"KUBECONFIG=(\S+) PATH=([^:\s]+)", said)
        if found is None:
            raise LabUnavailableError(f"cluster-up.sh env: {said!r}")
        return {"KUBECONFIG": found[1], "PATH": f"{found[2]}:{os.environ['PATH']}"}

    def _answers(self) -> bool:
        environment = {**os.environ, **self.environment}
        if shutil.which("kubectl", path=environment["PATH"]) is None:
            return False
        if not Path(environment["KUBECONFIG"]).exists():
            return False
        asked = ["kubectl", "get", "--raw", "/readyz", "--request-timeout=5s"]
        try:
            done = subprocess.run(
                asked, env=environment, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _run(self, script: str, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(LAB / script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
            return subprocess.CompletedProcess(
                error.cmd, 124, f"{said}\n{script}: not done after {timeout_s} s"
            )


def _end_of(text: str) -> str:
    return "\n".join(text.splitlines()[-15:])
