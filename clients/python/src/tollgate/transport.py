"""``Transport`` and ``AsyncTransport``: httpx through the gateway.

Promises: a request goes to the gateway with its own method, headers and body, and comes back as if
the provider had answered; redirects and retries of httpx are governed too: those to another host than
the call's by the limits of that host, also if a provider is named. With ``fallback="direct"`` a request
goes to the provider only if it surely did not reach the gateway. A forked process has connections of
its own.
Never: sends a header of Tollgate to a provider, or a token into an error; uses a connection of the
process that forked this one.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, List, Mapping, Optional, TypeVar

import httpx

from . import _forks
from ._protocol import cost_of, cost_text, flag, seconds
from .errors import BadRequest, TollgateUnavailable

log = logging.getLogger("tollgate")

DEFAULT_GATEWAY = "http://127.0.0.1:4290"
#: The target of one link in a `Link` header.
LINK = re.compile(r"<([^<>]*)>")
#: The key of ``request.extensions`` with switches of one call.
EXTENSION = "tollgate"
#: The key of ``request.extensions`` with the host that a call began with; httpx passes it on to the
#: requests that follow redirects.
FIRST_HOST = "tollgate.first_host"
PREFIX = "x-tollgate-"
SWITCHES = ("entity", "priority", "caller", "cost", "timeout", "use_cache", "use_deduplication")


class GatewayUnavailable(TollgateUnavailable, httpx.ConnectError):
    """The gateway cannot be reached; also an :class:`httpx.ConnectError`."""

    def __init__(self, message: str, *, hint: str, request: httpx.Request):
        TollgateUnavailable.__init__(self, message, hint=hint)
        self._request = request


class _Router:
    """Where a request goes, and with which headers."""

    def __init__(
        self,
        gateway: Optional[str],
        provider: Optional[str],
        token: Optional[str],
        fallback: str,
        switches: Mapping[str, Any],
    ):
        if fallback not in ("direct", "error"):
            raise BadRequest("`fallback` is not known", hint='write "direct" or "error"')
        text = gateway or DEFAULT_GATEWAY
        try:
            self.gateway = httpx.URL(text if "://" in text else f"http://{text}")
        except httpx.InvalidURL:
            self.gateway = httpx.URL("")
        is_known = self.gateway.scheme in ("http", "https") and self.gateway.host
        if not is_known or self.gateway.path != "/" or self.gateway.query or self.gateway.userinfo:
            raise BadRequest("the gateway's address is not valid", hint=f"write {DEFAULT_GATEWAY}")
        if provider is not None and any(char in _printable("provider", provider) for char in "/?#% "):
            raise BadRequest("`provider` is not a name", hint='write "tmdb"')
        self.provider = provider
        self.falls_back = fallback == "direct"
        self._headers = _headers(switches)
        if token is not None:
            self._headers[PREFIX + "token"] = _printable("token", token)

    def governed(self, request: httpx.Request) -> httpx.Request:
        """The same request to the gateway."""
        url = request.url
        provider = self._provider_of(request)
        if provider is not None:
            path = b"/" + provider.encode() + url.raw_path
        else:
            path = b"/" + url.raw_scheme + b"://" + url.netloc + url.raw_path
        headers = request.headers.copy()
        headers["host"] = self.gateway.netloc.decode("ascii")
        extensions = dict(request.extensions)
        extensions.pop(FIRST_HOST, None)
        switches = extensions.pop(EXTENSION, None)
        extensions.pop("sni_hostname", None)
        for name, value in {**self._headers, **_headers({} if switches is None else switches)}.items():
            if value is not None:
                headers.setdefault(name, value)
        return httpx.Request(
            request.method,
            self.gateway.copy_with(raw_path=path),
            headers=headers,
            stream=request.stream,
            extensions=extensions,
        )

    def _provider_of(self, request: httpx.Request) -> Optional[str]:
        """The named provider, for the host that the call began with; others go by their URLs."""
        if self.provider is None:
            return None
        host = (request.url.host, request.url.port)
        first = request.extensions.get(FIRST_HOST)
        if first is None:
            # Not into the mapping: it may be the caller's, for many calls.
            request.extensions = {**request.extensions, FIRST_HOST: host}
        return self.provider if first in (None, host) else None

    def returned(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        """The response with links to the provider, which the gateway has led through itself."""
        provider = self._provider_of(request)
        for name in ("location", "content-location"):
            if name in response.headers:
                response.headers[name] = self._original(
                    request.url, provider, response.headers[name]
                )
        if "link" in response.headers:
            links = response.headers["link"]
            response.headers["link"] = LINK.sub(
                lambda found: f"<{self._original(request.url, provider, found[1])}>", links
            )
        return response

    def _original(self, url: httpx.URL, provider: Optional[str], link: str) -> str:
        here = f"{self.gateway.scheme}://{self.gateway.netloc.decode('ascii')}"
        path = link[len(here) :] if link.startswith(here + "/") else link
        if provider is None:
            return path[1:] if path.startswith(("/http://", "/https://")) else link
        prefix = f"/{provider}"
        if not path.startswith((prefix + "/", prefix + "?")) and path != prefix:
            return link
        return f"{url.scheme}://{url.netloc.decode('ascii')}{path[len(prefix) :] or '/'}"

    def direct(self, request: httpx.Request) -> httpx.Request:
        """The request to the provider itself, without anything of Tollgate's."""
        headers = httpx.Headers(
            [(name, value) for name, value in request.headers.raw
             if not name.lower().startswith(PREFIX.encode())]
        )
        extensions = {
            name: of
            for name, of in request.extensions.items()
            if name not in (EXTENSION, FIRST_HOST)
        }
        return httpx.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=extensions
        )

    def on_unreachable(self, request: httpx.Request, error: Exception) -> httpx.Request:
        """The request to send instead; raises if there is none."""
        shown = str(self.gateway).rstrip("/")
        if not self.falls_back:
            raise GatewayUnavailable(
                f"the gateway at {shown} cannot be reached ({type(error).__name__})",
                hint='start it with `tollgate serve`, or use fallback="direct"',
                request=request,
            ) from error
        log.warning("%s: the gateway at %s is away; sent without limits", request.url.host, shown)
        return self.direct(request)


