"""Permits: the right to make one call, and what became of it.

Promises: a permit is settled once. As a context manager it is settled when the block ends, also by
an exception: what was not reported counts as sent, and its slot is free at once. An exception that
has a response, such as ``urllib.error.HTTPError``, reports it, at the end of a block and as ``error=``.
Never: gives back a permit by itself. Whether a call was sent is known to the caller only: an error of
a second request, after a redirect, looks like one of the first. ``release`` gives it back.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Mapping, Optional, Type, Union

from . import _protocol as protocol
from . import _replies as replies
from ._faults import fault_of, response_of
from ._protocol import Cost
from ._replies import Grant, Reported
from ._wire import Request
from .errors import Limit, PermitError, QueueFull, TollgateUnavailable

if TYPE_CHECKING:
    from .client import AsyncClient, Client


class _PermitBase:
    """What both kinds of permits know."""

    def __init__(self, grant: Grant):
        self._grant = grant
        self._pid = os.getpid()
        self._is_settled = grant.permit is None
        self._use_within = grant.use_within

    @property
    def id(self) -> Optional[str]:
        """For ``report`` in another process; ``None`` for tokens of a guard."""
        return self._grant.permit

    @property
    def waited(self) -> float:
        """Seconds that it was waited for."""
        return self._grant.waited

    @property
    def limit(self) -> Optional[Limit]:
        """The limit with the least remaining."""
        return self._grant.limit

    @property
    def remaining(self) -> Optional[int]:
        """What that limit has left."""
        return self._grant.remaining

    @property
    def decision(self) -> str:
        """``allow`` or ``queue``."""
        return self._grant.decision

    @property
    def use_within(self) -> Optional[float]:
        """Make the call within so many seconds, counted from the grant or the last renewal."""
        return self._use_within

    @property
    def provider(self) -> Optional[str]:
        return self._grant.provider

    @property
    def guard(self) -> Optional[str]:
        return self._grant.guard

    @property
    def task(self) -> Optional[Mapping[str, Any]]:
        """Of a guard of names, what it means for tasks: ``wait``, ``retry_delay``, ``retries`` …"""
        return self._grant.task

    @property
    def rate_headers(self) -> Mapping[str, str]:
        """Of guards: ``x-ratelimit-limit`` and so on, as they are sent to callers."""
        return self._grant.rate_headers

    @property
    def is_settled(self) -> bool:
        """Reported or released, or nothing to settle."""
        return self._is_settled

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        of = self.provider or self.guard or "?"
        return f"<{type(self).__name__} of {of}, {'settled' if self._is_settled else 'open'}>"

    def _open_id(self) -> str:
        """Its id, if it can be settled here."""
        if self._grant.permit is None:
            raise PermitError(
                "tokens of a guard are not settled", hint="report permits of providers only"
            )
        if self._pid != os.getpid():
            raise PermitError(
                "the permit belongs to the process that acquired it",
                hint="acquire one in the forked worker, or pass permit.id to client.report()",
            )
        if self._is_settled:
            raise PermitError("the permit is already settled", hint="report or release it once")
        return self._grant.permit

    def _report(
        self, response: Any, error: Union[str, BaseException, None], **parts: Any
    ) -> Request:
        """A 429 that was raised is reported as the response that it is."""
        if isinstance(error, BaseException):
            is_alone = response is None and parts.get("status") is None and not parts.get("headers")
            raised = response_of(error) if is_alone else None
            error = fault_of(error) if raised is None else None
            response = response if raised is None else raised
        return protocol.report(self._open_id(), response, error=error, **parts)

    def _is_open_here(self) -> bool:
        return not self._is_settled and self._pid == os.getpid()


class Permit(_PermitBase):
    """A permit of a :class:`Client`."""

    def __init__(self, client: "Client", grant: Grant):
        super().__init__(grant)
        self._client = client

    def report(
        self,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Union[str, BaseException, None] = None,
        latency: Optional[float] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """What became of the call: a response of any HTTP library, or its parts, or an error.

        ``latency``: seconds that the response took; without it the time since the grant.
        """
        request = self._report(
            response, error, status=status, headers=headers, body=body, latency=latency, cost=cost
        )
        reported = replies.reported_of(self._client.send(request), self._client.address)
        self._is_settled = True  # only now: after an error the report may be sent again
        return reported

    def renew(self) -> None:
        """The call is still to be made, or takes longer: holds the permit as long as a new one."""
        self._use_within = self._client.renew(self._open_id())

    def release(self) -> None:
        """The call was not made: gives the permit back."""
        self._client.release(self._open_id())
        self._is_settled = True

    def __enter__(self) -> "Permit":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self._is_open_here():
            return
        try:
            self._client.send(self._report(None, error))
        except (QueueFull, TollgateUnavailable):
            pass  # an unreported permit counts as sent; the error of the block is the one to see
        self._is_settled = True


class AsyncPermit(_PermitBase):
    """A permit of an :class:`AsyncClient`."""

    def __init__(self, client: "AsyncClient", grant: Grant):
        super().__init__(grant)
        self._client = client

    async def report(
        self,
        response: Any = None,
        *,
        status: Optional[int] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        error: Union[str, BaseException, None] = None,
        latency: Optional[float] = None,
        cost: Optional[Cost] = None,
    ) -> Reported:
        """As :meth:`Permit.report`."""
        request = self._report(
            response, error, status=status, headers=headers, body=body, latency=latency, cost=cost
        )
        reported = replies.reported_of(await self._client.send(request), self._client.address)
        self._is_settled = True  # only now: after an error the report may be sent again
        return reported

    async def renew(self) -> None:
        """As :meth:`Permit.renew`."""
        self._use_within = await self._client.renew(self._open_id())

    async def release(self) -> None:
        """As :meth:`Permit.release`."""
        await self._client.release(self._open_id())
        self._is_settled = True

    async def __aenter__(self) -> "AsyncPermit":
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if not self._is_open_here():
            return
        # A task of its own: a second cancellation must not leave the permit open.
        await self._client.send_shielded(self._report(None, error))
        self._is_settled = True
