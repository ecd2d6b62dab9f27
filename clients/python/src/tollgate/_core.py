"""What both clients do, without I/O: each method is one exchange, a request and what its reply means.

``Client`` and ``AsyncClient`` only carry exchanges out, so that they cannot differ.
Promises: wrong arguments raise before anything is sent.
Never: does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    List,
    Mapping,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

from . import _protocol as protocol
from . import _replies as replies
from ._address import Address
from ._protocol import Ask, Cost
from ._replies import Capacity, Grant, Reported
from ._wire import Reply, Request

Result = TypeVar("Result")


@dataclass(frozen=True)
class Exchange(Generic[Result]):
    """One request, and what its reply means."""

    request: Request
    result: Callable[[Reply], Result]


class Core:
    """The address of a daemon, and what identifiers belong to."""

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

    def _acquire(
        self,
        identifier: Optional[str],
        provider: Optional[str],
        url: Optional[str],
        guard: Optional[str],
        **options: Any,
    ) -> Exchange[Grant]:
        what = self._target(identifier, provider, url, guard)
        request = protocol.acquire(what, **options)
        return Exchange(request, lambda reply: replies.grant_of(reply, self.address, what))

    def _acquire_all(self, asks: Sequence[Ask], wait: bool, timeout: float) -> Exchange[Grant]:
        request = protocol.acquire_all(asks, wait=wait, timeout=timeout)
        return Exchange(request, lambda reply: replies.grant_of(reply, self.address, {}))

    def _report(
        self,
        permit: str,
        response: Any,
        status: Optional[int],
        headers: Optional[Mapping[str, str]],
        body: Union[str, bytes, None],
        error: Optional[str],
        latency: Optional[float],
        cost: Optional[Cost],
    ) -> Exchange[Reported]:
        request = protocol.report(
            permit,
            response,
            status=status,
            headers=headers,
            body=body,
            error=error,
            latency=latency,
            cost=cost,
        )
        return Exchange(request, lambda reply: replies.reported_of(reply, self.address))

    def _renew(self, permit: str) -> Exchange[Optional[float]]:
        request = protocol.renew(permit)
        return Exchange(request, lambda reply: replies.renewed_of(reply, self.address))

    def _release(self, permit: str) -> Exchange[Dict[str, Any]]:
        return self._checked(protocol.release(permit))

    def _capacity(
        self,
        identifier: Optional[str],
        provider: Optional[str],
        url: Optional[str],
        **options: Any,
    ) -> Exchange[Capacity]:
        request = protocol.capacity(self._target(identifier, provider, url, None), **options)
        return Exchange(request, lambda reply: replies.capacity_of(reply, self.address))

    def _get_status(
        self, identifier: Optional[str], guard: Optional[str], entity: Optional[str]
    ) -> Exchange[Dict[str, Any]]:
        protocol.admin_only(self.address, "get_status")
        return self._checked(
            protocol.get_status(identifier, guard=guard, default_guard=self._guard, entity=entity)
        )

    def _metrics(
        self, entity: Optional[str], provider: Optional[str]
    ) -> Exchange[Dict[str, Any]]:
        protocol.admin_only(self.address, "metrics")
        return Exchange(
            protocol.metrics(entity, provider),
            lambda reply: replies.metrics_of(reply, self.address, entity, provider).get(
                "metrics", {}
            ),
        )

    def _alerts(self) -> Exchange[List[Dict[str, Any]]]:
        protocol.admin_only(self.address, "alerts")
        return Exchange(
            protocol.metrics(None, None),
            lambda reply: replies.metrics_of(reply, self.address).get("alerts", []),
        )

    def _checked(self, request: Request) -> Exchange[Dict[str, Any]]:
        return Exchange(request, lambda reply: replies.checked(reply, self.address))
