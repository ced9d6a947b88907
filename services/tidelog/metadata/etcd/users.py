"""Creates users and roles in etcd, and lets etcd require them.

etcd's own name for a user who may do everything is `root`, and authentication needs such a user. A client
with a user name works before and after etcd begins to require one, so a cluster needs no pause for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from tidelog.metadata.etcd.connection import EtcdConnection, EtcdOptions, Metadata, answer_of
from tidelog.metadata.etcd.failover import EtcdConnections
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.messages import CallFailedError, CallFault, KeyNames

ROOT: Final = "root"
"""The user, and the role that may do everything."""

T = TypeVar("T")


class KeyRange(NamedTuple):
    """One key, or all keys that begin with a prefix, without the prefix of the cluster (EtcdOptions)."""

    key: str
    is_prefix: bool = True


class Role(NamedTuple):
    """A role: its users may read some keys, and both read and write others."""

    name: str
    reads: tuple[KeyRange, ...]
    writes: tuple[KeyRange, ...]


ROOT_ROLE: Final = Role(ROOT, (), ())
"""etcd's own role, which may do everything."""


class EtcdUser(NamedTuple):
    """A user. Without a password, it is only known by the common name of a certificate."""

    name: str
    role: Role
    password: str = ""


async def create_users(options: EtcdOptions, users: Sequence[EtcdUser]) -> None:
    """Creates the users and their roles. If they exist, sets their passwords and adds permissions to their
    roles. It takes no permission away, because services of an earlier version may still need it.

    A user of ROOT_ROLE keeps its password if etcd requires users, because the options then contain it. Raises
    StoreError; StoreRefusedError if etcd rejects the user of the options.
    """
    await _change(options, lambda writer: writer.create_users(users, takes_away=False))


async def require_users(options: EtcdOptions, users: Sequence[EtcdUser]) -> None:
    """Creates the users, gives their roles exactly the permissions that are named, and enables
    authentication. One of the users must be `root`.
    """

    async def change(writer: _UserWriter) -> None:
        await writer.create_users(users, takes_away=True)
        enable = pb.AuthEnableRequest()
        await writer.call(lambda c, t, m: c.auth.AuthEnable(enable, timeout=t, metadata=m))

    await _change(options, change)


async def require_no_users(options: EtcdOptions) -> bool:
    """Disables authentication. Returns False if it was not enabled. Raises StoreError."""

    async def change(writer: _UserWriter) -> bool:
        if not await writer.has_token():
            return False
        disable = pb.AuthDisableRequest()
        await writer.call(lambda c, t, m: c.auth.AuthDisable(disable, timeout=t, metadata=m))
        return True

    return await _change(options, change)


async def _change(options: EtcdOptions, change: Callable[[_UserWriter], Awaitable[T]]) -> T:
    connections = EtcdConnections(options)
    try:
        return await change(_UserWriter(connections, options))
    except CallFailedError as error:
        raise error.for_caller() from error
    finally:
        await connections.close()


