"""`tidelog pipeline jars`."""

from __future__ import annotations

import json

import click

from tidelog.pipeline.jars import session_jars
from tidelog.process.command_help import DescribedCommand
from tidelog.process.output_format import OutputFormat, output_format, with_format


@click.command("jars", cls=DescribedCommand, examples=("tidelog pipeline jars",))
@with_format
def command() -> None:
    """Fetch the JARs that Spark sessions need, once, and list them."""
    jars = session_jars()
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps([str(jar) for jar in jars], indent=2))
        return
    for jar in jars:
        click.echo(jar)
