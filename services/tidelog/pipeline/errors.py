"""The error that a job raises when it cannot do what the user asked."""

from __future__ import annotations


class PipelineError(Exception):
    """The text is one sentence for the user, with the next step if there is one."""
