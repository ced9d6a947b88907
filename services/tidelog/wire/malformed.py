"""The errors of the codec: malformed bytes, and unknown APIs or versions."""

from __future__ import annotations


class MalformedMessageError(ValueError):
    """The bytes are not a message of the API and version. They are too short, or contain an impossible
    length, a bad varint or bad UTF-8.
    """


class UnsupportedVersionError(ValueError):
    """There is no codec for the API key, or not for this version of it."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"{name} has no version {version}")
        self.version = version
