"""The two ways in which bytes or a request for a codec are refused."""

from __future__ import annotations


class MalformedMessageError(ValueError):
    """Bytes that are no message of the said API and version: too short, a negative or impossible length, a
    bad varint, bad UTF-8.
    """


class UnsupportedVersionError(ValueError):
    """No codec for this API key, or none for this version of it."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"{name} has no version {version}")
        self.version = version
