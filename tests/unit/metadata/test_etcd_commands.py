"""`tidelog etcd ...` with a real etcd: its documents in JSON, and what it says about wrong input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerlab.broker_process import free_port
from brokerlab.etcd_process import EtcdProcess
from tidelog.cli.local_cluster.processes import EtcdBinary
from tidelog.cli.main import main
from tidelog.model.text import JsonObject

OLDER, OLDEST = "etcd-20210101-000000.db", "etcd-20200101-000000.db"
PASSWORD = ("--set", "tidelog.etcd.username=root", "--set", "tidelog.etcd.password=of-root")


@pytest.fixture
def etcd(any_etcd_binary: EtcdBinary, tmp_path: Path) -> Iterator[EtcdProcess]:
    process = EtcdProcess(tmp_path / "data", tmp_path / "log", binary=any_etcd_binary)
    yield process.start()
    process.stop()


def run(etcd: EtcdProcess, *arguments: str, form: str = "json") -> Result:
    endpoint = ("--set", f"tidelog.etcd.endpoints=127.0.0.1:{etcd.client_port}")
    return CliRunner().invoke(main, ["etcd", *arguments, *endpoint, "--format", form])


def document(etcd: EtcdProcess, *arguments: str) -> Any:
    done = run(etcd, *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def snapshots(tmp_path: Path) -> Path:
    directory = tmp_path / "snapshots"
    directory.mkdir()
    return directory


def test_the_document_of_a_snapshot(etcd: EtcdProcess, tmp_path: Path) -> None:
    directory = snapshots(tmp_path)
    for name in (OLDEST, OLDER):
        (directory / name).touch()
    said = document(etcd, "snapshot", "--output-dir", str(directory), "--keep", "2")
    path = Path(said["path"])
    assert said["size_bytes"] == path.stat().st_size > 0
    assert said["endpoint"] == f"127.0.0.1:{etcd.client_port}"
    assert said["revision"] >= 1
    assert said["removed"] == [str(directory / OLDEST)]
    assert sorted(directory.iterdir()) == [directory / OLDER, path]


def test_a_snapshot_is_in_the_document_if_an_older_one_stays(etcd: EtcdProcess, tmp_path: Path) -> None:
    directory = snapshots(tmp_path)
    (directory / OLDEST).touch()
    (directory / OLDER).mkdir()
    done = run(etcd, "snapshot", "--output-dir", str(directory), "--keep", "1")
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert Path(said["path"]).exists()
    assert said["removed"] == [str(directory / OLDEST)]
    assert done.stderr.splitlines()[-1].startswith(f"tidelog: {directory / OLDER} could not be removed")


def test_the_documents_of_required_passwords(etcd: EtcdProcess, tmp_path: Path) -> None:
    for kind in ("broker", "controller", "group-coordinator"):
        (tmp_path / kind).write_text(f"of-{kind}\n")
    options = (*PASSWORD, "--service-passwords", str(tmp_path))
    created = document(etcd, "require-password", *options, "--only-create")
    assert created == {"message": "etcd has the users", "requires_password": False}
    required = document(etcd, "require-password", *options)
    assert required == {"message": "etcd requires the password", "requires_password": True}
    refused = run(etcd, "snapshot", "--output-dir", str(tmp_path))
    assert (refused.exit_code, refused.stdout) == (1, "")
    no_longer = document(etcd, "require-password", *PASSWORD, "--off")
    assert no_longer == {"message": "etcd requires no password", "requires_password": False}


def member_config(tmp_path: Path, **changes: object) -> Path:
    peer = f"http://127.0.0.1:{free_port()}"
    config: JsonObject = {
        "name": "m1",
        "data-dir": str(tmp_path / "member-data"),
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"m1={peer}",
        **changes,
    }
    path = tmp_path / "member.json"
    path.write_text(json.dumps(config))
    return path


def join(etcd: EtcdProcess, source: Path, output: Path, form: str = "json") -> Result:
    return run(
        etcd, "join", "--member-config", str(source), "--output", str(output), "--timeout-s", "5", form=form
    )


def test_the_document_of_a_member_that_joins(etcd: EtcdProcess, tmp_path: Path) -> None:
    output = tmp_path / "etcd.json"
    done = join(etcd, member_config(tmp_path, **{"peer-transport-security": None}), output)
    assert json.loads(done.stdout) == {
        "member": "m1",
        "output": str(output),
        "initial_cluster_state": "new",
    }
    assert "m1: has no data" in done.stderr
    assert json.loads(output.read_text())["initial-cluster-state"] == "new"


def test_a_member_with_data_is_told_to_stay_as_it_is(etcd: EtcdProcess, tmp_path: Path) -> None:
    document(etcd, "snapshot", "--output-dir", str(snapshots(tmp_path)))  # etcd opens its port before its log
    source = member_config(tmp_path, **{"data-dir": str(etcd.data_dir)})
    said = json.loads(join(etcd, source, tmp_path / "etcd.json").stdout)
    assert said["initial_cluster_state"] is None
    assert join(etcd, source, tmp_path / "etcd.json", "plain").stdout == (
        "m1: has data; starts as the member that it was\n"
    )


@pytest.mark.parametrize(
    "changes",
    [{"peer-transport-security": ["ca.pem"]}, {"peer-transport-security": {"trusted-ca-file": 7}}],
)
def test_a_member_config_of_another_shape_is_refused(
    etcd: EtcdProcess, tmp_path: Path, changes: dict[str, object]
) -> None:
    done = join(etcd, source := member_config(tmp_path, **changes), tmp_path / "etcd.json")
    assert done.exit_code == 1, done.exception
    assert done.stderr == (
        f"tidelog: --member-config {source}: peer-transport-security: expected an object of file names\n"
    )


def test_a_wrong_endpoint_is_named(etcd: EtcdProcess, tmp_path: Path) -> None:
    etcd.stop()
    done = run(etcd, "snapshot", "--output-dir", str(tmp_path), "--timeout-s", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"tidelog: no snapshot from 127.0.0.1:{etcd.client_port} within 1 s; "
        "check tidelog.etcd.endpoints, or increase --timeout-s\n"
    )