class _UserWriter:
    """Changes users and roles. Each step first compares, so that nothing changes without need: a change
    makes etcd forget tokens.
    """

    def __init__(self, connections: EtcdConnections, options: EtcdOptions) -> None:
        self._connections = connections
        self._options = options
        self._names = KeyNames(options.prefix)

    async def create_users(self, users: Iterable[EtcdUser], *, takes_away: bool) -> None:
        for user in users:
            if user.role != ROOT_ROLE:
                await self._set_role(user.role, takes_away=takes_away)
            await self._set_user(user)

    async def has_token(self) -> bool:
        await self._connections.get(None)
        return self._connections.token is not None

    async def call(self, make: Callable[[EtcdConnection, float, Metadata], Awaitable[T]]) -> T:
        """Makes a call that may be repeated. Raises CallFailedError and StoreUnavailableError."""

        async def invoke(connection: EtcdConnection, timeout_s: float, metadata: Metadata) -> T:
            return await answer_of(make(connection, timeout_s, metadata))

        return await self._connections.call(invoke, may_repeat=True)

    async def _set_role(self, role: Role, *, takes_away: bool) -> None:
        get, add = pb.AuthRoleGetRequest(role=role.name), pb.AuthRoleAddRequest(name=role.name)
        found = await self._find(lambda c, t, m: c.auth.RoleGet(get, timeout=t, metadata=m))
        if found is None:
            await self._add(lambda c, t, m: c.auth.RoleAdd(add, timeout=t, metadata=m))
        wanted = self._permissions(role)
        there = {(p.key, p.range_end): p.permType for p in found.perm} if found is not None else {}
        for (key, end), kind in wanted.items():
            has = there.get((key, end))
            if has != kind and (takes_away or has != pb.Permission.READWRITE):
                permission = pb.Permission(permType=kind, key=key, range_end=end)
                await self._grant(pb.AuthRoleGrantPermissionRequest(name=role.name, perm=permission))
        for key, end in there.keys() - wanted.keys() if takes_away else ():
            await self._revoke(pb.AuthRoleRevokePermissionRequest(role=role.name, key=key, range_end=end))

    async def _grant(self, request: pb.AuthRoleGrantPermissionRequest) -> None:
        await self.call(lambda c, t, m: c.auth.RoleGrantPermission(request, timeout=t, metadata=m))

    async def _revoke(self, request: pb.AuthRoleRevokePermissionRequest) -> None:
        await self.call(lambda c, t, m: c.auth.RoleRevokePermission(request, timeout=t, metadata=m))

    def _permissions(self, role: Role) -> dict[tuple[bytes, bytes], pb.Permission.Type.ValueType]:
        """Returns the permissions by range. A range that the role also writes is not in it as one to read."""
        return {
            **{self._bounds(keys): pb.Permission.READ for keys in role.reads},
            **{self._bounds(keys): pb.Permission.READWRITE for keys in role.writes},
        }

    def _bounds(self, keys: KeyRange) -> tuple[bytes, bytes]:
        return self._names.range_of(keys.key) if keys.is_prefix else (self._names.encode(keys.key), b"")

    async def _set_user(self, user: EtcdUser) -> None:
        get = pb.AuthUserGetRequest(name=user.name)
        found = await self._find(lambda c, t, m: c.auth.UserGet(get, timeout=t, metadata=m))
        if found is None:
            no_password = pb.UserAddOptions(no_password=not user.password)
            add = pb.AuthUserAddRequest(name=user.name, password=user.password, options=no_password)
            await self._add(lambda c, t, m: c.auth.UserAdd(add, timeout=t, metadata=m))
        elif user.password and not await self._has_password(user):
            change = pb.AuthUserChangePasswordRequest(name=user.name, password=user.password)
            await self.call(lambda c, t, m: c.auth.UserChangePassword(change, timeout=t, metadata=m))
        if found is None or user.role.name not in found.roles:
            grant = pb.AuthUserGrantRoleRequest(user=user.name, role=user.role.name)
            await self.call(lambda c, t, m: c.auth.UserGrantRole(grant, timeout=t, metadata=m))

    async def _has_password(self, user: EtcdUser) -> bool:
        """Returns whether etcd accepts the password. It checks no passwords while it requires none."""
        connection = await self._connections.get(None)
        wanted = self._options._replace(username=user.name, password=user.password)
        try:
            return await connection.authenticate(wanted) is not None
        except CallFailedError as error:
            if error.fault is CallFault.REFUSED:
                return False
            raise

    async def _find(self, make: Callable[[EtcdConnection, float, Metadata], Awaitable[T]]) -> T | None:
        try:
            return await self.call(make)
        except CallFailedError as error:
            if error.fault is CallFault.NO_SUCH_USER:
                return None
            raise

    async def _add(self, make: Callable[[EtcdConnection, float, Metadata], Awaitable[object]]) -> None:
        """Adds a user or a role. An earlier attempt, whose answer was lost, may have added it."""
        try:
            await self.call(make)
        except CallFailedError as error:
            if error.fault is not CallFault.USER_EXISTS:
                raise
