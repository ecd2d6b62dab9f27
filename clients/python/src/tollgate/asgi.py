"""``RateLimitMiddleware``: guards in front of an ASGI application (FastAPI, Starlette, Litestar …).

Each request asks the guards ``ip``, ``user`` (if its header is there) and ``api`` in one decision:
if one rejects, none is charged. Promises: exempt paths are not asked for; a rejection is 429 with
``X-RateLimit-*`` and ``Retry-After``, a success has the same rate headers, both have
``X-Tollgate-Decision``; all come with the decision, so that it costs one request. Requests pass unchecked only
if the daemon cannot be reached, does not respond in time or cannot decide, never because too many ask at once;
an identifier that would be another one for each request is an error.
Never: reads or delays a body, or believes ``X-Forwarded-For`` of somebody who is not trusted.
"""

from __future__ import annotations

import hashlib
import inspect
import ipaddress
import json
import logging
import math
import time
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    List,
    Mapping,
    MutableMapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from .client import AsyncClient, Client
from .errors import (
    BadRequest,
    QueueFull,
    RateLimitExceeded,
    ReplyLost,
    TollgateError,
    TollgateUnavailable,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = List[Tuple[bytes, bytes]]

log = logging.getLogger("tollgate")

#: While the daemon is away, it is asked again after so many seconds; requests between do not wait.
AWAY_FOR = 1.0
#: A flood is one line a second, not one per request.
LOG_EVERY = 1.0
#: The longest identifier that the daemon takes; a longer one is counted by its hash.
IDENTIFIER_MAX = 256
IDENTIFY_HINT = (
    "give a function `def identify(scope)` that returns a text or a number; what has to be awaited, "
    "await in an outer middleware and leave in scope"
)


class RateLimitMiddleware:
    """``app.add_middleware(RateLimitMiddleware)``.

    ``ip``, ``user``, ``api``: the names of the guards, ``None`` to leave one out. ``identify``
    returns the user of a scope, a text or a number, and is no coroutine; by default it is the value of
    ``user_header``. ``on_unavailable``:
    ``"open"`` lets requests pass while the daemon is away, ``"closed"`` responds 503. A daemon that
    is there and has too much to do is always 503.
    """

    def __init__(
        self,
        app: App,
        client: Optional[AsyncClient] = None,
        *,
        ip: Optional[str] = "ip",
        user: Optional[str] = "user",
        api: Optional[str] = "api",
        user_header: str = "x-user-id",
        identify: Optional[Callable[[Scope], Union[str, int, None]]] = None,
        exempt_paths: Sequence[str] = ("/health",),
        trusted_proxies: Sequence[str] = (),
        on_unavailable: str = "open",
    ):
        if on_unavailable not in ("open", "closed"):
            raise BadRequest("`on_unavailable` is not known", hint='write "open" or "closed"')
        if isinstance(client, Client):
            raise BadRequest("`client` is a blocking Client", hint="give tollgate.AsyncClient()")
        if isinstance(exempt_paths, str) or isinstance(trusted_proxies, str):
            raise BadRequest(
                "`exempt_paths` and `trusted_proxies` are lists", hint='write ["/health"]'
            )
        if identify is not None:
            _check_identify(identify)
        try:
            self._trusted = [ipaddress.ip_network(text, strict=False) for text in trusted_proxies]
        except ValueError as error:
            raise BadRequest(
                f"`trusted_proxies`: {error}", hint='write networks such as "10.0.0.0/8"'
            ) from None
        self.app = app
        self._client = client or AsyncClient()
        self._guards = (ip, user, api)
        self._user_header = user_header.lower().encode("latin-1")
        self._identify = identify
        self._exempt = tuple(exempt_paths)
        self._is_open = on_unavailable == "open"
        self._away_until = 0.0
        self._log_after = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_exempt(scope):
            await self.app(scope, receive, send)
            return
        asks = self._asks(scope)
        if not asks:
            await self.app(scope, receive, send)
            return
        try:
            headers = await self._decide(asks)
        except RateLimitExceeded as denied:
            await self._reject(denied, scope, receive, send)
            return
        except (QueueFull, ReplyLost) as busy:
            self._log("get 503", busy)
            await self._unavailable(busy, scope, receive, send)
            return
        except TollgateUnavailable as away:
            self._log("pass unchecked" if self._is_open else "get 503", away)
            if not self._is_open:
                await self._unavailable(away, scope, receive, send)
                return
            headers = []
        await self.app(scope, receive, _with_headers(send, headers) if headers else send)

    async def _decide(self, asks: List[Dict[str, str]]) -> Headers:
        """The headers of the response that follows; raises if the request may not pass."""
        if time.monotonic() < self._away_until:
            raise TollgateUnavailable("Tollgate is away", retry_in=AWAY_FOR)
        try:
            permit = await self._client.acquire_all(asks, wait=False)
        except ReplyLost as lost:
            if not lost.is_timeout:
                raise  # the daemon was there
            self._away_until = time.monotonic() + AWAY_FOR
            raise TollgateUnavailable(lost.message, hint="is its machine overloaded?") from lost
        except TollgateUnavailable:
            self._away_until = time.monotonic() + AWAY_FOR
            raise
        return [(b"x-tollgate-decision", permit.decision.encode()), *_encoded(permit.rate_headers)]

    def _log(self, what: str, error: TollgateError) -> None:
        if time.monotonic() >= self._log_after:
            self._log_after = time.monotonic() + LOG_EVERY
            log.warning("requests %s: %s", what, error)

    async def _reject(
        self,
        denied: RateLimitExceeded,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        headers = [(b"x-tollgate-decision", b"reject"), *_encoded(denied.rate_headers)]
        if denied.retry_in is not None:
            headers += _retry_after(denied.retry_in)
        retry_in = None if denied.retry_in is None else math.ceil(denied.retry_in * 1000)
        body = {
            "error": "RateLimitExceeded",
            "message": denied.message,
            "hint": denied.hint,
            "guard": denied.guard,
            "limit": str(denied.limit) if denied.limit else None,
            "reason": denied.reason,
            "retryIn": retry_in,
            "detail": denied.message,  # where FastAPI's clients look
        }
        await _respond(scope, receive, send, 429, body, headers)

    async def _unavailable(
        self, error: TollgateError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = [(b"x-tollgate-decision", b"reject"), *_retry_after(1.0)]
        await _respond(scope, receive, send, 503, _unavailable_body(error), headers)

    def _asks(self, scope: Scope) -> List[Dict[str, str]]:
        ip, user, api = self._guards
        asks: List[Dict[str, str]] = []
        if ip is not None:
            asks.append({"guard": ip, "identifier": _identifier(self._client_ip(scope))})
        if user is not None:
            name = self._user_of(scope)
            if name is not None:
                asks.append({"guard": user, "identifier": _identifier(name)})
        if api is not None:
            asks.append({"guard": api, "identifier": "global"})
        return asks

    def _user_of(self, scope: Scope) -> Optional[str]:
        if self._identify is not None:
            return _user_text(self._identify(scope))
        for name, value in scope["headers"]:
            if name.lower() == self._user_header:
                return str(value.decode("latin-1")).strip() or None
        return None

    def _is_exempt(self, scope: Scope) -> bool:
        """A path that the application may read in another way is always checked."""
        path = scope.get("path", "")
        raw = scope.get("raw_path") or path.encode("utf-8", "replace")
        raw = raw.split(b"?")[0]
        is_odd = any(part in raw for part in (b"%", b"\\", b"/.", b"//"))
        return not is_odd and any(path.startswith(prefix) for prefix in self._exempt)

    def _client_ip(self, scope: Scope) -> str:
        """The address of the caller: as far back in ``X-Forwarded-For`` as proxies are trusted."""
        peer = scope.get("client")
        client = str(peer[0]) if peer else "unknown"
        lines = [value for name, value in scope["headers"] if name.lower() == b"x-forwarded-for"]
        entries = ",".join(line.decode("latin-1") for line in lines).split(",") if lines else []
        for entry in reversed(entries):
            found = _address(entry.strip())
            if found is None or not self._is_trusted(client):
                break
            client = found
        return client

    def _is_trusted(self, client: str) -> bool:
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._trusted)


def _check_identify(identify: Any) -> None:
    """Of a coroutine function each call has another result: no two requests would share a bucket."""
    if not callable(identify):
        raise BadRequest("`identify` is no function", hint=IDENTIFY_HINT)
    called = getattr(type(identify), "__call__", None)
    if inspect.iscoroutinefunction(identify) or inspect.iscoroutinefunction(called):
        raise BadRequest("`identify` is a coroutine function", hint=IDENTIFY_HINT)


def _user_text(user: Any) -> Optional[str]:
    """What the guard counts by. The text of an object that has none is its place in memory, which
    differs from request to request."""
    if user is None or isinstance(user, (str, int)):
        return None if user is None or user == "" else str(user)
    text = str(user)
    if inspect.isawaitable(user) or f"{id(user):x}" in text.lower():
        if inspect.iscoroutine(user):
            user.close()  # else Python warns that nobody awaits it
        raise BadRequest(
            f"`identify` has returned a {type(user).__name__}, which names nobody",
            hint=IDENTIFY_HINT,
        )
    return text or None


def _identifier(text: str) -> str:
    """What the daemon counts by: a text that it would refuse is limited by its hash."""
    if len(text) <= IDENTIFIER_MAX and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _address(entry: str) -> Optional[str]:
    """An address as proxies write it: also with a port or in brackets."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    try:
        return str(ipaddress.ip_address(entry))
    except ValueError:
        return None


def _encoded(headers: Mapping[str, str]) -> Headers:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _retry_after(seconds: float) -> Headers:
    return [
        (b"retry-after", str(max(math.ceil(seconds), 1)).encode()),
        (b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()),
    ]


def _unavailable_body(away: TollgateError) -> Dict[str, Any]:
    message = "The rate limiter is not available. Please try again later."
    error = "QueueFull" if isinstance(away, QueueFull) else "StoreLost"
    return {"error": error, "message": message, "hint": away.hint, "detail": message}


def _with_headers(send: Send, headers: Headers) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            own = {name.lower() for name, _ in message.get("headers", ())}
            added = [header for header in headers if header[0] not in own]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sending


async def _respond(
    scope: Scope, receive: Receive, send: Send, status: int, body: Dict[str, Any], headers: Headers
) -> None:
    data = json.dumps(body).encode()
    head: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(data)).encode()),
        *headers,
    ]
    prefix = "http."
    if scope["type"] == "websocket":
        await receive()  # the handshake
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1013})  # try again later
            return
        prefix = "websocket.http."
    await send({"type": f"{prefix}response.start", "status": status, "headers": head})
    await send({"type": f"{prefix}response.body", "body": data})
