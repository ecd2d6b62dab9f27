"""``tollgate.local()``: a daemon of one's own, for scripts and tests.

Promises: found (``TOLLGATE_BIN``, then ``PATH``), started on free ports, ready when the call returns,
stopped by its pid when the program ends, also if it is killed. Daemons on one folder share one quota.
Never: downloads anything, or stops a daemon that it did not start.
"""

from __future__ import annotations

import atexit
import collections
import os
import shutil
import subprocess
import threading
from time import monotonic
from types import TracebackType
from typing import Deque, List, Optional, Sequence, Type, Union

from ._protocol import seconds
from .client import AsyncClient, Client
from .errors import TollgateUnavailable

Path = Union[str, "os.PathLike[str]"]

#: Lines of the log that are kept for messages.
LOG_LINES = 50
#: The daemon lets calls finish for ten seconds.
STOP_WITHIN = 15.0
#: The shell waits until its standard input ends, which it does even if this process is killed. It
#: is the parent of the daemon, so the pid cannot mean another process.
SCRIPT = '"$@" </dev/null & echo "pid $!"; exec >&- 2>&-; read -r _; kill -TERM $!; wait $!'


def find_binary() -> str:
    """The program: ``TOLLGATE_BIN``, else ``tollgate`` on ``PATH``."""
    named = os.environ.get("TOLLGATE_BIN")
    if named and os.path.isfile(named) and os.access(named, os.X_OK):
        return named
    found = shutil.which("tollgate") if not named else None
    if found is None:
        where = "TOLLGATE_BIN names no program" if named else "`tollgate` is not on PATH"
        raise TollgateUnavailable(
            f"{where}", hint="install it (`cargo install tollgate-cli`) or set TOLLGATE_BIN to its path"
        )
    return found


def local(
    folder: Optional[Path] = None,
    *,
    providers: Sequence[Path] = (),
    config: Optional[Path] = None,
    args: Sequence[str] = (),
    timeout: float = 30.0,
) -> "LocalDaemon":
    """Starts a daemon and returns when it is ready.

    ``folder`` holds the ledger (default: the user's state folder); all daemons on it share their
    quota. ``providers`` are provider files, ``config`` a tollgate.yaml, ``args`` further options of
    ``tollgate serve``.
    """
    command = [find_binary(), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    env = dict(os.environ)
    if folder is not None:
        path = os.path.abspath(os.fspath(folder))
        os.makedirs(path, mode=0o700, exist_ok=True)
        command += ["--store", f"sqlite:{path}"]
        env["TOLLGATE_STATE_DIR"] = path
    for provider in providers:
        command += ["--provider", os.fspath(provider)]
    if config is not None:
        command += ["--config", os.fspath(config)]
    return LocalDaemon([*command, *args], env, seconds("timeout", timeout))


class LocalDaemon:
    """A daemon that this process has started; ``with`` stops it."""

    def __init__(self, command: List[str], env: "dict[str, str]", timeout: float):
        self.gateway = ""
        self.admin = ""
        self.pid = 0
        self._owner = os.getpid()
        self._log: Deque[str] = collections.deque(maxlen=LOG_LINES)
        self._is_started = threading.Event()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "tollgate", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the program; it stops the daemon at its end
            )
        except OSError as error:
            raise TollgateUnavailable(
                f"`{command[0]}` cannot be run ({error.strerror})", hint="check TOLLGATE_BIN"
            ) from error
        self._reader = threading.Thread(target=self._read, name="tollgate-log", daemon=True)
        self._reader.start()
        atexit.register(self.stop)
        self._is_started.wait(timeout)
        if not self.admin:
            self.stop()
            raise TollgateUnavailable(
                f"the daemon did not start within {timeout:.0f} s: {self._last_words()}",
                hint="run `tollgate check` on its files",
            )

    def _read(self) -> None:
        """Reads addresses and log to the end, so that the daemon never waits for a full pipe."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.strip()
            if text.startswith("pid ") and not self.pid:
                self.pid = int(text[4:])
            elif "listens on http://" in text and not self.gateway:
                self.gateway = text[text.index("http://") :]
            elif text.startswith("(admin)") and not self.admin:
                self.admin = text[text.index("http://") :]
                self._is_started.set()
            else:
                self._log.append(text)
        self._is_started.set()

    def _last_words(self) -> str:
        return "\n".join(list(self._log)[-5:]) or "it said nothing"

    @property
    def log(self) -> List[str]:
        """The last lines of its log."""
        return list(self._log)

    def client(self, *, guard: Optional[str] = None) -> Client:
        """A client of this daemon."""
        return Client(self.admin, guard=guard)

    def async_client(self, *, guard: Optional[str] = None) -> AsyncClient:
        """A client of this daemon for asyncio."""
        return AsyncClient(self.admin, guard=guard)

    def stop(self) -> None:
        """Stops it; calls in flight have ten seconds. Does nothing in a forked process."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()  # the shell ends the daemon
            except OSError:
                pass
        until = monotonic() + STOP_WITHIN
        try:
            self._process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            # Two processes of our own, by their ids: the shell still waits for its child.
            if self.pid:
                os.kill(self.pid, 9)
            self._process.kill()
            self._process.wait()
        self._reader.join(max(until - monotonic(), 1.0))

    def __enter__(self) -> "LocalDaemon":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LocalDaemon(gateway={self.gateway!r}, admin={self.admin!r}, pid={self.pid})"
