"""Settings from files, the environment and the command line, and Java's properties files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.settings.broker_settings import BROKER_SETTINGS
from tidelog.settings.properties_file import PropertiesError, parse_properties
from tidelog.settings.setting import SettingError
from tidelog.settings.setting_sources import gather_settings, setting_of_variable


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1")]),
        ("a = 1\n b:2 \nc 3\n", [("a", "1"), ("b", "2 "), ("c", "3")]),
        ("# a=1\n! b=2\n\n   \nc=", [("c", "")]),
        ("a=1,\\\n   2\nb=3", [("a", "1,2"), ("b", "3")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a\\=b=c\\:d", [("a=b", "c:d")]),
        ("a=\\u00e9\\t.", [("a", "é\t.")]),
        ("a==b", [("a", "=b")]),
        ("alone", [("alone", "")]),
        ("a=1\r\nb=2\rc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\\", [("a", "1")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_lines_are_counted() -> None:
    assert [entry.line for entry in parse_properties("# x\na=1,\\\n2\n\nb=3")] == [2, 5]
    with pytest.raises(PropertiesError, match="line 2"):
        parse_properties("a=1\nb=\\u12x4")


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        parse_properties(text)
    except PropertiesError as error:
        assert "line" in str(error)


def test_flag_over_environment_over_file() -> None:
    given_settings = gather_settings(
        files=[("server.properties", "node.id=1\nnum.partitions=1\nlog.retention.ms=1\n")],
        environment={"TIDELOG_NODE_ID": "2", "TIDELOG_NUM_PARTITIONS": "2", "PATH": "/bin"},
        assignments=["node.id=3"],
    )
    settings = given_settings.parse()
    assert (settings.node_id, settings.num_partitions, settings.log_retention_ms) == (3, 2, 1)


def test_later_files_win() -> None:
    files = [
        ("defaults.properties", "node.id=1\nbroker.rack=a\n"),
        ("rack.properties", "broker.rack=zone-b\n"),
    ]
    settings = gather_settings(files=files).parse()
    assert (settings.node_id, settings.broker_rack) == (1, "zone-b")
    with pytest.raises(SettingError, match=r"rack\.properties, line 1: .*node\.id"):
        gather_settings(files=[*files, ("rack.properties", "node.id=x")]).parse()


@pytest.mark.parametrize("name", list(BROKER_SETTINGS))
def test_each_setting_has_a_variable(name: str) -> None:
    assert setting_of_variable("TIDELOG_" + name.upper().replace(".", "_").replace("-", "_")) == name


def test_own_settings_need_no_second_prefix() -> None:
    assert setting_of_variable("TIDELOG_ETCD_ENDPOINTS") == "tidelog.etcd.endpoints"
    assert setting_of_variable("TIDELOG_TIDELOG_ETCD_ENDPOINTS") == "tidelog.etcd.endpoints"
    both = {"TIDELOG_ETCD_PREFIX": "/a", "TIDELOG_TIDELOG_ETCD_PREFIX": "/b"}
    with pytest.raises(SettingError, match=r"TIDELOG_TIDELOG_ETCD_PREFIX both set tidelog\.etcd\.prefix"):
        gather_settings(environment=both)


def test_other_variables_are_ignored() -> None:
    """Kubernetes sets such variables for a service with the name tidelog."""
    others = {
        "TIDELOG_SERVICE_HOST": "10.0.0.1",
        "TIDELOG_PORT_9092_TCP": "x",
        "TIDELOG_BOOTSTRAP_SERVER": "y",
    }
    found = gather_settings(environment=others)
    assert found.texts == {}
    assert set(found.unknown_variables) == set(others)
    found.parse()


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            {"files": [("broker.properties", "\nnode.id=x")]},
            "broker.properties, line 2: Invalid value x for configuration node.id",
        ),
        ({"environment": {"TIDELOG_NODE_ID": "x"}}, "TIDELOG_NODE_ID: Invalid value x"),
        ({"assignments": ["node.id=x"]}, "--set node.id: Invalid value x"),
        ({"assignments": ["node.id"]}, "--set node.id: expected NAME=VALUE"),
        ({"assignments": ["nod.id=1"]}, "did you mean node.id"),
        ({"assignments": ["tidelog.rpc.listener=nowhere"]}, "Value must be host:port"),
        ({"assignments": ["tidelog.rpc.listener=0.0.0.0:1"]}, "cannot connect to a wildcard"),
        ({"files": [("broker.properties", "a\\u1=2")]}, "broker.properties, line 1"),
        (
            {"environment": {"TIDELOG_SSL_PROVIDER": "x"}},
            "TIDELOG_SSL_PROVIDER: ssl.provider",
        ),
    ],
)
def test_an_error_names_its_place(sources: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        gather_settings(**sources).parse()  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
