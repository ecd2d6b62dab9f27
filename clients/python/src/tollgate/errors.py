"""Errors: whose fault, what, and what to do next.

Promises: every error can be pickled (Celery and multiprocessing send them between processes).
Never: contains a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

__all__ = [
    "BadRequest",
    "Limit",
    "NotAllowed",
    "NotFound",
    "NotServed",
    "PermitError",
    "QueueFull",
    "RateLimitExceeded",
    "ReplyLost",
    "TollgateError",
    "TollgateUnavailable",
]


@dataclass(frozen=True)
class Limit:
    """The limit that a decision names: ``1000/1d`` of the provider."""

    name: str
    limit: Optional[int] = None
    period: Optional[str] = None
    scope: Optional[str] = None

    def __str__(self) -> str:
        return self.name


class TollgateError(Exception):
    """Base of all errors. ``code`` is the word of the server (``UnknownProvider``), if it sent one.

    Every error has ``limit``, ``reason`` and ``retry_in``; they are ``None`` where nobody knows them."""

    #: what said no; ``None`` if it was a state (``reason``), not a limit
    limit: Optional[Limit] = None
    #: ``limit``, ``cooldown``, ``sleep``, ``concurrency``, ``store_lost``, … (docs/http.md)
    reason: Optional[str] = None
    #: seconds until it may be granted; ``None`` if no time is known
    retry_in: Optional[float] = None

    def __init__(self, message: str, *, hint: Optional[str] = None, code: Optional[str] = None):
        self.message = message
        self.hint = hint
        self.code = code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(kind: "type[TollgateError]", message: str, state: Dict[str, Any]) -> TollgateError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class RateLimitExceeded(TollgateError):
    """Denied: come back in ``retry_in`` seconds. Not a failure; nothing was counted."""

    def __init__(
        self,
        message: str,
        *,
        hint: Optional[str] = None,
        code: Optional[str] = None,
        limit: Optional[Limit] = None,
        reason: Optional[str] = None,
        retry_in: Optional[float] = None,
        remaining: Optional[int] = None,
        waited: float = 0.0,
        provider: Optional[str] = None,
        guard: Optional[str] = None,
    ):
        super().__init__(message, hint=hint, code=code)
        self.limit = limit
        self.reason = reason
        self.retry_in = retry_in
        self.remaining = remaining
        self.waited = waited
        self.provider = provider
        self.guard = guard
        #: of a guard of names: ``wait``, ``retry_delay``, ``retries``, ``factor``, ``max_pending``
        self.task: Optional[Mapping[str, Any]] = None
        #: of guards: ``x-ratelimit-limit`` and so on, as they are sent to callers
        self.rate_headers: Mapping[str, str] = {}


class TollgateUnavailable(TollgateError):
    """The daemon cannot be reached, does not respond in time, or cannot decide at the moment."""

    def __init__(
        self,
        message: str,
        *,
        hint: Optional[str] = None,
        code: Optional[str] = None,
        retry_in: Optional[float] = None,
    ):
        super().__init__(message, hint=hint, code=code)
        self.retry_in = retry_in


class ReplyLost(TollgateUnavailable):
    """No response came after the request was sent: nobody knows whether it was counted. A permit that
    comes within a second all the same is given back."""

    #: no response came in time; otherwise the connection ended
    is_timeout: bool = False


class QueueFull(TollgateError):
    """Too many ask or wait at this moment. The daemon is there: this never means that calls may
    pass unchecked. Nothing was counted; come back in ``retry_in`` seconds."""

    def __init__(
        self,
        message: str,
        *,
        hint: Optional[str] = None,
        code: Optional[str] = "QueueFull",
        retry_in: Optional[float] = None,
    ):
        super().__init__(message, hint=hint, code=code)
        self.retry_in = retry_in


class BadRequest(TollgateError, ValueError):
    """The request is wrong; sending it again does not help. Nothing was counted."""


class NotFound(BadRequest):
    """There is no such provider, guard or permit; ``code`` says which of them."""


class NotAllowed(TollgateError):
    """The token is missing or wrong, or does not allow this."""


class NotServed(TollgateError):
    """This server, or this address of it, does not have the function."""


class PermitError(TollgateError):
    """The permit was already reported or released, or belongs to another process."""
