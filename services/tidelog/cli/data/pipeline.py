"""`tidelog pipeline`: copies topics into tables with Spark, and proves that the tables are complete."""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli import tool_command
from tidelog.cli.command_line import LazyGroup
from tidelog.cli.tool_command import fail
from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.pipeline.errors import PipelineError, sentence_of, spark_errors
from tidelog.process.build import install_command

_COMMANDS: Final = {
    "archive": "tidelog.pipeline.commands.archive:command",
    "analytics": "tidelog.pipeline.commands.analytics:command",
    "connect-server": "tidelog.pipeline.commands.session:connect_server",
    "export-segments": "tidelog.pipeline.commands.export_segments:command",
    "jars": "tidelog.pipeline.commands.session:jars",
    "maintain": "tidelog.pipeline.commands.tables:maintain_table",
    "quarantine": "tidelog.pipeline.commands.quarantine:command",
    "verify": "tidelog.pipeline.commands.tables:verify_table",
}


class PipelineGroup(LazyGroup):
    """A group whose expected failures become one line on standard error and exit code 1."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            fail(str(error))
        except (ClientError, KafkaError) as error:
            fail(tool_command.sentence_of(error))
        except spark_errors() as error:
            sentence = sentence_of(error)
            if sentence is None:
                raise
            fail(sentence)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("pyspark", "pyarrow", "numpy", "pandas", "py4j"):
                raise
            fail(f"Spark is not installed: {install_command('pipeline')}")


@click.group(cls=PipelineGroup, places=_COMMANDS)
def command() -> None:
    """Copy topics into tables with Spark, and prove that the tables are complete."""
