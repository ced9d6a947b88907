"""`tidelog consume --consumer-property`: the settings that it takes, and those that options set."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("group.id=readers", "--consumer-property group.id: use --group instead"),
        ("auto.offset.reset=earliest", "--consumer-property auto.offset.reset: use --from-beginning instead"),
        ("sasl.mechanism=PLAIN", "--consumer-property sasl.mechanism: use --command-config instead"),
        ("bootstrap.servers=a:1", "--consumer-property bootstrap.servers: use --bootstrap-server instead"),
        ("no.such=1", "--consumer-property: no.such is not a setting of this client"),
        ("group.protocol=new", "--consumer-property: Invalid value new for configuration group.protocol"),
        ("session.timeout.ms=9000", "--consumer-property: session.timeout.ms needs group.protocol=classic"),
        ("group.protocol", "--consumer-property group.protocol: expected NAME=VALUE"),
    ],
)
def test_a_wrong_property_is_refused_before_the_connection(given: str, said: str) -> None:
    result = CliRunner().invoke(main, ["consume", "t", "-b", "127.0.0.1:1", "--consumer-property", given])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"tidelog: {said}")
    assert result.stderr.count("\n") == 1
