"""The decision service in values: arguments to requests, replies to results or errors.

Both clients use it, so that they cannot differ. Promises: wrong arguments raise before anything is
sent; every reply that is not a success raises a typed error.
Never: does I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ._address import Address
from ._wire import Reply, Request, WireError
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

#: A number of calls, or amounts by unit such as ``{"tokens": 1200}``.
Cost = Union[int, Mapping[str, int]]
Ask = Mapping[str, Any]

#: One day: no limit that Tollgate waits for is worth a longer one.
TIMEOUT_MAX = 86_400.0

#: What a reply about guards says about what remains.
RATE_HEADERS = (
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit",
    "ratelimit-policy",
)

#: Never part of a report: they say nothing about limits and are secrets.
SECRET_HEADERS = frozenset(
    ["set-cookie", "cookie", "authorization", "proxy-authorization", "x-api-key"]
)
#: The server reads so many headers of a response.
HEADERS_MAX = 512
#: The part of a body that may say something about limits; error bodies are smaller.
REPORT_BODY_MAX = 64 * 1024


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
    state: Optional[str]

    def __bool__(self) -> bool:
        return self.available


@dataclass(frozen=True)
class Reported:
    """What a report taught: ``cls`` is ``ok``, ``limited``, … in the words of the server."""

    first: bool
    cls: Optional[str]
    retry_in: Optional[float]


# ---------------------------------------------------------------- requests


def target(
    identifier: Optional[str],
    *,
    default_guard: Optional[str],
    provider: Optional[str],
    url: Optional[str],
    guard: Optional[str],
) -> Dict[str, Any]:
    """What is asked for: a provider, a URL, or an identifier of a guard."""
    named = [name for name in (provider, url, guard) if name is not None]
    if len(named) > 1:
        raise BadRequest(
            "more than one of `provider`, `url` and `guard` is given", hint="give one of them"
        )
    for name, value in (
        ("identifier", identifier),
        ("provider", provider),
        ("url", url),
        ("guard", guard),
    ):
        if value is not None and (not isinstance(value, str) or not value):
            raise BadRequest(f"`{name}` must be a text that is not empty", hint="give its name")
    if provider is not None or url is not None:
        if identifier is not None:
            raise BadRequest(
                "`identifier` stands beside a provider or URL", hint="leave one of the two out"
            )
        return {"provider": provider} if url is None else {"url": url}
    guard = guard or default_guard
    if guard is not None:
        return {"guard": guard} if identifier is None else {"guard": guard, "identifier": identifier}
    if identifier is None:
        raise BadRequest(
            "nothing says what the permit is for",
            hint='name a provider or URL, acquire("tmdb"), or a guard, '
            'acquire("203.0.113.7", guard="ip")',
        )
    return {"url": identifier} if "://" in identifier else {"provider": identifier}


def cost_of(tokens: Cost, *, least: int = 1) -> Any:
    """The amount, as it is sent. ``least``: a call that was made may have cost nothing."""

    def is_amount(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    if isinstance(tokens, Mapping):
        if tokens and all(isinstance(unit, str) and is_amount(n) for unit, n in tokens.items()):
            return dict(tokens)
    elif is_amount(tokens):
        return tokens
    raise BadRequest(
        "`tokens` is not an amount",
        hint=f'give a whole number from {least}, or {{"tokens": 1200}} by unit',
    )


def flag(name: str, value: bool) -> bool:
    """A switch: a text such as ``"no"`` would count as true."""
    if not isinstance(value, bool):
        raise BadRequest(f"`{name}` is not a switch", hint="give True or False")
    return value


def count_of(name: str, value: int) -> int:
    """A number of things, also none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(f"`{name}` is not a number", hint="give a whole number from 0")
    return value


def cost_text(cost: Any) -> str:
    """The amount as a query or a header has it: ``calls=2`` or ``tokens=1200,calls=1``."""
    amounts = cost if isinstance(cost, Mapping) else {"calls": cost}
    return ",".join(f"{unit}={amount}" for unit, amount in amounts.items())


