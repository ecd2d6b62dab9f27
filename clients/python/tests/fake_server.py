"""A server in place of the daemon, for what a daemon seldom does: closes, keeps silent, grants late."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Callable, List, Optional

PATIENCE = 30
GRANTED = b'{"granted": true, "waited": 0}'
FULL = b'{"error": "QueueFull", "message": "too many wait", "hint": "try again"}'


class Fake:
    """A server whose connections are served by ``handle``; it counts them and the bodies."""

    def __init__(
        self,
        handle: Callable[["Fake", socket.socket, int], None],
        tls: Optional[ssl.SSLContext] = None,
    ):
        self.handle = handle
        self.tls = tls
        self.accepted = self.open = self.most = 0
        self.bodies: List[bytes] = []
        self.paths: List[str] = []
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                with self.lock:
                    self.accepted += 1
                    self.open += 1
                    self.most = max(self.most, self.open)
                    number = self.accepted
                threading.Thread(target=self.serve, args=(connection, number), daemon=True).start()

    def serve(self, connection: socket.socket, number: int) -> None:
        connection.settimeout(PATIENCE)
        try:
            with contextlib.suppress(OSError, EOFError):
                if self.tls is not None:
                    connection = self.tls.wrap_socket(connection, server_side=True)
                self.handle(self, connection, number)
        finally:
            with self.lock:
                self.open -= 1
            connection.close()

    def body_of(self, connection: socket.socket) -> bytes:
        """Reads a whole request, and asks for its body as HTTP does."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += _some(connection)
        head, _, body = data.partition(b"\r\n\r\n")
        if b"100-continue" in head:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        while len(body) < length:
            body += _some(connection)
        with self.lock:
            self.bodies.append(body)
            self.paths.append(head.split(b" ")[1].decode())
        return body


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise EOFError
    return data


def respond(connection: socket.socket, body: bytes, status: bytes = b"200 OK") -> None:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    connection.sendall(head + body)


def answer(fake: Fake, connection: socket.socket, number: int) -> None:
    while True:
        fake.body_of(connection)
        respond(connection, GRANTED)


def closes_first(count: int) -> Callable[[Fake, socket.socket, int], None]:
    """As a server whose places are taken: the first connections are closed without a word."""

    def handle(fake: Fake, connection: socket.socket, number: int) -> None:
        if number > count:
            answer(fake, connection, number)

    return handle


def full(fake: Fake, connection: socket.socket, number: int) -> None:
    fake.body_of(connection)
    respond(connection, FULL, b"503 Service Unavailable")


class GrantsLate:
    """Grants only once the caller has left: the grant and the end of the request pass each other."""

    def __init__(self, reply: bytes = b'{"granted": true, "permit": "p1"}') -> None:
        self.reply = reply
        self.leave: Callable[[], None] = lambda: None

    def __call__(self, fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        if fake.paths[-1].endswith("/v1/release"):
            respond(connection, b"{}")
            return
        self.leave()
        with contextlib.suppress(EOFError):
            while True:
                _some(connection)
        respond(connection, self.reply)


def closes_idle(fake: Fake, connection: socket.socket, number: int) -> None:
    """Ends a connection after one response, as servers end idle ones: over TLS with a `close_notify`."""
    fake.body_of(connection)
    respond(connection, GRANTED)
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(0.05)
        with contextlib.suppress(OSError):
            connection.unwrap()


def silent(fake: Fake, connection: socket.socket, number: int) -> None:
    """Reads whatever comes, and never responds."""
    while _some(connection):
        pass


def dies(fake: Fake, connection: socket.socket, number: int) -> None:
    """Ends after the second request of a connection has arrived."""
    fake.body_of(connection)
    respond(connection, GRANTED)
    fake.body_of(connection)
