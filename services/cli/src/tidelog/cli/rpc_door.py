"""A service's gRPC door, as its settings want it."""

from __future__ import annotations

import contextlib

from tidelog.rpc.grpc_transport import RpcServer, RpcService
from tidelog.runtime.broker_settings import BrokerSettings


async def open_rpc_door(
    settings: BrokerSettings, stack: contextlib.AsyncExitStack, *services: RpcService
) -> str:
    """Answers the address that the other services are told. Raises OSError naming the setting."""
    server = RpcServer(*services)
    try:
        listening = await server.start(settings.tidelog_rpc_listener)
    except OSError as error:
        raise OSError(
            f"tidelog.rpc.listener: {settings.tidelog_rpc_listener} can't be listened on: "
            "is it in use, or not an address of this machine?"
        ) from error
    stack.push_async_callback(server.stop)
    advertised = settings.tidelog_rpc_advertised_address
    if not advertised:
        return listening
    host, _, port = advertised.rpartition(":")
    return f"{host}:{server.port}" if port == "0" else advertised
