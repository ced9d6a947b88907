"""Writes the SBOM of an image: its Debian packages, Python packages and JARs, as CycloneDX 1.6 in JSON.

    image_sbom.py --name tidelog --site-packages /opt/tidelog/lib/python3.13/site-packages \\
        --dpkg-status /var/lib/dpkg/status --output sbom.cdx.json

It runs while the image is built, with Python's standard library only, and reads what is installed. The same
image has the same SBOM.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

Component = dict[str, Any]
DEB_NAME: Final = re.compile(r"([^_]+)_([^_]+)_([^_]+)\.deb")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="name of the image")
    parser.add_argument("--dpkg-status", type=Path, help="dpkg's file of installed packages")
    parser.add_argument("--debs", type=Path, help="file with a name of a package file (.deb) in each line")
    parser.add_argument("--site-packages", type=Path, action="append", default=[], help="Python's packages")
    parser.add_argument("--jars", type=Path, help="directory of JARs")
    parser.add_argument("--output", type=Path, required=True)
    chosen = parser.parse_args()
    components = [found for directory in chosen.site_packages for found in python_packages(directory)]
    if chosen.dpkg_status:
        components += debian_packages(chosen.dpkg_status.read_text("utf-8"))
    if chosen.debs:
        components += package_files(chosen.debs.read_text("utf-8").split())
    if chosen.jars:
        components += jars(chosen.jars)
    if not components:
        sys.stderr.write("nothing is installed there\n")
        return 1
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(bom(chosen.name, components), indent=1) + "\n")
    return 0


def bom(name: str, components: list[Component]) -> dict[str, Any]:
    """Returns the document. The version of the image is that of tidelog in it."""
    by_reference = {component["bom-ref"]: component for component in components}
    version = next((c["version"] for c in components if c["bom-ref"].startswith("pkg:pypi/tidelog@")), "")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": [by_reference[reference] for reference in sorted(by_reference)],
    }


def python_packages(directory: Path) -> Iterator[Component]:
    for found in metadata.distributions(path=[str(directory)]):
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        component = _component(name, found.version, f"pkg:pypi/{name}@{quote(found.version)}")
        if expression := found.metadata.get("License-Expression"):
            component["licenses"] = [{"expression": expression}]
        yield component


def debian_packages(status: str) -> Iterator[Component]:
    """Yields the installed packages of dpkg's status file."""
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.+)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield _deb(fields["Package"], fields["Version"], fields["Architecture"])


def package_files(names: list[str]) -> Iterator[Component]:
    """Yields the packages of these files, whose names contain versions: `NAME_VERSION_ARCHITECTURE.deb`."""
    for name in names:
        match = DEB_NAME.fullmatch(unquote(Path(name).name))
        if match is None:
            raise SystemExit(f"{name} is not the name of a package file")
        yield _deb(*match.groups())


def jars(directory: Path) -> Iterator[Component]:
    for jar in directory.glob("*.jar"):
        with jar.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name, _, version = jar.stem.rpartition("-")
        component = _component(
            name or jar.stem, version, f"pkg:generic/{quote(jar.name)}?checksum=sha256:{digest}"
        )
        yield {**component, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _deb(name: str, version: str, architecture: str) -> Component:
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
    return _component(name, version, purl)


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    sys.exit(main())
