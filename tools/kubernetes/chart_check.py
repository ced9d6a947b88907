"""Checks the manifests that the chart renders for each set of values (`make check`).

    chart_check.py                     the chart with charts/tidelog/ci/*.yaml and deploy/helm/*.yaml
    chart_check.py VALUES...           with these values only

It runs `helm lint`, checks every object against the schema of its kind, and then applies the rules of
`manifest_rules`, which compare objects with each other. If helm or the schemas are not available, it prints
the reason and succeeds; with REQUIRE_ALL=1 it fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from manifest_rules import faults_of_release, name_of
from manifest_schemas import KUBERNETES, SchemasMissingError, UnknownKindError, faults_of

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "tidelog"
VALUES: Final = (CHART / "ci", ROOT / "deploy" / "helm")
CACHES: Final = ("~/.cache/tidelog/tools/bin", "~/.cache/k8s-lab/bin")
HELM_TIMEOUT_S: Final = 120
# A comment in a file of values names the objects that exist already: `# given: Secret/my-tls
# ConfigMap/other`.
GIVEN_MARK: Final = "# given:"


class HelmFailedError(Exception):
    """Helm failed. The message is its output."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("values", nargs="*", type=Path, help="files of values")
    chosen: list[Path] = parser.parse_args().values
    files = chosen or [path for folder in VALUES for path in sorted(folder.glob("*.yaml"))]
    if find_helm() is None:
        return _without("helm is not installed ('make kube-tools')")
    faults = []
    try:
        for path in files:
            faults += [f"{path.relative_to(ROOT)}: {fault}" for fault in faults_with(path)]
    except SchemasMissingError as error:
        return _without(str(error))
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    sys.stdout.write(f"chart: {len(files)} sets of values, {len(faults)} faults\n")
    return 1 if faults else 0


def _without(reason: str) -> int:
    sys.stderr.write(f"chart not checked: {reason}\n")
    return 1 if os.environ.get("REQUIRE_ALL") else 0


def faults_with(values: Path) -> list[str]:
    """Returns the problems of an installation and of an upgrade. Raises SchemasMissingError."""
    try:
        helm("lint", "--strict", str(CHART), "--values", str(values), *_VERSION)
        installed, upgraded = render(values), render(values, "--is-upgrade")
    except HelmFailedError as error:
        return [str(error)]
    faults = faults_in(installed, given_in(values))
    faults += [fault for fault in faults_in(upgraded, given_in(values)) if fault not in faults]
    return faults


def faults_in(manifests: list[dict[str, Any]], given: set[tuple[str, str]]) -> list[str]:
    found = []
    for manifest in manifests:
        try:
            found += [f"{name_of(manifest)}: {fault}" for fault in faults_of(manifest)]
        except UnknownKindError as error:
            found.append(f"{name_of(manifest)}: {error}")
    return found + faults_of_release(manifests, given)


def given_in(values: Path) -> set[tuple[str, str]]:
    lines = [line for line in values.read_text("utf-8").splitlines() if line.startswith(GIVEN_MARK)]
    pairs = [word.partition("/") for line in lines for word in line.removeprefix(GIVEN_MARK).split()]
    return {(kind, name) for kind, _, name in pairs}


def render(values: Path, *arguments: str) -> list[dict[str, Any]]:
    """Returns all objects, including those of hooks. Raises HelmFailedError."""
    text = helm(
        *("template", "check", str(CHART), "--namespace", "check", "--values", str(values)),
        *_VERSION,
        *arguments,
    )
    return [manifest for manifest in yaml.load_all(text, _StrictLoader) if manifest]


_VERSION: Final = ("--kube-version", KUBERNETES.version)


def helm(*arguments: str) -> str:
    """Returns helm's output. Raises HelmFailedError."""
    program = find_helm()
    if program is None:
        raise HelmFailedError("helm is not installed")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise HelmFailedError(" ".join((done.stderr + done.stdout).split()))
    return done.stdout


def find_helm() -> str | None:
    places = [str(Path(place).expanduser()) for place in CACHES]
    return shutil.which("helm", path=os.pathsep.join([*places, os.environ.get("PATH", "")]))


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that rejects repeated keys, because Kubernetes would silently use the second value."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"{key} is repeated", node.start_mark)
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


if __name__ == "__main__":
    sys.exit(main())
