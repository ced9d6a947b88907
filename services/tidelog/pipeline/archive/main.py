"""The job for plain spark-submit, with the options of `tidelog pipeline archive`:

spark-submit --packages ... main.py --topic flights --table /tables/flights
"""

from __future__ import annotations

import sys

from tidelog.client.errors import ClientError
from tidelog.model.errors import KafkaError
from tidelog.pipeline.commands.archive import command
from tidelog.pipeline.errors import PipelineError


def main() -> None:
    try:
        command(standalone_mode=True)
    except (PipelineError, ClientError, KafkaError) as error:
        sys.exit(f"tidelog: {error}")


if __name__ == "__main__":
    main()
