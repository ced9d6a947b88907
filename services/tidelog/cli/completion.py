"""Completion in shells: `tidelog completion`, and the names of the topics and groups that exist.

Suggestions use the names, too. People wait for both, so the answer comes within a bounded time, or there is
none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from tidelog.client.admin.groups import list_groups
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import ClientSecurity
from tidelog.model.errors import KafkaError
from tidelog.process.command_help import DescribedCommand

PROGRAM: Final = "tidelog"
VARIABLE: Final = "_TIDELOG_COMPLETE"
"""The variable in which the script passes what click must complete. click derives it from the program."""
ANSWER_TIMEOUT_S: Final = 2.0
"""The time after which nobody waits for the names any more."""
MAX_NAMES: Final = 10_000
NamesOf = Callable[[Cluster], list[str]]
ClusterOf = Callable[[click.Context], tuple[str, ClientSecurity] | None]


@click.command(
    cls=DescribedCommand,
    examples=(
        'eval "$(tidelog completion bash)"   # for this shell; add it to ~/.bashrc',
        'eval "$(tidelog completion zsh)"',
        "tidelog completion fish > ~/.config/fish/completions/tidelog.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that completes commands and names in a shell.

    It completes commands, options, and their values, also the names of topics and groups. For these it asks
    the cluster of --bootstrap-server or TIDELOG_BOOTSTRAP_SERVER, and gives up after two seconds.
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, PROGRAM, VARIABLE).source())


def topic_names(cluster: Cluster) -> list[str]:
    return list(cluster.topics())


def group_names(cluster: Cluster) -> list[str]:
    return [group.group_id for group in list_groups(cluster, [], [])]


def known_names(bootstrap: str, security: ClientSecurity, names_of: NamesOf) -> list[str]:
    """Returns the names, or nothing if the cluster does not answer within `ANSWER_TIMEOUT_S`."""
    found: list[str] = []

    def ask() -> None:
        try:
            with Cluster(
                bootstrap, client_id="tidelog-cli", timeout_s=ANSWER_TIMEOUT_S, security=security
            ) as cluster:
                found.extend(names_of(cluster)[:MAX_NAMES])
        except (ClientError, KafkaError):
            return  # a suggestion is optional, and the command itself reports what is wrong

    # The client's limit is for each address and request, so the sum of all is limited here.
    asking = threading.Thread(target=ask, name="known names", daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT_S)
    return list(found)


class ExistingName(click.types.StringParamType):
    """A text that shells complete with the names in a cluster.

    `cluster_of` returns the bootstrap string and the security that the command line gives, or None.
    """

    def __init__(self, names_of: NamesOf, cluster_of: ClusterOf) -> None:
        self._names_of = names_of
        self._cluster_of = cluster_of

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        cluster = self._cluster_of(ctx)
        names = [] if cluster is None else known_names(*cluster, self._names_of)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
