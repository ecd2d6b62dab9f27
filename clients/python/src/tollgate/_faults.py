"""What became of a call, by the error that it ended with: of any HTTP library, and none is imported.

Promises: an error of a library is read by the names of its classes, and one that wraps another by what
it wraps.
Never: blames the provider for an error of Tollgate, or of a database that a block uses beside the call.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any, Iterator, Optional

from .errors import TollgateError

#: Read from the most special class on.
_WORDS = {
    "ConnectTimeout": "connect",
    "ConnectError": "connect",
    "ConnectTimeoutError": "connect",
    "NewConnectionError": "connect",
    "NameResolutionError": "dns",
    "ClientConnectorDNSError": "dns",
    "ClientConnectorError": "connect",
    "TimeoutException": "timeout",
    "Timeout": "timeout",
    "ServerTimeoutError": "timeout",
    "NetworkError": "reset",
    "ProtocolError": "reset",
    "IncompleteRead": "reset",
    "ServerDisconnectedError": "reset",
    "ClientOSError": "reset",
}
#: Names that also databases give to their errors: read in these packages only.
_SHARED_WORDS = {"TimeoutError": "timeout"}
#: Errors of a connection that do not say which; what they wrap may.
_CONNECTION_ERRORS = ("ConnectionError", "ClientConnectionError")
_PACKAGES = frozenset(
    ["aiohttp", "asyncio", "concurrent", "http", "httpcore", "httpx", "requests", "urllib", "urllib3"]
)
#: The provider's host cannot be reached from here.
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
#: requests wraps urllib3 twice, which wraps the standard library; and one for the program's own.
_DEPTH = 5


def fault_of(error: BaseException) -> Optional[str]:
    """The word for a failed call: ``connect``, ``dns``, ``timeout``, ``reset``.

    ``None``: the error does not say what became of the call.
    """
    return _fault_of(error, _DEPTH)


def _fault_of(error: BaseException, depth: int) -> Optional[str]:
    if isinstance(error, TollgateError):
        return None
    word = _of_socket(error) or _of_library(error)
    if word is not None or depth == 0:
        return word
    wrapped = list(_wrapped(error))
    for inner in wrapped:
        # A socket's error below one of another package may be that of a database.
        if _is_of_http(error) or _is_of_http(inner):
            word = _fault_of(inner, depth - 1)
            if word is not None:
                return word
    return "reset" if _is_of_connection(error, bool(wrapped)) else None


def _of_socket(error: BaseException) -> Optional[str]:
    """What the standard library says."""
    if isinstance(error, socket.gaierror):
        return "dns"
    if isinstance(error, (ConnectionRefusedError, ssl.SSLCertVerificationError)):
        return "connect"
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "timeout"
    if isinstance(error, (ConnectionError, ssl.SSLError)):
        return "reset"
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return "connect"
    return None


def _of_library(error: BaseException) -> Optional[str]:
    """What the name of its class says."""
    for kind in type(error).__mro__:
        package = _package(kind)
        if kind.__name__ in _WORDS and package != "builtins":
            return _WORDS[kind.__name__]
        if kind.__name__ in _SHARED_WORDS and package in _PACKAGES:
            return _SHARED_WORDS[kind.__name__]
    return None


def _is_of_connection(error: BaseException, is_wrapper: bool) -> bool:
    """An error of a connection, whatever its kind. A ``URLError`` that wraps nothing is a URL that
    cannot be called, and ``HTTPError`` is a response."""
    for kind in type(error).__mro__:
        if kind.__name__ == "URLError" and is_wrapper:
            return True
        if kind.__name__ in _CONNECTION_ERRORS and _package(kind) in _PACKAGES:
            return True
    return False


def _is_of_http(error: BaseException) -> bool:
    return any(_package(kind) in _PACKAGES for kind in type(error).__mro__)


def _wrapped(error: BaseException) -> Iterator[BaseException]:
    """What it wraps: ``URLError.reason``, ``MaxRetryError.reason`` in the arguments of requests'
    errors, or its cause."""
    for found in (getattr(error, "reason", None), *error.args, error.__cause__):
        if isinstance(found, BaseException) and found is not error:
            yield found


def _package(kind: type) -> str:
    return kind.__module__.split(".")[0]


def response_of(error: Optional[BaseException]) -> Any:
    """The response that an error stands for: ``urllib.error.HTTPError`` is one, the errors of
    ``raise_for_status()`` of httpx, requests and aiohttp have or are one."""
    for found in (getattr(error, "response", None), error):
        status = getattr(found, "status_code", None) or getattr(found, "status", None)
        if isinstance(status, int) and hasattr(getattr(found, "headers", None), "items"):
            return found
    return None
