"""HTTP/1.1 as bytes, without a socket: what both clients send and read.

Promises: every size has a bound; the parser accepts its input in any pieces.
Never: does I/O, follows redirects, or uses proxies.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from .errors import BadRequest

#: A decision has a few hundred bytes; details of a provider with 256 entities some hundred KiB.
BODY_MAX = 16 * 1024 * 1024
HEAD_MAX = 64 * 1024
#: Not `int`, which also takes signs, other digits and underscores; a negative length has no end.
STATUS = re.compile("[1-9][0-9]{2}")
LENGTH = re.compile("[0-9]{1,12}")
CHUNK_LENGTH = re.compile(b"[0-9a-fA-F]{1,8}")


class WireError(Exception):
    """The other side does not speak HTTP/1.1 as expected."""


class ConnectionClosed(WireError):
    """The other side closed the connection before its response was whole."""


@dataclass(frozen=True)
class Request:
    """One request; ``wait`` is how long the server may hold it.

    ``is_repeatable``: a second one does not count a second time. ``undo``: the request that takes
    back what a reply has given, for a reply that nobody is there to receive.
    """

    method: str
    path: str
    body: Optional[Dict[str, Any]] = None
    wait: float = 0.0
    is_repeatable: bool = True
    undo: Optional[Callable[["Reply"], Optional["Request"]]] = None

    def encode(
        self, head: bytes, prefix: str = "", *, asks_first: bool = False
    ) -> Tuple[bytes, bytes]:
        """What is sent at once, and what is sent once the server says ``100 Continue``.

        ``head`` are the headers of every request, ``prefix`` that of every path."""
        start = f"{self.method} {prefix}{self.path} HTTP/1.1\r\n".encode("ascii")
        if self.body is None:
            return start + head + b"\r\n", b""
        try:
            body = json.dumps(self.body, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest(
                f"the request has a value that cannot be sent: {error}",
                hint="give texts, whole numbers and times in seconds",
            ) from None
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        if asks_first:
            return start + head + length + b"Expect: 100-continue\r\n\r\n", body
        return start + head + length + b"\r\n" + body, b""

    def later(self, elapsed: float) -> "Request":
        """The same request after this time: its wait ends when it would have ended."""
        if not self.wait or self.body is None:
            return self
        remaining = max(self.wait - elapsed, 0.001)
        return replace(self, wait=remaining, body={**self.body, "timeout": round(remaining, 3)})


def common_head(host: str, headers: Mapping[str, str]) -> bytes:
    """The headers of every request of one client."""
    lines = [f"Host: {host}\r\n", "Accept: application/json\r\n"]
    for name, value in headers.items():
        if any(not " " <= char <= "~" for char in value):
            raise ValueError(f"{name} has a character that HTTP does not allow")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("ascii")


@dataclass(frozen=True)
class Reply:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise WireError("the response is not JSON") from None


class ReplyParser:
    """Collects bytes until one response is whole."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: Optional[_Head] = None
        self._is_empty = True
        self._is_continued = False

    @property
    def is_continued(self) -> bool:
        """The server has asked for the body."""
        return self._is_continued

    @property
    def is_empty(self) -> bool:
        """Nothing has arrived: the other side has closed an idle connection."""
        return self._is_empty

    def feed(self, data: bytes) -> Optional[Reply]:
        """The response, once it is whole. ``b""`` means that the connection was closed."""
        self._is_empty = self._is_empty and not data
        self._data += data
        while self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if not data:
                    raise ConnectionClosed("the connection was closed before a response")
                if len(self._data) > HEAD_MAX:
                    raise WireError("the response has no end of its headers")
                return None
            head = _Head.parse(bytes(self._data[:end]))
            del self._data[: end + 4]
            self._is_continued = self._is_continued or head.status == 100
            if head.status >= 200:  # 1xx are followed by the response
                self._head = head
        return self._whole(self._head, is_closed=not data)

    def _whole(self, head: "_Head", is_closed: bool) -> Optional[Reply]:
        if len(self._data) > BODY_MAX:
            raise WireError(f"the response is larger than {BODY_MAX} bytes")
        body = head.body_of(self._data, is_closed)
        if body is not None:
            return Reply(head.status, head.headers, body, head.keep_alive)
        if is_closed:
            raise ConnectionClosed("the connection was closed within a response")
        return None


@dataclass(frozen=True)
class _Head:
    status: int
    headers: Mapping[str, str]
    keep_alive: bool

    @staticmethod
    def parse(text: bytes) -> "_Head":
        lines = text.decode("latin-1").split("\r\n")
        start = lines[0].split(" ", 2)
        if len(start) < 2 or not start[0].startswith("HTTP/1.") or not STATUS.fullmatch(start[1]):
            raise WireError("the response is not HTTP/1.1")
        headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        is_open = start[0] != "HTTP/1.0" and "close" not in headers.get("connection", "").lower()
        return _Head(int(start[1]), headers, is_open)

    def body_of(self, data: bytearray, is_closed: bool) -> Optional[bytes]:
        """The body, if ``data`` has all of it."""
        if self.status in (204, 304):
            return b""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return _chunks(bytes(data))
        length = self.headers.get("content-length")
        if length is None:
            return bytes(data) if is_closed else None
        if not LENGTH.fullmatch(length) or int(length) > BODY_MAX:
            raise WireError("the length of the response is not one that is accepted")
        return bytes(data[: int(length)]) if len(data) >= int(length) else None


def _chunks(data: bytes) -> Optional[bytes]:
    body, at = bytearray(), 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        length = data[at:end].split(b";")[0].strip()
        if not CHUNK_LENGTH.fullmatch(length):
            raise WireError("a chunk of the response has no length")
        size = int(length, 16)
        if size == 0:
            return bytes(body) if data.find(b"\r\n", end + 2) >= 0 else None
        if len(data) < end + 2 + size + 2:
            return None
        body += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