def seconds(name: str, value: float) -> float:
    """A duration that has an end."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= TIMEOUT_MAX:
        raise BadRequest(f"`{name}` is not a time", hint=f"give seconds from 0 to {TIMEOUT_MAX:.0f}")
    return float(value)


def acquire(
    what: Dict[str, Any],
    *,
    tokens: Cost,
    wait: bool,
    timeout: float,
    entity: Optional[str] = None,
    priority: Optional[str] = None,
    caller: Optional[str] = None,
) -> Request:
    """``POST /v1/acquire`` for one thing."""
    body = {**what, **_given(entity=entity, priority=priority, caller=caller)}
    cost = cost_of(tokens)
    if cost != 1:
        body["cost"] = cost
    return _acquire(body, wait, timeout)


def acquire_all(asks: Sequence[Ask], *, wait: bool, timeout: float) -> Request:
    """``POST /v1/acquire`` for several guards: all or none."""
    if not asks or not all(isinstance(ask, Mapping) for ask in asks):
        raise BadRequest(
            "`asks` is empty or not a list of asks",
            hint='give [{"guard": "ip", "identifier": "203.0.113.7"}]',
        )
    return _acquire({"asks": [dict(ask) for ask in asks]}, wait, timeout)


def _acquire(body: Dict[str, Any], wait: bool, timeout: float) -> Request:
    timeout = seconds("timeout", timeout)
    body["wait"] = flag("wait", wait)
    if wait:
        body["timeout"] = round(timeout, 3)
    held = timeout if wait else 0.0
    return Request("POST", "/v1/acquire", body, wait=held, is_repeatable=False)


def report(
    permit: str,
    response: Any = None,
    *,
    status: Optional[int] = None,
    headers: Optional[Mapping[str, str]] = None,
    body: Union[str, bytes, None] = None,
    error: Optional[str] = None,
    cost: Optional[Cost] = None,
) -> Request:
    """``POST /v1/report``. ``response`` is one of httpx, requests, aiohttp or urllib."""
    if response is not None:
        if status is not None or headers is not None or error is not None:
            raise BadRequest("`response` stands beside its parts", hint="give one or the other")
        status = getattr(response, "status_code", None) or getattr(response, "status", None)
        headers = getattr(response, "headers", None)
        if not isinstance(status, int):
            raise BadRequest(
                "`response` has no status", hint="give status=… and headers=… instead"
            )
    fields: Dict[str, Any] = {"permit": permit, **_given(status=status, error=error)}
    if headers is not None:
        fields["headers"] = report_headers(headers)
    if body is not None:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        fields["body"] = text[:REPORT_BODY_MAX]
    if cost is not None:
        fields["cost"] = cost_of(cost, least=0)
    return Request("POST", "/v1/report", fields)


def report_headers(headers: Any) -> Dict[str, List[str]]:
    """The headers of a response without secrets, and only those that can be sent."""
    pairs = headers.multi_items() if hasattr(headers, "multi_items") else headers.items()
    found: Dict[str, List[str]] = {}
    count = 0
    for name, value in pairs:
        name, value = str(name).lower(), str(value)
        is_plain = all(" " <= char <= "~" or char == "\t" for char in value)
        if name in SECRET_HEADERS or not is_plain or count >= HEADERS_MAX:
            continue
        found.setdefault(name, []).append(value)
        count += 1
    return found


def release(permit: str) -> Request:
    """``POST /v1/release``."""
    return Request("POST", "/v1/release", {"permit": permit})


def capacity(
    what: Dict[str, Any],
    *,
    tokens: Cost,
    entity: Optional[str],
    priority: Optional[str],
    caller: Optional[str],
) -> Request:
    """``GET /v1/capacity``."""
    if "guard" in what:
        raise BadRequest("a guard has no capacity", hint="ask get_status(identifier, guard=…)")
    query = {**what, **_given(entity=entity, priority=priority, caller=caller)}
    cost = cost_of(tokens)
    if cost != 1:
        query["cost"] = cost_text(cost)
    return Request("GET", "/v1/capacity?" + urlencode(query))


def get_status(
    identifier: Optional[str],
    *,
    guard: Optional[str],
    default_guard: Optional[str],
    entity: Optional[str],
) -> Request:
    """``GET /v1/guards/{class}`` or ``GET /v1/providers/{name}``."""
    what = target(identifier, default_guard=default_guard, provider=None, url=None, guard=guard)
    if "guard" in what:
        query = _given(identifier=what.get("identifier"))
        path = "/v1/guards/" + quote(what["guard"], safe="")
    elif "url" in what:
        raise BadRequest("a URL has no status", hint="name the provider, or ask for its capacity")
    else:
        query = _given(entity=entity)
        path = "/v1/providers/" + quote(what["provider"], safe="")
    return Request("GET", path + ("?" + urlencode(query) if query else ""))


def metrics(entity: Optional[str], provider: Optional[str]) -> Request:
    """``GET /api/rate-limit/metrics``."""
    query = _given(entity=entity, provider=provider)
    for name, value in query.items():
        if not isinstance(value, str) or not value:
            raise BadRequest(f"`{name}` must be a text that is not empty", hint="give its name")
    path = "/api/rate-limit/metrics"
    return Request("GET", path + ("?" + urlencode(query) if query else ""))


def _given(**fields: Any) -> Dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# ----------------------------------------------------------------- replies


def grant_of(reply: Reply, address: Address, what: Mapping[str, Any]) -> Grant:
    """The grant of ``what``, or :class:`RateLimitExceeded`."""
    body = checked(reply, address)
    return Grant(
        permit=body.get("permit"),
        waited=float(body.get("waited") or 0.0),
        limit=_limit(body.get("limit")),
        remaining=body.get("remaining"),
        decision=str(body.get("decision") or "allow"),
        use_within=body.get("use_within"),
        provider=body.get("provider") or what.get("provider"),
        guard=body.get("guard") or what.get("guard"),
        task=_task(body),
        rate_headers=_rate_headers(reply),
    )


def capacity_of(reply: Reply, address: Address) -> Capacity:
    """The capacity."""
    body = checked(reply, address)
    return Capacity(
        available=bool(body.get("available")),
        retry_in=body.get("retry_in"),
        remaining=body.get("remaining"),
        state=body.get("state"),
    )


def reported_of(reply: Reply, address: Address) -> Reported:
    """What the report taught."""
    body = checked(reply, address)
    return Reported(bool(body.get("first")), body.get("class"), body.get("retry_in"))


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


def admin_only(address: Address, what: str) -> None:
    """Calls that the gateway's address does not have."""
    if address.is_gateway:
        raise NotServed(
            f"{what} is not served at {address.shown}",
            hint="make a Client of the admin address, http://127.0.0.1:4291",
        )


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
    code = body.get("error") if isinstance(body.get("error"), str) else None
    message = str(body.get("message") or f"{address.shown} responded with {status}")
    hint = body.get("hint") if isinstance(body.get("hint"), str) else None
    if status == 429 and "granted" in body:
        return RateLimitExceeded(
            message,
            hint=hint,
            code=code,
            limit=_limit(body.get("limit")),
            reason=body.get("reason"),
            retry_in=body.get("retry_in"),
            remaining=body.get("remaining"),
            waited=float(body.get("waited") or 0.0),
            provider=body.get("provider"),
            guard=body.get("guard"),
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
    value = body.get("retry_in")
    if isinstance(value, (int, float)):
        return float(value)
    value = body.get("retryIn")  # errors of the gateway are in milliseconds
    return value / 1000 if isinstance(value, (int, float)) else None


def _limit(value: Any) -> Optional[Limit]:
    if isinstance(value, str):
        return Limit(value)
    if not isinstance(value, dict) or not value.get("name"):
        return None
    return Limit(str(value["name"]), value.get("limit"), value.get("period"), value.get("scope"))
