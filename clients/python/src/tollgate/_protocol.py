"""What is asked of the decision service, in values: arguments to requests.

Both clients use it, so that they cannot differ; ``_replies`` has what comes back.
Promises: wrong arguments raise before anything is sent.
Never: does I/O.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ._address import Address
from ._wire import Reply, Request, WireError
from .errors import BadRequest, NotServed

#: A number of calls, or amounts by unit such as ``{"tokens": 1200}``.
Cost = Union[int, Mapping[str, int]]
Ask = Mapping[str, Any]

#: One day: no limit that Tollgate waits for is worth a longer one.
TIMEOUT_MAX = 86_400.0

#: Never part of a report: they say nothing about limits and are secrets.
SECRET_HEADERS = frozenset(
    ["set-cookie", "cookie", "authorization", "proxy-authorization", "x-api-key"]
)
#: The server reads so many headers of a response.
HEADERS_MAX = 512
#: The server reads so much of a report; the part of a body that fits into it says enough about limits.
REPORT_MAX = 64 * 1024


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
        if value is not None:
            text(name, value)
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


def text(name: str, value: Any) -> str:
    """A name, which can be sent."""
    if isinstance(value, str) and value and not any("\ud800" <= char <= "\udfff" for char in value):
        return value
    raise BadRequest(f"`{name}` must be a text that is not empty", hint="give its name")


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
    body = {**what, **_texts(entity=entity, priority=priority, caller=caller)}
    cost = cost_of(tokens)
    if cost != 1:
        body["cost"] = cost
    # Tokens of a guard are not settled, and so not given back.
    return _acquire(body, wait, timeout, undo=None if "guard" in what else give_back)


def acquire_all(asks: Sequence[Ask], *, wait: bool, timeout: float) -> Request:
    """``POST /v1/acquire`` for several guards: all or none."""
    is_list = isinstance(asks, (list, tuple)) and len(asks) > 0
    if not is_list or not all(isinstance(ask, Mapping) for ask in asks):
        raise BadRequest(
            "`asks` is empty or not a list of asks",
            hint='give [{"guard": "ip", "identifier": "203.0.113.7"}]',
        )
    return _acquire({"asks": [dict(ask) for ask in asks]}, wait, timeout)


def _acquire(
    body: Dict[str, Any],
    wait: bool,
    timeout: float,
    undo: Optional[Callable[[Reply], Optional[Request]]] = None,
) -> Request:
    timeout = seconds("timeout", timeout)
    body["wait"] = flag("wait", wait)
    if wait:
        body["timeout"] = round(timeout, 3)
    held = timeout if wait else 0.0
    return Request("POST", "/v1/acquire", body, wait=held, is_repeatable=False, undo=undo)


def give_back(reply: Reply) -> Optional[Request]:
    """For a grant that nobody is there to receive; ``None`` if the reply is none."""
    try:
        body = reply.json()
    except WireError:
        return None
    permit = body.get("permit") if reply.status == 200 and isinstance(body, dict) else None
    return release(permit) if isinstance(permit, str) and permit else None


def report(
    permit: str,
    response: Any = None,
    *,
    status: Optional[int] = None,
    headers: Optional[Mapping[str, str]] = None,
    body: Union[str, bytes, None] = None,
    error: Optional[str] = None,
    latency: Optional[float] = None,
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
    if status is not None and (isinstance(status, bool) or not isinstance(status, int)):
        raise BadRequest("`status` is not a number", hint="give the HTTP status, status=200")
    fields: Dict[str, Any] = {"permit": text("permit", permit), **_given(status=status)}
    fields.update(_texts(error=error))
    if headers is not None:
        fields["headers"] = report_headers(headers)
    if body is not None:
        if not isinstance(body, (str, bytes)):
            raise BadRequest("`body` is not a body", hint="give a text or bytes")
        part = body[:REPORT_MAX]
        fields["body"] = part.decode("utf-8", "replace") if isinstance(part, bytes) else part
    if latency is not None:
        fields["latency"] = seconds("latency", latency)
    if cost is not None:
        fields["cost"] = cost_of(cost, least=0)
    _cut_body(fields)
    return Request("POST", "/v1/report", fields)


def _cut_body(fields: Dict[str, Any]) -> None:
    """Leaves as much of the beginning of the body as the server reads: quotes and letters take more in JSON."""
    while fields.get("body") and (size := len(json.dumps(fields))) > REPORT_MAX:
        body = fields["body"]
        fields["body"] = body[: max(len(body) - max(size - REPORT_MAX, len(body) // 8), 0)]


def report_headers(headers: Any) -> Dict[str, List[str]]:
    """The headers of a response without secrets, and only those that can be sent."""
    if not hasattr(headers, "items"):
        raise BadRequest("`headers` are not headers", hint='give {"Retry-After": "30"}')
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
    return Request("POST", "/v1/release", {"permit": text("permit", permit)})


def renew(permit: str) -> Request:
    """``POST /v1/renew``."""
    return Request("POST", "/v1/renew", {"permit": text("permit", permit)})


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
    query = {**what, **_texts(entity=entity, priority=priority, caller=caller)}
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
        query = _texts(entity=entity)
        path = "/v1/providers/" + quote(what["provider"], safe="")
    return Request("GET", path + ("?" + urlencode(query) if query else ""))


def metrics(entity: Optional[str], provider: Optional[str]) -> Request:
    """``GET /api/rate-limit/metrics``."""
    query = _texts(entity=entity, provider=provider)
    path = "/api/rate-limit/metrics"
    return Request("GET", path + ("?" + urlencode(query) if query else ""))


def _texts(**fields: Optional[str]) -> Dict[str, Any]:
    """Those that are given; each is a name."""
    return {name: text(name, value) for name, value in _given(**fields).items()}


def _given(**fields: Any) -> Dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def admin_only(address: Address, what: str) -> None:
    """Calls that the gateway's address does not have."""
    if address.is_gateway:
        raise NotServed(
            f"{what} is not served at {address.shown}",
            hint="make a Client of the admin address, http://127.0.0.1:4291",
        )
