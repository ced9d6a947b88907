"""What a job can't do as asked."""

from __future__ import annotations


class PipelineError(Exception):
    """One sentence for the person at the terminal, with the next step where there is one."""
