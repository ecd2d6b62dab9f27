"""Tollgate for Python: permits, guards, httpx, ASGI and Celery.

    import tollgate
    with tollgate.Client() as client:
        with client.acquire("tmdb") as permit:
            permit.report(httpx.get("https://api.themoviedb.org/3/movie/550"))

``Transport`` and ``AsyncTransport`` need httpx, ``rate_limited`` and a ``QueueManager`` with an
``app`` need Celery; neither is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._replies import Capacity, Reported
from .asgi import RateLimitMiddleware
from .client import AsyncClient, Client, Limiter
from .errors import (
    BadRequest,
    Limit,
    NotAllowed,
    NotFound,
    NotServed,
    PermitError,
    QueueFull,
    RateLimitExceeded,
    ReplyLost,
    TollgateError,
    TollgateUnavailable,
)
from .permit import AsyncPermit, Permit
from .queues import QueueManager
from .tasks import rate_limited
from .daemon import LocalDaemon, local

if TYPE_CHECKING:
    from .transport import AsyncTransport, GatewayUnavailable, Transport

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncPermit",
    "AsyncTransport",
    "BadRequest",
    "Capacity",
    "Client",
    "GatewayUnavailable",
    "Limit",
    "Limiter",
    "LocalDaemon",
    "NotAllowed",
    "NotFound",
    "NotServed",
    "Permit",
    "PermitError",
    "QueueFull",
    "QueueManager",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "ReplyLost",
    "Reported",
    "TollgateError",
    "TollgateUnavailable",
    "Transport",
    "local",
    "rate_limited",
]


def __getattr__(name: str) -> Any:
    if name in ("Transport", "AsyncTransport", "GatewayUnavailable"):
        from . import transport

        return getattr(transport, name)
    raise AttributeError(f"module 'tollgate' has no attribute {name!r}")
