"""`make chaos` installs a release on the lab, runs all kinds of faults, writes the report and removes
everything.

It uses the cluster of KUBECONFIG if that is set, else the lab of ../shared/k8s-lab. A lab that it started is
stopped at the end. Volumes are small, so that one can be filled. This needs root on the node, which only the
lab gives. Elsewhere (--storage-class NAME), `full-volume` is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chaoslab.__main__ import OTHERS, schedule
from chaoslab.report import is_good, line
from chaoslab.run import RunPlan, run, say
from chaoslab.small_volumes import VOLUME_MIB, small_volumes
from e2e.kubectl import Kubectl
from e2e.lab import Lab, LabUnavailableError
from e2e.release import Release

NOT_RUN = 77
VOLUMES = 7
"""The number of volumes: five brokers, and two for claims that were deleted, because their volumes are not
reused.
"""
INSTALL_S = 300.0
NODE_PORTS = {"bootstrap": "30894", "firstBroker": "30800"}


def main() -> int:
    options = _parser().parse_args()
    lab = Lab()
    try:
        if not os.environ.get("KUBECONFIG"):
            try:
                lab.up()
            except LabUnavailableError as reason:
                print(f"NOT RUN: chaos on a real cluster: {reason}")
                return NOT_RUN
            os.environ.update(lab.environment)
            if not options.keep_images:
                lab.load_images(options.tag, "HEAD")
        with _installed(options) as release:
            return _run(options, release)
    finally:
        if not options.keep_lab:
            lab.down()


def _run(options: argparse.Namespace, release: Release) -> int:
    left_out = [*options.without.split(","), *(["full-volume"] if options.storage_class else [])]
    others = tuple(name for name in OTHERS if name not in left_out)
    names = options.experiments.split(",") if options.experiments else schedule(options.kills, others)
    plan = RunPlan(
        release.kubectl.namespace,
        release.name,
        release.bootstrap,
        names,
        title=options.title,
        records_per_s=options.records_per_s,
        limit_s=options.minutes * 60,
        environment={"TIDELOG_CHAOS_UPGRADE_TAG": options.upgrade_tag},
    )
    report = run(plan, options.directory)
    for told in (*report["complaints"], *report["unread"], *report["anomalies"][:10]):
        say(str(told))
    print(line(report), flush=True)
    return 0 if is_good(report) else 1


@contextlib.contextmanager
def _installed(options: argparse.Namespace) -> Iterator[Release]:
    kubectl = Kubectl({}, options.namespace)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace, "labels": labels}}
    )
    with contextlib.ExitStack() as stack:
        storage_class, size = options.storage_class, f"{VOLUME_MIB}Mi"
        if not storage_class:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-volumes-")))
            storage_class = stack.enter_context(small_volumes(kubectl, directory, VOLUMES))
        values = {
            "listeners.external.enabled": "true",
            **{f"listeners.external.nodePorts.{name}": port for name, port in NODE_PORTS.items()},
            "brokers.storage.className": storage_class,
            "brokers.storage.size": size,
        }
        release = Release(kubectl, "chaos", values, options.tag)
        stack.callback(_clean, kubectl, release)
        say(f"ready after {release.install(INSTALL_S):.0f} s")
        yield release


def _clean(kubectl: Kubectl, release: Release) -> None:
    release.uninstall(INSTALL_S)
    for namespace in (kubectl.namespace, "tidelog-chaos-agents"):
        kubectl.run("delete", "namespace", namespace, "--ignore-not-found", timeout_s=INSTALL_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespace", default="tidelog-chaos")
    parser.add_argument("--tag", default="dev", help="tag of the image localhost/tidelog")
    parser.add_argument(
        "--upgrade-tag", default="", help="the image tag that `upgrade` installs; by default, the same tag"
    )
    parser.add_argument("--directory", type=Path, default=Path("build/chaos"), help="directory of the report")
    parser.add_argument(
        "--experiments", default="", help="names of experiments, separated by commas, instead of all kinds"
    )
    parser.add_argument("--without", default="", help="kinds to omit")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--records-per-s", type=float, default=200)
    parser.add_argument("--minutes", type=float, default=240, help="minutes after which no experiment begins")
    parser.add_argument(
        "--storage-class", default="", help="a storage class of the cluster, instead of small volumes"
    )
    parser.add_argument("--title", default="Chaos on the lab")
    parser.add_argument("--keep-lab", action="store_true", help="keep a lab that was started")
    parser.add_argument("--keep-images", action="store_true", help="use the loaded images")
    return parser


if __name__ == "__main__":
    sys.exit(main())
