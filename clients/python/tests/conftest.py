"""Real daemons, and a simulated provider that judges what arrives."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

import pytest

import tollgate
from fake_server import Fake

PATIENCE = 120

CONFIG = """
guards:
  ip:   { limit: 10,  period: 1m, burst: 5,  by: ip }
  user: { limit: 20,  period: 1m, burst: 10, by: "header:x-user-id" }
  api:  { limit: 100, period: 1m, burst: 20, by: global }
  task: { limit: 50,  period: 1m, burst: 15, by: name, max_pending: 50 }
  fast: { limit: 600, period: 1m, burst: 1, by: name }
  slow: { limit: 1, period: 1h, burst: 1, by: name }
callers: { app: { token: canary-app-token } }
"""  # tidy:canary


class Provider:
    """A provider whose log is the judge: what arrived, with headers.

    Responses of ``/held`` wait until ``let_go`` is set, those of ``/half`` with one half of the body.
    ``/away?URL`` is a redirect to this URL.
    """

    def __init__(self) -> None:
        self.requests: List[Tuple[str, str, dict]] = []
        #: the port of the other end, by path: one for each connection
        self.ports: Dict[str, int] = {}
        self.let_go = threading.Event()
        seen, ports, let_go = self.requests, self.ports, self.let_go

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                ports[self.path] = self.client_address[1]
                seen.append((self.command, self.path, dict(self.headers.items())))
                if self.path == "/held":
                    let_go.wait(PATIENCE)
                path, _, query = self.path.partition("?")
                target = {"/moved": "/target", "/away": query}.get(path)
                self.send_response(200 if target is None else 302)
                if target is not None:
                    self.send_header("Location", target)
                data = b'{"path": "%s", "length": %d}' % (self.path.encode(), len(body))
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if path == "/half":
                    self.wfile.write(data[:10])
                    let_go.wait(PATIENCE)
                    data = data[10:]
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = respond

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def paths(self) -> Counter:
        return Counter(path for _, path, _ in self.requests)

    def stop(self) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.stop()


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def make_daemon(tmp_path: Path):
    """Starts daemons with provider files; all are stopped at the end."""
    started: List[tollgate.LocalDaemon] = []

    def make(*files: str, config: str = CONFIG, folder: str = "state", args: tuple = ()):
        paths = []
        for number, text in enumerate(files):
            paths.append(write(tmp_path / f"provider{number}.yaml", text))
        config_file = write(tmp_path / "tollgate.yaml", config)
        daemon = tollgate.local(
            tmp_path / folder, providers=paths, config=config_file, args=list(args)
        )
        started.append(daemon)
        return daemon

    yield make
    for daemon in started:
        daemon.stop()


@pytest.fixture
def daemon(make_daemon, provider: Provider):
    """One provider `x` with 5 calls an hour, one `wide`, one that allows one call at a time."""
    return make_daemon(
        f"name: x\nupstream: {provider.url}\nlimits: [5/1h]\n",
        f"name: wide\nupstream: {provider.url}\nlimits: [1000/1h]\n",
        f"name: single\nupstream: {provider.url}\nlimits: [1000/1h]\nconcurrency: 1\n",
    )


@pytest.fixture
def client(daemon) -> Iterator[tollgate.Client]:
    with daemon.client() as client:
        yield client


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    made: List[Fake] = []

    def make(handle: Callable[[Fake, socket.socket, int], None], **options) -> Fake:
        made.append(Fake(handle, **options))
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(OSError):
            one.server.shutdown(socket.SHUT_RDWR)
        one.server.close()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that does not exist: calls to loopback that use it fail."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("TOLLGATE_ADMIN", "TOLLGATE_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def used():
    """How many calls of a provider's first limit are used."""

    def used(client: tollgate.Client, name: str) -> int:
        return int(client.get_status(name)["limits"][0]["used"])

    return used


def bin_dir() -> Path:
    return Path(sys.executable).parent


def environment(**more: str) -> dict:
    """For child processes: the sources of this library, and no proxy."""
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    source = str(Path(__file__).parent.parent / "src")
    return {**env, "PYTHONPATH": source, **more}
