"""A relay for one TCP address that can break its connections, refuse new ones, or discard their data."""

from __future__ import annotations

import asyncio
from types import TracebackType

CHUNK_BYTES = 64 * 1024


class TcpRelay:
    """Use `async with TcpRelay(host, port) as relay`, then connect to 127.0.0.1 and `relay.port`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_swallowing = False
        self.port = 0

    async def __aenter__(self) -> TcpRelay:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.refuse()

    async def accept(self) -> None:
        """Listens; after `refuse`, on the same port as before."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Breaks all connections and refuses new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Breaks all connections with a reset, and accepts new ones."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def swallow(self) -> None:
        """Discards all data from now on, without breaking a connection."""
        self._is_swallowing = True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target_writer}
        try:
            await asyncio.gather(self._pass_on(reader, target_writer), self._pass_on(target_reader, writer))
        finally:
            for either in (writer, target_writer):
                either.transport.abort()
                self._writers.discard(either)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if not self._is_swallowing:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        writer.transport.abort()
