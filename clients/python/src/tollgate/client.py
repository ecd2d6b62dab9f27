"""``Client`` and ``AsyncClient``: permits and status of a running daemon.

Promises: safe for threads and after a fork; each call has a bound in time; a denial raises
:class:`RateLimitExceeded`, everything else that is not a success another :class:`TollgateError`.
Never: shows the token, or falls back to no limit by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Type, Union

from . import _protocol as protocol
from ._address import Address
from ._connections import AsyncPool, Pool
from ._protocol import Ask, Capacity, Cost, Reported
from ._wire import Reply, Request
from .errors import QueueFull, RateLimitExceeded, TollgateUnavailable
from .permit import AsyncPermit, Permit

CONNECT_TIMEOUT = 2.0


class _ClientBase:
    def __init__(self, url: Optional[str], token: Optional[str], guard: Optional[str]):
        self.address = Address(url, token)
        self._guard = guard

    def __repr__(self) -> str:
        guard = f", guard={self._guard!r}" if self._guard else ""
        return f"{type(self).__name__}({self.address.shown!r}{guard})"

    def _target(
        self,
        identifier: Optional[str],
        provider: Optional[str],
        url: Optional[str],
        guard: Optional[str],
    ) -> Dict[str, Any]:
        return protocol.target(
            identifier, default_guard=self._guard, provider=provider, url=url, guard=guard
        )

    def _status(
        self, identifier: Optional[str], guard: Optional[str], entity: Optional[str]
    ) -> Request:
        protocol.admin_only(self.address, "get_status")
        return protocol.get_status(
            identifier, guard=guard, default_guard=self._guard, entity=entity
        )

    def _metrics(self, entity: Optional[str], provider: Optional[str]) -> Request:
        protocol.admin_only(self.address, "metrics")
        return protocol.metrics(entity, provider)


class Client(_ClientBase):
    """Asks the daemon, blocking. One instance serves all threads and forked processes.

    ``url``: the admin address (default: ``TOLLGATE_ADMIN``, else ``127.0.0.1:4291``), or the
    gateway's with ``/-`` and a caller's ``token``. ``guard``: what identifiers belong to, if they
    are not providers.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        guard: Optional[str] = None,
        connect_timeout: float = CONNECT_TIMEOUT,
    ):
        super().__init__(url, token, guard)
        timeout = protocol.seconds("connect_timeout", connect_timeout)
        self._pool = Pool(self.address, timeout or CONNECT_TIMEOUT)

    def acquire(
        self,
        identifier: Optional[str] = None,
        tokens: Cost = 1,
        wait: bool = True,
        timeout: float = 60.0,
        *,
        provider: Optional[str] = None,
        url: Optional[str] = None,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
        priority: Optional[str] = None,
        caller: Optional[str] = None,
    ) -> Permit:
        """A permit for one call, or tokens of a guard; waits up to ``timeout`` seconds.

        ``identifier`` is a provider or a URL; with a guard, what the guard counts.
        """
        what = self._target(identifier, provider, url, guard)
        request = protocol.acquire(
            what,
            tokens=tokens,
            wait=wait,
            timeout=timeout,
            entity=entity,
            priority=priority,
            caller=caller,
        )
        return Permit(self, protocol.grant_of(self.send(request), self.address, what))

    def acquire_all(
        self, asks: Sequence[Ask], *, wait: bool = True, timeout: float = 60.0
    ) -> Permit:
        """Tokens of several guards, all or none: ``[{"guard": "ip", "identifier": …}, …]``."""
        request = protocol.acquire_all(asks, wait=wait, timeout=timeout)
        return Permit(self, protocol.grant_of(self.send(request), self.address, {}))

    def report(
        self,
        permit: str,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Optional[str] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """Reports a permit by its id; may be sent again, the first one counts."""
        request = protocol.report(
            permit, response, status=status, headers=headers, body=body, error=error, cost=cost
        )
        return protocol.reported_of(self.send(request), self.address)

    def release(self, permit: str) -> None:
        """Gives a permit back by its id: its call was not made."""
        protocol.checked(self.send(protocol.release(permit)), self.address)

    def capacity(
        self,
        identifier: Optional[str] = None,
        tokens: Cost = 1,
        *,
        provider: Optional[str] = None,
        url: Optional[str] = None,
        entity: Optional[str] = None,
        priority: Optional[str] = None,
        caller: Optional[str] = None,
    ) -> Capacity:
        """The same question without taking anything."""
        what = self._target(identifier, provider, url, None)
        request = protocol.capacity(
            what, tokens=tokens, entity=entity, priority=priority, caller=caller
        )
        return protocol.capacity_of(self.send(request), self.address)

    def get_status(
        self,
        identifier: Optional[str] = None,
        *,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Of a guard: ``tokens_available``, ``tokens_per_minute``, ``burst_size``, ``last_refill``.
        Of a provider: everything that ``tollgate status`` knows."""
        request = self._status(identifier, guard, entity)
        return protocol.checked(self.send(request), self.address)

    def metrics(
        self, entity: Optional[str] = None, *, provider: Optional[str] = None
    ) -> Dict[str, Any]:
        """Counts by entity; :class:`NotFound` if this entity was never called."""
        body = protocol.metrics_of(self.send(self._metrics(entity, provider)), self.address)
        found: Dict[str, Any] = body.get("metrics", {})
        return found

    def alerts(self) -> List[Dict[str, Any]]:
        """What needs an operator now."""
        body = protocol.metrics_of(self.send(self._metrics(None, None)), self.address)
        found: List[Dict[str, Any]] = body.get("alerts", [])
        return found

    def limiter(self, guard: str) -> "Limiter":
        """A guard as an object whose ``acquire`` is true or false."""
        return Limiter(self, guard)

    def send(self, request: Request) -> Reply:
        """One exchange with the daemon."""
        prefix = self.address.prefix
        if prefix:
            request = replace(request, path=prefix + request.path)
        return self._pool.send(request)

    def close(self) -> None:
        """Closes idle connections; the client can be used again."""
        self._pool.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class Limiter:
    """One guard: ``acquire`` says yes or no, where :class:`Client` raises."""

    def __init__(self, client: Client, guard: str):
        self._client = client
        self._guard = guard

    def acquire(
        self, identifier: str, tokens: int = 1, wait: bool = True, timeout: float = 60.0
    ) -> bool:
        """Whether the tokens were taken."""
        try:
            self._client.acquire(identifier, tokens, wait, timeout, guard=self._guard)
        except RateLimitExceeded:
            return False
        return True

    def get_status(self, identifier: str) -> Dict[str, Any]:
        """The bucket of this identifier; takes nothing."""
        return self._client.get_status(identifier, guard=self._guard)


class AsyncClient(_ClientBase):
    """:class:`Client` for asyncio. A cancelled ``acquire`` takes nothing."""

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        guard: Optional[str] = None,
        connect_timeout: float = CONNECT_TIMEOUT,
    ):
        super().__init__(url, token, guard)
        timeout = protocol.seconds("connect_timeout", connect_timeout)
        self._pool = AsyncPool(self.address, timeout or CONNECT_TIMEOUT)
        self._apart: Set["asyncio.Task[Reply]"] = set()

    async def acquire(
        self,
        identifier: Optional[str] = None,
        tokens: Cost = 1,
        wait: bool = True,
        timeout: float = 60.0,
        *,
        provider: Optional[str] = None,
        url: Optional[str] = None,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
        priority: Optional[str] = None,
        caller: Optional[str] = None,
    ) -> AsyncPermit:
        """As :meth:`Client.acquire`."""
        what = self._target(identifier, provider, url, guard)
        request = protocol.acquire(
            what,
            tokens=tokens,
            wait=wait,
            timeout=timeout,
            entity=entity,
            priority=priority,
            caller=caller,
        )
        return AsyncPermit(self, protocol.grant_of(await self.send(request), self.address, what))

    async def acquire_all(
        self, asks: Sequence[Ask], *, wait: bool = True, timeout: float = 60.0
    ) -> AsyncPermit:
        """As :meth:`Client.acquire_all`."""
        request = protocol.acquire_all(asks, wait=wait, timeout=timeout)
        return AsyncPermit(self, protocol.grant_of(await self.send(request), self.address, {}))

    async def report(
        self,
        permit: str,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Optional[str] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """As :meth:`Client.report`."""
        request = protocol.report(
            permit, response, status=status, headers=headers, body=body, error=error, cost=cost
        )
        return protocol.reported_of(await self.send(request), self.address)

    async def release(self, permit: str) -> None:
        """As :meth:`Client.release`."""
        protocol.checked(await self.send(protocol.release(permit)), self.address)

    async def capacity(
        self,
        identifier: Optional[str] = None,
        tokens: Cost = 1,
        *,
        provider: Optional[str] = None,
        url: Optional[str] = None,
        entity: Optional[str] = None,
        priority: Optional[str] = None,
        caller: Optional[str] = None,
    ) -> Capacity:
        """As :meth:`Client.capacity`."""
        what = self._target(identifier, provider, url, None)
        request = protocol.capacity(
            what, tokens=tokens, entity=entity, priority=priority, caller=caller
        )
        return protocol.capacity_of(await self.send(request), self.address)

    async def get_status(
        self,
        identifier: Optional[str] = None,
        *,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
    ) -> Dict[str, Any]:
        """As :meth:`Client.get_status`."""
        request = self._status(identifier, guard, entity)
        return protocol.checked(await self.send(request), self.address)

    async def metrics(
        self, entity: Optional[str] = None, *, provider: Optional[str] = None
    ) -> Dict[str, Any]:
        """As :meth:`Client.metrics`."""
        body = protocol.metrics_of(await self.send(self._metrics(entity, provider)), self.address)
        found: Dict[str, Any] = body.get("metrics", {})
        return found

    async def alerts(self) -> List[Dict[str, Any]]:
        """As :meth:`Client.alerts`."""
        body = protocol.metrics_of(await self.send(self._metrics(None, None)), self.address)
        found: List[Dict[str, Any]] = body.get("alerts", [])
        return found

    async def send(self, request: Request) -> Reply:
        """One exchange with the daemon."""
        prefix = self.address.prefix
        if prefix:
            request = replace(request, path=prefix + request.path)
        return await self._pool.send(request)

    async def send_apart(self, request: Request) -> None:
        """Settles a permit in a task of its own; a daemon that is gone settles it by itself."""
        task = asyncio.ensure_future(self.send(request))
        self._apart.add(task)
        task.add_done_callback(self._done_apart)
        try:
            await asyncio.shield(task)
        except (QueueFull, TollgateUnavailable):
            pass

    def _done_apart(self, task: "asyncio.Task[Reply]") -> None:
        self._apart.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved: asyncio would print it otherwise

    async def close(self) -> None:
        """Waits for reports under way and closes idle connections."""
        if self._apart:
            await asyncio.wait(list(self._apart), timeout=CONNECT_TIMEOUT)
        await self._pool.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()
