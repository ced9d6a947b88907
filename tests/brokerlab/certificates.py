"""Creates certificates for tests with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tidelog.rpc.callers import ServiceRole, role_name
from tidelog.rpc.peer_tls import PeerTls

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority(NamedTuple):
    certificate: Path
    key: Path


def new_authority(directory: Path, name: str) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    made = Authority(directory / f"{name}.crt", directory / f"{name}.key")
    _openssl("req", "-x509", *_EC, "-days", "2", "-subj", f"/CN={name}", "-keyout", made.key, "-out", made[0])
    return made


def put_identity(
    directory: Path, authority: Authority, *, name: str = "tidelog", expired: bool = False
) -> None:
    """Replaces ca.crt, tls.crt and tls.key at once, as kubelet does. The certificate is for every role."""
    directory.mkdir(exist_ok=True)
    key, request, certificate, extensions = (directory / f"new.{end}" for end in ("key", "csr", "crt", "ext"))
    names = (name, *(role_name(role, name) for role in ServiceRole), "*.example")
    extensions.write_text("subjectAltName=" + ",".join(f"DNS:{each}" for each in names) + "\n")
    _openssl("req", *_EC, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key),
        *("-CAcreateserial", "-days", "-1" if expired else "2", "-extfile", extensions, "-out", certificate),
    )
    new_ca = directory / "new.ca"
    shutil.copyfile(authority.certificate, new_ca)
    for made, place in ((new_ca, "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")):
        made.replace(directory / place)


def tls_of(directory: Path, *, server_name: str = "tidelog") -> PeerTls:
    files = (str(directory / name) for name in ("ca.crt", "tls.crt", "tls.key"))
    return PeerTls(*files, server_name=server_name)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
