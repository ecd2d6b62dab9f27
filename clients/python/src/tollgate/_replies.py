"""What the decision service says, in values: replies to results or errors.

Promises: every reply that is not a success raises a typed error; a member of a wrong type is absent,
because something else may listen on the address.
Never: does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

from ._address import Address
from ._wire import Reply, WireError
from .errors import (
    BadRequest,
    Limit,
    NotAllowed,
    NotFound,
    NotServed,
    PermitError,
    QueueFull,
    RateLimitExceeded,
    TollgateError,
    TollgateUnavailable,
)

#: What a reply about guards says about what remains.
RATE_HEADERS = (
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit",
    "ratelimit-policy",
)


@dataclass(frozen=True)
class Grant:
    """A granted request; ``permit`` is ``None`` for guards, whose tokens are not settled."""

    permit: Optional[str]
    waited: float
    limit: Optional[Limit]
    remaining: Optional[int]
    decision: str
    use_within: Optional[float]
    provider: Optional[str]
    guard: Optional[str]
    #: of a guard of names: ``wait``, ``retry_delay``, ``retries``, ``factor``, ``max_pending``
    task: Optional[Mapping[str, Any]] = None
    #: of guards: ``x-ratelimit-limit`` and so on, as they are sent to callers
    rate_headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Capacity:
    """What may go now, without taking it."""

    available: bool
    retry_in: Optional[float]
    remaining: Optional[int]
    #: of the provider: ``normal``, ``throttle``, ``sleep``, ``half_open`` or ``cache_only``
    state: Optional[str]
    #: what says no, and why
    limit: Optional[Limit] = None
    reason: Optional[str] = None

    def __bool__(self) -> bool:
        return self.available


@dataclass(frozen=True)
class Reported:
    """What a report taught: ``cls`` is ``success``, ``limited``, ``server_error``, ``network`` or
    ``other``; ``retry_in`` is how long the provider is not called now."""

    first: bool
    cls: Optional[str]
    retry_in: Optional[float]


def grant_of(reply: Reply, address: Address, what: Mapping[str, Any]) -> Grant:
    """The grant of ``what``, or :class:`RateLimitExceeded`."""
    body = checked(reply, address)
    return Grant(
        permit=_name(body, "permit"),
        waited=_number(body, "waited") or 0.0,
        limit=_limit(body.get("limit")),
        remaining=_count(body, "remaining"),
        decision=_name(body, "decision") or "allow",
        use_within=_number(body, "use_within"),
        provider=_name(body, "provider") or what.get("provider"),
        guard=_name(body, "guard") or what.get("guard"),
        task=_task(body),
        rate_headers=_rate_headers(reply),
    )


def capacity_of(reply: Reply, address: Address) -> Capacity:
    """The capacity."""
    body = checked(reply, address)
    return Capacity(
        available=bool(body.get("available")),
        retry_in=_number(body, "retry_in"),
        remaining=_count(body, "remaining"),
        state=_name(body, "state"),
        limit=_limit(body.get("limit")),
        reason=_name(body, "reason"),
    )


def reported_of(reply: Reply, address: Address) -> Reported:
    """What the report taught."""
    body = checked(reply, address)
    return Reported(bool(body.get("first")), _name(body, "class"), _number(body, "retry_in"))


def renewed_of(reply: Reply, address: Address) -> Optional[float]:
    """Seconds within which the call of a renewed permit is to be made."""
    return _number(checked(reply, address), "use_within")


def metrics_of(
    reply: Reply, address: Address, entity: Optional[str] = None, provider: Optional[str] = None
) -> Dict[str, Any]:
    """The document of the metrics; servers without it are told apart from wrong names."""
    if reply.status == 404 and _word(reply) == "UnknownEntity":
        raise _unknown_entity(entity, provider)
    if reply.status in (404, 405) and _word(reply) != "UnknownProvider":
        raise NotServed(
            f"Tollgate at {address.shown} does not serve metrics",
            hint="a later version of the daemon does; get_status(provider) shows limits and counts",
        )
    return checked(reply, address)


def _unknown_entity(entity: Optional[str], provider: Optional[str]) -> NotFound:
    listed = "metrics() lists what has been called"
    if provider is None:
        return NotFound(
            f"no entity `{entity}` has been called", hint=listed, code="UnknownEntity"
        )
    what = f"there is no provider `{provider}`"
    if entity is not None:
        what += f", or it has no entity `{entity}` that has been called"
    return NotFound(what, hint=listed, code="UnknownEntity")


def checked(reply: Reply, address: Address) -> Dict[str, Any]:
    """The JSON of a success; otherwise the error that it stands for."""
    try:
        body = reply.json()
    except WireError:
        body = None
    if not isinstance(body, dict):
        raise TollgateUnavailable(
            f"{address.shown} responded with {reply.status} and no JSON",
            hint="is this the address of Tollgate, and not of another program?",
        )
    if 200 <= reply.status < 300:
        return body
    error = _error(reply.status, body, address)
    error.limit, error.reason = _limit(body.get("limit")), _name(body, "reason")
    if isinstance(error, RateLimitExceeded):
        error.task = _task(body)
        error.rate_headers = _rate_headers(reply)
    raise error


def _task(body: Dict[str, Any]) -> Optional[Mapping[str, Any]]:
    task = body.get("task")
    return task if isinstance(task, dict) else None


def _rate_headers(reply: Reply) -> Dict[str, str]:
    return {name: reply.headers[name] for name in RATE_HEADERS if name in reply.headers}


def _error(status: int, body: Dict[str, Any], address: Address) -> TollgateError:
    code, hint = _name(body, "error"), _name(body, "hint")
    message = _name(body, "message") or f"{address.shown} responded with {status}"
    if status == 429 and "granted" in body:
        return RateLimitExceeded(
            message,
            hint=hint,
            code=code,
            retry_in=_number(body, "retry_in"),
            remaining=_count(body, "remaining"),
            waited=_number(body, "waited") or 0.0,
            provider=_name(body, "provider"),
            guard=_name(body, "guard"),
        )
    if code == "QueueFull":
        return QueueFull(message, hint=hint, code=code, retry_in=_retry_in(body))
    if status in (429, 408) or status >= 500:
        return TollgateUnavailable(message, hint=hint, code=code, retry_in=_retry_in(body))
    kind = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: PermitError}.get(status, BadRequest)
    if status == 404 and code not in (
        "UnknownProvider",
        "UnknownGuard",
        "UnknownPermit",
        "UnknownEntity",
    ):
        kind = NotServed
    return kind(message, hint=hint, code=code)


def _word(reply: Reply) -> Optional[str]:
    try:
        word = reply.json().get("error")
    except (WireError, AttributeError):
        return None
    return word if isinstance(word, str) else None


def _retry_in(body: Dict[str, Any]) -> Optional[float]:
    value = _number(body, "retry_in")
    if value is not None:
        return value
    milliseconds = _number(body, "retryIn")  # errors of the gateway are in milliseconds
    return None if milliseconds is None else milliseconds / 1000


def _name(body: Mapping[str, Any], key: str) -> Optional[str]:
    value = body.get(key)
    return value if isinstance(value, str) else None


def _number(body: Mapping[str, Any], key: str) -> Optional[float]:
    value = body.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(body: Mapping[str, Any], key: str) -> Optional[int]:
    value = body.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _limit(value: Any) -> Optional[Limit]:
    if isinstance(value, str):
        return Limit(value)
    if not isinstance(value, dict) or not value.get("name"):
        return None
    return Limit(
        str(value["name"]), _count(value, "limit"), _name(value, "period"), _name(value, "scope")
    )