def _headers(switches: Mapping[str, Any]) -> Dict[str, Optional[str]]:
    """S11: switches of calls as headers; a switch that is wrong is an error, not without effect.

    ``None``: a switch that is on, so that the transport's own does not count for this call.
    """
    if not isinstance(switches, Mapping):
        raise BadRequest("the switches are no mapping", hint='write {"use_cache": False}')
    unknown = [name for name in switches if name not in SWITCHES]
    if unknown:
        raise BadRequest(f"`{unknown[0]}` is no switch", hint="one of " + ", ".join(SWITCHES))
    headers: Dict[str, Optional[str]] = {}
    for name in ("entity", "priority", "caller"):
        if switches.get(name) is not None:
            headers[PREFIX + name] = _printable(name, switches[name])
    cost = switches.get("cost")
    if isinstance(cost, str):
        headers[PREFIX + "cost"] = _printable("cost", cost)
    elif cost is not None:
        headers[PREFIX + "cost"] = _printable("cost", cost_text(cost_of(cost)))
    if switches.get("timeout") is not None:
        milliseconds = round(seconds("timeout", switches["timeout"]) * 1000)
        headers[PREFIX + "timeout"] = f"{milliseconds}ms"
    use_cache = switches.get("use_cache")
    if isinstance(use_cache, str) and use_cache in ("only", "refresh"):
        headers[PREFIX + "cache"] = use_cache
    elif use_cache is False:
        headers[PREFIX + "cache"] = "no"
    elif use_cache is True:
        headers[PREFIX + "cache"] = None
    elif use_cache is not None:
        raise BadRequest("`use_cache` is not known", hint='give True, False, "only" or "refresh"')
    use_deduplication = switches.get("use_deduplication")
    if use_deduplication is not None:
        is_used = flag("use_deduplication", use_deduplication)
        headers[PREFIX + "dedup"] = None if is_used else "no"
    return headers


def _printable(name: str, value: Any) -> str:
    """The value of a header; what HTTP does not allow there is an error before anything is sent."""
    if not isinstance(value, str) or not value or any(not " " <= char <= "~" for char in value):
        raise BadRequest(
            f"`{name}` is not a name", hint="give a text of printable ASCII characters"
        )
    return value


Inner = TypeVar("Inner")


