"""The SBOM names what is installed in an image, in a fixed order."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[3] / "tools/kubernetes/image_sbom.py"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u9

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def add_package(directory: Path, name: str, version: str, more: str = "") -> None:
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\n")


def test_the_sbom_names_every_package_once(tmp_path: Path) -> None:
    site, jars = tmp_path / "site", tmp_path / "jars"
    jars.mkdir()
    (jars / "kafka-clients-3.9.2.jar").write_bytes(b"jar")
    add_package(site, "tidelog", "0.1.0", "License-Expression: Apache-2.0")
    add_package(site, "Typing_Extensions", "4.16.0")
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "debs").write_text("openssl_1%3a3.0-1_amd64.deb\n")
    output = tmp_path / "out" / "sbom.json"
    sources = ["--site-packages", str(site), "--site-packages", str(site), "--jars", str(jars)]
    sources += ["--dpkg-status", str(tmp_path / "status"), "--debs", str(tmp_path / "debs")]
    subprocess.run(
        [sys.executable, str(TOOL), "--name", "image", *sources, "--output", str(output)], check=True
    )
    found = json.loads(output.read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"] == {"type": "container", "name": "image", "version": "0.1.0"}
    digest = hashlib.sha256(b"jar").hexdigest()
    assert [component["purl"] for component in found["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64",
        "pkg:deb/debian/openssl@1%3A3.0-1?arch=amd64",
        f"pkg:generic/kafka-clients-3.9.2.jar?checksum=sha256:{digest}",
        "pkg:pypi/tidelog@0.1.0",
        "pkg:pypi/typing-extensions@4.16.0",
    ]
    (licensed,) = (component for component in found["components"] if "licenses" in component)
    assert licensed["licenses"] == [{"expression": "Apache-2.0"}]


def test_an_empty_image_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--name", "image", "--output", str(tmp_path / "x")], check=False
    )
    assert done.returncode == 1
