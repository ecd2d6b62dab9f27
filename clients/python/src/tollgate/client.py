"""``Client`` and ``AsyncClient``: permits and status of a running daemon.

Promises: safe for threads and after a fork; each call has a bound in time; a denial raises
:class:`RateLimitExceeded`, everything else that is not a success another :class:`TollgateError`.
Never: shows the token, or falls back to no limit by itself.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import _protocol as protocol
from ._async_connections import AsyncPool
from ._connections import Pool
from ._core import Core, Exchange, Result
from ._protocol import Ask, Cost
from ._replies import Capacity, Grant, Reported
from ._wire import Reply, Request
from .errors import QueueFull, RateLimitExceeded, TollgateError, TollgateUnavailable
from .permit import AsyncPermit, Permit

CONNECT_TIMEOUT = 2.0


class Client(Core):
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
        exchange = self._acquire(
            identifier,
            provider,
            url,
            guard,
            tokens=tokens,
            wait=wait,
            timeout=timeout,
            entity=entity,
            priority=priority,
            caller=caller,
        )
        return self._permit(exchange)

    def acquire_all(
        self, asks: Sequence[Ask], *, wait: bool = True, timeout: float = 60.0
    ) -> Permit:
        """Tokens of several guards, all or none: ``[{"guard": "ip", "identifier": …}, …]``."""
        return self._permit(self._acquire_all(asks, wait, timeout))

    def report(
        self,
        permit: str,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Optional[str] = None,
        latency: Optional[float] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """Reports a permit by its id; may be sent again, the first one counts.

        ``latency``: seconds that the response took; without it the time since the grant.
        """
        exchange = self._report(permit, response, status, headers, body, error, latency, cost)
        return self._run(exchange)

    def renew(self, permit: str) -> Optional[float]:
        """Holds an open permit, by its id, as long as a new one: for a job that takes longer. Returns
        its new ``use_within``."""
        return self._run(self._renew(permit))

    def release(self, permit: str) -> None:
        """Gives a permit back by its id: its call was not made."""
        self._run(self._release(permit))

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
        exchange = self._capacity(
            identifier, provider, url, tokens=tokens, entity=entity, priority=priority, caller=caller
        )
        return self._run(exchange)

    def get_status(
        self,
        identifier: Optional[str] = None,
        *,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Of a guard: ``tokens_available``, ``tokens_per_minute``, ``burst_size``, ``last_refill``.
        Of a provider: everything that ``tollgate status`` knows."""
        return self._run(self._get_status(identifier, guard, entity))

    def metrics(
        self, entity: Optional[str] = None, *, provider: Optional[str] = None
    ) -> Dict[str, Any]:
        """Counts by entity; :class:`NotFound` if this entity was never called."""
        return self._run(self._metrics(entity, provider))

    def alerts(self) -> List[Dict[str, Any]]:
        """What needs an operator now."""
        return self._run(self._alerts())

    def limiter(self, guard: str) -> "Limiter":
        """A guard as an object whose ``acquire`` is true or false."""
        return Limiter(self, guard)

    def send(self, request: Request) -> Reply:
        """One request to the daemon."""
        return self._pool.send(request)

    def _run(self, exchange: Exchange[Result]) -> Result:
        return exchange.result(self.send(exchange.request))

    def _permit(self, exchange: Exchange[Grant]) -> Permit:
        """An interruption (Ctrl-C, a signal handler) after the response has come loses no permit."""
        received: List[Reply] = []
        try:
            grant = exchange.result(self._pool.send(exchange.request, received))
            return Permit(self, grant)
        except TollgateError:
            raise
        except BaseException:
            self._pool.give_back(exchange.request, received)
            raise

    def close(self) -> None:
        """Closes idle connections; the client can be used again."""
        self._pool.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
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


class AsyncClient(Core):
    """:class:`Client` for asyncio, for any number of event loops.

    A cancelled ``acquire`` takes nothing: a permit that was on its way is given back.
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
        self._pool = AsyncPool(self.address, timeout or CONNECT_TIMEOUT)

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
        exchange = self._acquire(
            identifier,
            provider,
            url,
            guard,
            tokens=tokens,
            wait=wait,
            timeout=timeout,
            entity=entity,
            priority=priority,
            caller=caller,
        )
        return AsyncPermit(self, await self._run(exchange))

    async def acquire_all(
        self, asks: Sequence[Ask], *, wait: bool = True, timeout: float = 60.0
    ) -> AsyncPermit:
        """As :meth:`Client.acquire_all`."""
        return AsyncPermit(self, await self._run(self._acquire_all(asks, wait, timeout)))

    async def report(
        self,
        permit: str,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Optional[str] = None,
        latency: Optional[float] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """As :meth:`Client.report`."""
        exchange = self._report(permit, response, status, headers, body, error, latency, cost)
        return await self._run(exchange)

    async def renew(self, permit: str) -> Optional[float]:
        """As :meth:`Client.renew`."""
        return await self._run(self._renew(permit))

    async def release(self, permit: str) -> None:
        """As :meth:`Client.release`."""
        await self._run(self._release(permit))

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
        exchange = self._capacity(
            identifier, provider, url, tokens=tokens, entity=entity, priority=priority, caller=caller
        )
        return await self._run(exchange)

    async def get_status(
        self,
        identifier: Optional[str] = None,
        *,
        guard: Optional[str] = None,
        entity: Optional[str] = None,
    ) -> Dict[str, Any]:
        """As :meth:`Client.get_status`."""
        return await self._run(self._get_status(identifier, guard, entity))

    async def metrics(
        self, entity: Optional[str] = None, *, provider: Optional[str] = None
    ) -> Dict[str, Any]:
        """As :meth:`Client.metrics`."""
        return await self._run(self._metrics(entity, provider))

    async def alerts(self) -> List[Dict[str, Any]]:
        """As :meth:`Client.alerts`."""
        return await self._run(self._alerts())

    async def send(self, request: Request) -> Reply:
        """One request to the daemon."""
        return await self._pool.send(request)

    async def _run(self, exchange: Exchange[Result]) -> Result:
        return exchange.result(await self.send(exchange.request))

    async def send_shielded(self, request: Request) -> None:
        """Settles a permit in a task of its own; a daemon that is gone settles it by itself."""
        try:
            await self._pool.shielded(self.send(request))
        except (QueueFull, TollgateUnavailable):
            pass

    async def close(self) -> None:
        """Waits for reports under way and closes the idle connections of this event loop."""
        await self._pool.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
