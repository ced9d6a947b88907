"""`tidelog completion`: prints the script that makes a shell complete `tidelog`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from tidelog.process.command_help import DescribedCommand

PROGRAM: Final = "tidelog"
VARIABLE: Final = "_TIDELOG_COMPLETE"
"""The variable in which the script passes what click must complete. click derives it from the program."""


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
