"""``tollgate.local()``: a daemon of one's own, for scripts and tests.

Promises: found (``TOLLGATE_BIN``, then ``PATH``), started on free ports, ready when the call returns,
stopped by its pid when the program ends, also if it is killed. Daemons on one folder share one quota.
Never: downloads anything, or stops a daemon that it did not start.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from time import monotonic
from typing import Any, Deque, List, Optional, Sequence, Union

from . import _forks
from ._protocol import seconds
from .client import AsyncClient, Client
from .errors import BadRequest, TollgateUnavailable

Path = Union[str, "os.PathLike[str]"]

#: Lines of the log that are kept for messages.
LOG_LINES = 50
#: The daemon lets calls finish for ten seconds.
STOP_WITHIN = 15.0
#: The shell waits for a line, or until its standard input ends, which it does even if this process is
#: killed. Then it signals its process group, which is itself and the daemon: the pid of a daemon that
#: has died may mean another process, because some shells (bash) reap it at once.
SCRIPT = (
    '"$@" </dev/null & echo "pid $!"; exec >&- 2>&-; read -r _; trap "" TERM; kill -TERM 0; wait $!'
)


def find_binary() -> str:
    """The program: ``TOLLGATE_BIN``, else ``tollgate`` on ``PATH``."""
    named = os.environ.get("TOLLGATE_BIN")
    if named and os.path.isfile(named) and os.access(named, os.X_OK):
        return named
    found = shutil.which("tollgate") if not named else None
    if found is None:
        where = "TOLLGATE_BIN names no program" if named else "`tollgate` is not on PATH"
        raise TollgateUnavailable(
            where,
            hint="install it (`cargo install --locked --path crates/cli` in Tollgate's repository) "
            "or set TOLLGATE_BIN to its path",
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
    options: List[str] = []
    for provider in _texts("providers", providers, 'write providers=["tmdb.yaml"]'):
        options += ["--provider", provider]
    if config is not None:
        options += ["--config", _text("config", config, 'write config="tollgate.yaml"')]
    options += _texts("args", args, 'write args=["--offline"]')
    path = None if folder is None else _text("folder", folder, 'write folder="state"')
    timeout = seconds("timeout", timeout)
    command = [find_binary(), "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    env = dict(os.environ)
    if path is not None:
        path = os.path.abspath(path)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise BadRequest(
                f"the folder `{path}` cannot be made ({error.strerror})",
                hint="name a folder that this user can write to",
            ) from error
        command += ["--store", f"sqlite:{path}"]
        env["TOLLGATE_STATE_DIR"] = path
    return LocalDaemon([*command, *options], env, timeout)


def _texts(name: str, values: Any, hint: str) -> List[str]:
    if isinstance(values, (str, bytes, os.PathLike)) or not hasattr(values, "__iter__"):
        raise BadRequest(f"`{name}` is not a list", hint=hint)
    return [_text(name, value, hint) for value in values]


def _text(name: str, value: Any, hint: str) -> str:
    """A path or another text, as a program can get it."""
    try:
        text = os.fsdecode(os.fspath(value))
        if b"\0" not in os.fsencode(text):
            return text
    except (TypeError, ValueError):
        pass
    raise BadRequest(f"`{name}` has a value that is not a path or text", hint=hint)


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
        _forks.register(self)
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
        with self._process.stdout as lines:
            for line in lines:
                self._read_line(line.strip())
        self._is_started.set()

    def _read_line(self, text: str) -> None:
        if text.startswith("pid ") and not self.pid:
            self.pid = int(text[4:])
        elif "listens on http://" in text and not self.gateway:
            self.gateway = text[text.index("http://") :]
        elif text.startswith("(admin)") and not self.admin:
            self.admin = text[text.index("http://") :]
            self._is_started.set()
        else:
            self._log.append(text)

    def after_fork(self) -> None:
        """A forked process holds no end of the pipes: the daemon would outlive its program."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                _forks.cut(pipe.fileno())

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
        self._end_input()
        until = monotonic() + STOP_WITHIN
        try:
            self._process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            # The group of the shell, which still waits for its child: two processes of our own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(max(until - monotonic(), 1.0))

    def _end_input(self) -> None:
        """The shell ends the daemon. A line as well as the end: a process that another library has
        started from this one may hold a copy of the pipe, which then does not end."""
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(OSError):  # the shell has ended before
            try:
                pipe.write("\n")
            finally:
                pipe.close()

    def __enter__(self) -> "LocalDaemon":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"LocalDaemon(gateway={self.gateway!r}, admin={self.admin!r}, pid={self.pid})"