class _Transports(Generic[Inner]):
    """The transports below: to the gateway, and to providers if calls may go there directly."""

    def __init__(self, make: Callable[[], Inner], given: Optional[Inner], falls_back: bool):
        self._make = make
        self._is_given = given is not None
        self._lock = threading.Lock()
        #: of the parent, in a forked process: never used, and never finalized, which would end
        #: connections that the parent uses
        self._inherited: List[Optional[Inner]] = []
        # Made at once: threads that find the gateway away would make one each.
        self._gateway: Optional[Inner] = make() if given is None else given
        self._direct: Optional[Inner] = make() if falls_back else None
        _forks.register(self)

    def after_fork(self) -> None:
        """Leaves every connection to the parent: an end that only the parent sees would not reach the
        gateway. The new transports are made when they are needed: they load certificates, which a
        process that calls nobody need not wait for."""
        self._lock = threading.Lock()
        own = [self._direct] if self._is_given else [self._gateway, self._direct]
        self._inherited += [self._gateway, self._direct]
        self._gateway = self._direct = None
        for descriptor in _descriptors(own):
            _forks.cut(descriptor)

    def gateway(self) -> Inner:
        with self._lock:
            if self._gateway is None:
                if self._is_given:
                    raise BadRequest(
                        "the `transport` was given in the process that forked this one, "
                        "which may use its connections",
                        hint="make the httpx client after the fork, or leave `transport` out",
                        code="ForkedTransport",
                    )
                self._gateway = self._make()
            return self._gateway

    def direct(self) -> Inner:
        with self._lock:
            if self._direct is None:
                self._direct = self._make()
            return self._direct

    def own(self) -> List[Inner]:
        """Those that this process may close."""
        return [one for one in (self._gateway, self._direct) if one is not None]


def _descriptors(transports: Iterable[object]) -> Iterator[int]:
    """The sockets of httpx's own transports. httpcore shows its connections, but not what is in them:
    of a version that has other names nothing is found."""
    for transport in transports:
        pool = getattr(transport, "_pool", None)
        for connection in getattr(pool, "connections", ()):
            stream = getattr(getattr(connection, "_connection", None), "_network_stream", None)
            found: Any = stream.get_extra_info("socket") if stream is not None else None
            if found is not None:
                yield found.fileno()


#: Errors after which surely nothing was sent.
UNREACHABLE = (httpx.ConnectError, httpx.ConnectTimeout)


class Transport(httpx.BaseTransport):
    """``httpx.Client(transport=tollgate.Transport())``.

    ``use_cache=False`` goes past the cache (``"only"``, ``"refresh"``), ``use_deduplication=False``
    shares no call; both, and ``entity``, ``priority``, ``cost``, ``timeout``, also for one call:
    ``client.get(url, extensions={"tollgate": {"use_cache": False}})``.
    """

    def __init__(
        self,
        gateway: Optional[str] = None,
        *,
        provider: Optional[str] = None,
        token: Optional[str] = None,
        fallback: str = "error",
        transport: Optional[httpx.BaseTransport] = None,
        **switches: Any,
    ):
        self._router = _Router(gateway, provider, token, fallback, switches)
        self._transports: "_Transports[httpx.BaseTransport]" = _Transports(
            httpx.HTTPTransport, transport, self._router.falls_back
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        gateway = self._transports.gateway()
        try:
            response = gateway.handle_request(self._router.governed(request))
            return self._router.returned(request, response)
        except UNREACHABLE as error:
            direct = self._router.on_unreachable(request, error)
        return self._transports.direct().handle_request(direct)

    def close(self) -> None:
        for one in self._transports.own():
            one.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    """``httpx.AsyncClient(transport=tollgate.AsyncTransport())``; options as :class:`Transport`."""

    def __init__(
        self,
        gateway: Optional[str] = None,
        *,
        provider: Optional[str] = None,
        token: Optional[str] = None,
        fallback: str = "error",
        transport: Optional[httpx.AsyncBaseTransport] = None,
        **switches: Any,
    ):
        self._router = _Router(gateway, provider, token, fallback, switches)
        self._transports: "_Transports[httpx.AsyncBaseTransport]" = _Transports(
            httpx.AsyncHTTPTransport, transport, self._router.falls_back
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        gateway = self._transports.gateway()
        try:
            response = await gateway.handle_async_request(self._router.governed(request))
            return self._router.returned(request, response)
        except UNREACHABLE as error:
            direct = self._router.on_unreachable(request, error)
        return await self._transports.direct().handle_async_request(direct)

    async def aclose(self) -> None:
        for one in self._transports.own():
            await one.aclose()
