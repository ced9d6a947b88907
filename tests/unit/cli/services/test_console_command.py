"""The messages of `tidelog console` when it cannot start."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority
from tidelog.cli.services.console import Exposure, command, listen_address
from tidelog.kernel.instants import WallMs


def said(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 1, done.output
    return done.output


def test_a_missing_extra_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "tidelog.console.server", raising=False)
    assert said() == (
        "tidelog: the console needs the package uvicorn: pip install 'fastavro>=1.9' 'jinja2>=3.1' "
        "'starlette>=1.0' 'uvicorn>=0.40'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "8080"), "8080 is not an address: expected HOST:PORT, as in 127.0.0.1:8080"),
        (("--allowed-host", "*"), "--allowed-host *: expected a host name without *"),
        (("--bootstrap-server", "here"), "--bootstrap-server: 'here' is not a broker address"),
        (("--topic-schema", "a-value=a.avsc"), "--topic-schema names files of --schema-dir: give that, too"),
        (("--schema-dir", "/missing"), "--schema-dir: /missing: No such file or directory"),
        (
            ("--schema-registry-config", "x"),
            "--schema-registry-config is for a registry: give --schema-registry",
        ),
        (
            ("--schema-registry", "https://x", "--schema-registry-config", "/missing"),
            "--schema-registry-config: /missing can't be read: No such file or directory",
        ),
        (("--schema-registry", "here"), "--schema-registry: here is not an http or https URL, such as http"),
    ],
)
def test_wrong_options_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    output = said(*arguments)
    assert output.startswith(f"tidelog: {message}")
    assert output.count("\n") == 1


def test_an_address_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        output = said("--listen", f"127.0.0.1:{port}")
    assert output.startswith(
        f"tidelog: the console cannot listen at 127.0.0.1:{port}: Address already in use"
    )
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--listen 0.0.0.0:0: other machines can reach this address; give --login, so that users log in"),
        (
            ("--no-login",),
            "--listen 0.0.0.0:0: other machines can reach this address; give --tls-certificate",
        ),
        (("--login",), "--listen 0.0.0.0:0: other machines can reach this address; give --tls-certificate"),
        (("--login", "--behind-tls-proxy"), "--login: name the listener's protocol and mechanism in a file"),
        (("--no-login", "--tls-key", "x"), "--tls-certificate: a certificate and its key are needed"),
        (("--no-login", "--tls-certificate", "x"), "--tls-key: a certificate and its key are needed"),
        (("--tls-key", "x", "--behind-tls-proxy"), "--behind-tls-proxy: the console has a certificate of"),
    ],
)
def test_other_machines_need_a_login_and_tls(arguments: tuple[str, ...], message: str) -> None:
    output = said("--listen", "0.0.0.0:0", *arguments)
    assert output.splitlines()[-1].startswith(f"tidelog: {message}")


def test_a_console_without_a_login_for_other_machines_is_warned_about() -> None:
    arguments = ("--no-login", "--behind-tls-proxy", "--bootstrap-server", "here")
    warning, _ = said("--listen", "[::]:0", *arguments).splitlines()
    assert warning == (
        "tidelog: warning: whoever reaches [::]:0 sees what the console may read, without a login"
    )
    assert said("--listen", "127.0.0.1:0", *arguments).count("\n") == 1


def test_wrong_certificates_are_one_sentence(tmp_path: Path) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--tls-certificate", str(tmp_path / "tls.crt")]
    arguments += ["--tls-key", str(tmp_path / "tls.key")]
    path = tmp_path / "tls.crt"
    assert (
        said(*arguments) == f"tidelog: --tls-certificate: {path} can't be read: No such file or directory\n"
    )
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("nothing")
    assert "are not a certificate and its key: " in said(*arguments)
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=WallMs(time.time_ns() // 1_000_000))
    files = authority.issue(tmp_path, ["localhost"], now_ms=WallMs(time.time_ns() // 1_000_000))
    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hidden"))
    )
    assert "are not a certificate and its key: " in said(*arguments)  # it does not ask for the password


def test_credentials_do_not_serve_for_logins(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        'sasl.jaas.config=X required username="a" password="hidden";\n'
    )
    output = said("--login", "--command-config", str(path))
    assert output.startswith(f"tidelog: --login: {path}: sasl.jaas.config: each user logs in with a login of")
    assert "hidden" not in output


@pytest.mark.parametrize(
    ("listen", "is_local"),
    [
        ("127.0.0.1:0", True),
        ("127.9.9.9:0", True),
        ("[::1]:0", True),
        ("localhost:0", True),
        ("0.0.0.0:0", False),
        ("[::]:0", False),
        ("192.0.2.1:0", False),
        ("localhost.example:0", False),
    ],
)
def test_only_loopback_is_local(listen: str, is_local: bool) -> None:
    assert Exposure(listen_address(listen)).is_local is is_local


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("registry.example", True)])
def test_a_login_without_tls_is_warned_about_unless_it_stays_here(
    tmp_path: Path, host: str, warns: bool
) -> None:
    login = tmp_path / "login.properties"
    login.write_text("bearer.auth.token=hidden\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        output = said(
            *("--listen", f"127.0.0.1:{listener.getsockname()[1]}"),
            *("--schema-registry", f"http://{host}:8081", "--schema-registry-config", str(login)),
        )
    assert ("has no TLS, so that others on the network can read the login" in output) is warns
    assert "hidden" not in output
