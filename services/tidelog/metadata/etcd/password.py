"""Lets etcd require a user and a password from its clients.

etcd's own name for a user who may do everything is `root`, and authentication needs such a user. A client
with a user name works before and after the change, so a cluster needs no pause for it.
"""

from __future__ import annotations

from typing import Final

from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.faults import CallFailedError
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.options import EtcdOptions

ROOT: Final = "root"
"""The user, and the role that may do everything."""
_EXISTS: Final = "user name already exists"


async def require_password(options: EtcdOptions) -> bool:
    """Enables authentication with the user `root` and the password of the options. Returns False if it was
    already enabled, with this password. Raises StoreError; StoreRefusedError if another password is set.
    """
    connections = EtcdConnections(options)
    try:
        connection = await connections.get(None)
        if connections.token is not None:
            return False
        await _enable(connection, options)
        return True
    except CallFailedError as error:
        raise error.for_caller() from error
    finally:
        await connections.close()


async def require_no_password(options: EtcdOptions) -> bool:
    """Disables authentication. Returns False if it was not enabled. Raises StoreError."""
    connections = EtcdConnections(options)
    try:
        connection = await connections.get(None)
        if connections.token is None:
            return False
        timeout_s = options.operation_timeout_ms / 1000
        request = pb.AuthDisableRequest()
        await answer_of(
            connection.auth.AuthDisable(request, timeout=timeout_s, metadata=connections.metadata)
        )
        return True
    except CallFailedError as error:
        raise error.for_caller() from error
    finally:
        await connections.close()


async def _enable(connection: EtcdConnection, options: EtcdOptions) -> None:
    timeout_s = options.operation_timeout_ms / 1000
    add = pb.AuthUserAddRequest(name=ROOT, password=options.password)
    try:
        await answer_of(connection.auth.UserAdd(add, timeout=timeout_s))
    except CallFailedError as error:
        if _EXISTS not in error.details:
            raise
        # An earlier attempt ended before it enabled authentication, perhaps with another password.
        change = pb.AuthUserChangePasswordRequest(name=ROOT, password=options.password)
        await answer_of(connection.auth.UserChangePassword(change, timeout=timeout_s))
    grant = pb.AuthUserGrantRoleRequest(user=ROOT, role=ROOT)
    await answer_of(connection.auth.UserGrantRole(grant, timeout=timeout_s))
    await answer_of(connection.auth.AuthEnable(pb.AuthEnableRequest(), timeout=timeout_s))
