"""The listeners over which a hook reaches the brokers of its release.

While clients move from plaintext to TLS, some brokers have only the old listener, and after a rollback some
have only the new one. A hook that names both takes the one over which it sees the most brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import click

from tidelog.cli.tool_command import BOOTSTRAP_VARIABLE
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import NO_SECURITY, environment_security
from tidelog.model.errors import KafkaError

F = TypeVar("F", bound=Callable[..., object])

TIMEOUT_S: Final = 30.0

bootstrap_option = click.option(
    "--bootstrap-server",
    "-b",
    required=True,
    envvar=BOOTSTRAP_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT[,...]",
    help="One or more brokers of the release.",
)


class Entrances(NamedTuple):
    """The addresses of a listener with the security of TIDELOG_COMMAND_CONFIG, and those of a plaintext
    listener (or "").
    """

    bootstrap_server: str
    plaintext_bootstrap_server: str = ""

    def ways(self, client_id: str, timeout_s: float = TIMEOUT_S) -> list[Callable[[], Cluster]]:
        """Returns functions that connect. They raise ClientError."""

        def over_plaintext() -> Cluster:
            return Cluster(
                self.plaintext_bootstrap_server,
                client_id=client_id,
                timeout_s=timeout_s,
                security=NO_SECURITY,
            )

        def over_first() -> Cluster:
            return Cluster(
                self.bootstrap_server,
                client_id=client_id,
                timeout_s=timeout_s,
                security=environment_security(),
            )

        return [over_plaintext, over_first] if self.plaintext_bootstrap_server else [over_first]

    def open(self, client_id: str) -> Cluster:
        """Returns a connection over the listener that the most brokers have. Raises ClientError, KafkaError
        if none of them answers.
        """
        ways = self.ways(client_id)
        if len(ways) == 1:
            return ways[0]()
        counts: dict[int, int] = {}
        failure: ClientError | KafkaError | None = None
        for index, way in enumerate(ways):
            try:
                with way() as cluster:
                    counts[index] = len(cluster.describe().brokers)
            except (ClientError, KafkaError) as error:
                failure = error
        if not counts:
            assert failure is not None
            raise failure
        return ways[max(counts, key=lambda index: counts[index])]()


def entrance_options(command: F) -> F:
    """Adds --bootstrap-server and --plaintext-bootstrap-server."""
    command = click.option(
        "--plaintext-bootstrap-server",
        default="",
        metavar="HOST:PORT[,...]",
        help="The brokers' listener without TLS, while clients move from one listener to the other.",
    )(command)
    return bootstrap_option(command)
