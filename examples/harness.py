"""What the profiles' `run` programs share: processes, servers, providers, calls, and the table of results.

Promises: loopback and free ports only; everything lives in one temporary folder; every process that
was started is stopped by its own pid, also after an error or SIGTERM; exit 0 only if every id of
the profile was checked and held.

Never: judges by what Tollgate says about itself where a provider's own log can judge.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parent.parent

# Turns a run that would hang into one that fails: the longest wait of a profile is 31 s.
CALL_TIMEOUT = 90.0
PATIENCE = 60.0
STEP = 0.02
# What a whole profile may take on an idle machine with two cores. Tests, which share theirs with others, set
# TOLLGATE_EXAMPLE_SECONDS. It is patience only: what a row checks is the same on every machine.
SECONDS_MAX = 60.0

# How a time is judged where a busy machine can delay every process: never too short by the provider's log; and not too
# long by what Tollgate has decided (`Response.waited`, `Daemon.retry_waits`, `Daemon.pauses`), since a log of arrivals
# cannot tell a late machine from a late Tollgate. A clock on the wall is an upper bound only where the wrong behaviour
# would take far longer than a machine stands still.
AT_ONCE = 1.0  # the decision itself; calls that are held wait for their deadline, a cool-down or a window: 2 s and more
STALL = 12.0
HELD = 15.0  # calls that are held until their time is up take a minute


# --- programs -----------------------------------------------------------------------------------


def programs() -> tuple[str, str]:
    """`tollgate` and `tollgate-sim`: TOLLGATE_BIN and TOLLGATE_SIM, otherwise a release build."""
    found = [os.environ.get("TOLLGATE_BIN"), os.environ.get("TOLLGATE_SIM")]
    if not all(found):
        print("building tollgate and tollgate-sim (once) …", file=sys.stderr, flush=True)
        build = ["cargo", "build", "--release", "--locked", "-p", "tollgate-cli", "-p", "tollgate-sim"]
        subprocess.run(build, cwd=ROOT, check=True)
        target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
        built = ROOT / target / "release"
        found = [found[0] or str(built / "tollgate"), found[1] or str(built / "tollgate-sim")]
    return str(found[0]), str(found[1])


def environment(values: dict[str, str]) -> dict[str, str]:
    """Only what a program needs: no proxy, key or TOLLGATE_ variable of the user's shell."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "NO_COLOR": "1", **values}


def program(name: str, package: str) -> str:
    """Where a program of the host is."""
    found = shutil.which(name)
    assert found, f"{name} is missing; Debian: apt-get install {package}"
    return found


_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port that is free, and that the kernel gives to nobody by chance: below its ephemeral range."""
    while True:
        port = 12_000 + next(_ports) % 20_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Process:
    """A child process; its standard output is read line by line."""

    def __init__(self, args: Sequence[str], env: dict[str, str], folder: Path, log: Path) -> None:
        self.log_path = self.stderr_path = log
        with log.open("ab") as err:
            self.child = subprocess.Popen(
                list(args), env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True
            )
        self.lines: list[str] = []
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self._arrived:
                self.lines.append(line.rstrip("\n"))
                self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def line(self, what: str) -> str:
        """The first line of standard output with this text."""

        def found() -> str | None:
            return next((line for line in self.lines if what in line), None)

        ends = time.monotonic() + PATIENCE
        with self._arrived:
            while found() is None and self.child.poll() is None and time.monotonic() < ends:
                self._arrived.wait(0.2)
        line = found()
        if line is None:
            raise AssertionError(f"no line with `{what}`; it says:\n{self.stderr_path.read_text()[-2000:]}")
        return line

    def log(self) -> str:
        """Its log: standard error, or the file that its configuration names."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """kill -9."""
        self.child.kill()
        self.child.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for a process that does not end."""
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(5)


# --- calls --------------------------------------------------------------------------------------


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes
    began: float
    ended: float

    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def source(self) -> str:
        return self.headers.get("x-tollgate-source", "")

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def waited(self) -> float:
        """How long the call waited for a permit, also one that it did not get."""
        return float(self.headers["x-tollgate-wait"])


def call(
    address: str, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: object = None, ip: str = ""
) -> Response:
    """One HTTP request on a connection of its own, from this address of the host."""
    connection = http.client.HTTPConnection(address, timeout=CALL_TIMEOUT, source_address=(ip, 0) if ip else None)
    data = None if body is None else json.dumps(body).encode()
    sent = {"Connection": "close", **({"Content-Type": "application/json"} if data else {}), **(headers or {})}
    began = time.monotonic()
    try:
        connection.request(method, path, data, sent)
        got = connection.getresponse()
        text = got.read()
        fields = {name.lower(): value for name, value in got.getheaders()}
        return Response(got.status, fields, text, began, time.monotonic())
    finally:
        connection.close()


def together(jobs: Iterable[Callable[[], object]], gap: float = 0.0) -> list:
    """Runs all jobs at the same time; with `gap`, each begins that much after the one before."""
    jobs = list(jobs)
    with ThreadPoolExecutor(max_workers=max(1, len(jobs))) as pool:
        futures = []
        for job in jobs:
            futures.append(pool.submit(job))
            if gap:
                time.sleep(gap)
        return [future.result() for future in futures]


def to_set(*settings: str) -> list[str]:
    """`--set` for each of these."""
    return [part for setting in settings for part in ("--set", setting)]


def wait_until(what: str, condition: Callable[[], object], patience: float = PATIENCE) -> object:
    ends = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError(f"did not happen within {patience:.0f} s: {what}")
        time.sleep(STEP)


def most_in_any(times: Sequence[float], window: float) -> int:
    """Most arrivals in any half-open interval of this length."""
    times, most, first = sorted(times), 0, 0
    for last, at in enumerate(times):
        while times[first] <= at - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in zip(times, times[1:])]


def not_early(waits: Sequence[float], least: Sequence[float]) -> bool:
    """Whether each wait in a provider's log is as long as it must be, and no longer than a busy machine makes it."""
    return len(waits) == len(least) and all(low <= wait < low + STALL for wait, low in zip(waits, least))


def as_planned(plan: Sequence[float], expected: Sequence[float]) -> bool:
    """Whether these are the waits that Tollgate planned; it shows them in tenths of a second or in milliseconds."""
    return len(plan) == len(expected) and all(abs(one - due) <= 0.05 * due for one, due in zip(plan, expected))


def in_seconds(text: str) -> float:
    """`100 ms`, `1.5 s` or `16 s` at the end of a sentence."""
    number, unit = text.rstrip(".").split()[-2:]
    return float(number) * {"ms": 0.001, "s": 1.0}[unit]


# --- providers ----------------------------------------------------------------------------------


@dataclass
class Received:
    """One request in the log of a provider played here."""

    at: float
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Reply = tuple[int, dict[str, str], object]


class Provider:
    """A provider played in this process, for what `tollgate-sim` does not do; it keeps its own log."""

    def __init__(self, reply: Callable[[Received], Reply]) -> None:
        self.received: list[Received] = []
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                parts = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                fields = {name.lower(): value for name, value in self.headers.items()}
                got = Received(time.monotonic(), self.command, parts.path, query, fields, self.rfile.read(length))
                with provider._lock:
                    provider.received.append(got)
                status, headers, body = reply(got)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response_only(status)
                common = {"Date": self.date_time_string(), "Content-Type": "application/json"}
                for name, value in {**common, **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_HEAD = respond

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *args: object) -> None:
                pass  # a client that leaves is no error of the provider

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def log(self, path: str | None = None) -> list[Received]:
        with self._lock:
            return [got for got in self.received if path is None or got.path == path]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Sim:
    """`tollgate-sim serve`: a provider that enforces its own rule and keeps its own log."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.url = process.line("http://").strip()
        self.address = self.url.removeprefix("http://")

    def report(self) -> dict:
        return call(self.address, "/-/report").json()

    def log(self) -> list[dict]:
        lines = call(self.address, "/-/log").body.decode().splitlines()
        return [json.loads(line) for line in lines]

    def times(self, start: str = "/") -> list[float]:
        """When calls to this path arrived, in seconds of the provider's clock."""
        return [line["at_us"] / 1e6 for line in self.log() if line["path"].startswith(start)]

    def fault(self, line: str) -> None:
        """Plans faults, one per line, such as `outage next 5 503`."""
        connection = http.client.HTTPConnection(self.address, timeout=CALL_TIMEOUT)
        connection.request("POST", "/-/fault", line.encode())
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text

    def reset(self) -> None:
        call(self.address, "/-/reset", method="POST")


class Server:
    """A real server of another project in a folder of its own, which can be killed and started again with what it had stored."""

    def __init__(self, profile: Profile, name: str, command: Sequence[str], ready: str, folder: Path, port: int) -> None:
        self.port = port
        self._start = lambda: profile._start(name, command, {}, folder)
        self._ready = ready
        self.start()

    def start(self) -> None:
        self._log_before = len(self.process.log()) if hasattr(self, "process") else 0
        self.process = self._start()
        wait_until(f"{self._ready} in its log", lambda: self._says() or self._ended())

    def _says(self) -> bool:
        return any(self._ready in line for line in self.process.lines) or self._ready in self.process.log()[self._log_before :]

    def _ended(self) -> bool:
        assert self.process.child.poll() is None, self.process.log()[-2000:]
        return False

    def kill(self) -> None:
        self.process.kill()


def redis_server(profile: Profile, *options: str) -> Server:
    """A durable Redis: what it has acknowledged survives kill -9. A power cut would need `always`, which waits for the disk."""
    folder, port = profile.new_folder("redis"), free_port()
    command = [program("redis-server", "redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "no", *options]
    return Server(profile, "redis", command, "Ready to accept connections", folder, port)


class Postgres(Server):
    """A new cluster; where this runs as root, it belongs to the user `postgres`, since Postgres refuses root."""

    def __init__(self, profile: Profile) -> None:
        folder, port = profile.new_folder("postgres"), free_port()
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
            profile.temporary.chmod(0o755)
        self.data = folder / "data"
        subprocess.run([*_postgres("initdb"), "-A", "trust", "-U", "postgres", "--no-sync", "-D", str(self.data)], cwd="/", check=True, capture_output=True)
        command = [*_postgres("postgres"), "-D", str(self.data), "-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", "fsync=off"]  # kill -9 loses nothing that the kernel has
        super().__init__(profile, "postgres", command, "database system is ready to accept", folder, port)
        self.url = f"postgres://postgres@127.0.0.1:{port}/postgres"

    def sql(self, text: str) -> list[list[str]]:
        """What a query prints, split into rows and columns."""
        command = [*_postgres("psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At", "-v", "ON_ERROR_STOP=1", "-c", text]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line.split("|") for line in done.stdout.splitlines()]


def _postgres(name: str) -> list[str]:
    """A program of Postgres, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else program(name, "postgresql")
    return [path] if os.geteuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", path]


class Daemon:
    """`tollgate serve` with the configuration of the profile, on free ports."""

    def __init__(self, process: Process, folder: Path) -> None:
        self.process, self.folder = process, folder
        self.gateway = process.line("listens on").rsplit("//", 1)[-1].strip()
        self.admin = process.line("(admin)").split("http://", 1)[-1].split()[0].strip()

    def get(self, path: str, priority: str | None = None, timeout: str | None = None, **headers: str) -> Response:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if priority:
            fields["X-Tollgate-Priority"] = priority
        if timeout:
            fields["X-Tollgate-Timeout"] = timeout
        return call(self.gateway, path, fields)

    def api(self, path: str, method: str = "GET", body: object = None) -> Response:
        return call(self.admin, path, {"X-Tollgate-Admin": "1"}, method, body)

    def provider(self, name: str, entity: str | None = None) -> dict:
        return self.api(f"/v1/providers/{name}" + (f"?entity={entity}" if entity else "")).json()

    def log(self) -> str:
        return self.process.log()

    def log_lines(self, what: str) -> list[str]:
        return [line for line in self.log().splitlines() if what in line]

    def logged(self, what: str, count: int = 1) -> list[str]:
        """The lines with this text, once there are so many: a thread of its own writes the log."""
        wait_until(f"{count} lines of the log with {what}", lambda: len(self.log_lines(what)) >= count)
        return self.log_lines(what)

    def retry_waits(self, response: Response) -> list[float]:
        """The waits before the retries of this call, as Tollgate planned them: six of them fit into the steps of a call."""
        path = f"/v1/decisions?id={response.headers['x-tollgate-id']}"
        # The list is written after the response has left.
        found = wait_until("the call among the decisions", lambda: self.api(path).json()["decisions"])
        return [in_seconds(step["text"]) for step in found[0]["steps"] if step["kind"] == "retry"]

    def pauses(self, count: int) -> list[float]:
        """The cool-downs after the first so many 429s, as Tollgate decided them."""
        lines = self.logged("event=cooldown", count)
        return [float(line.split(" sleep=")[1].split("s ")[0]) for line in lines]

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self.process.stop()


# --- the profile --------------------------------------------------------------------------------


@dataclass
class Row:
    id: str
    what: str
    held: bool
    figure: str


@dataclass
class Profile:
    """The scenarios of one profile, run side by side, and the table of what they found."""

    name: str
    folder: Path
    ids: Sequence[str]
    log_file: str | None = None  # where its configuration sends the log, if not to standard error
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    scenarios: list[tuple[Callable[[], None], tuple[str, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if {"-h", "--help"} & set(sys.argv[1:]):
            print(sys.modules["__main__"].__doc__, end="")
            print("\nTOLLGATE_BIN and TOLLGATE_SIM name built programs; without them they are built.")
            sys.exit(0)
        self.tollgate_bin, self.sim_bin = programs()
        self.began = time.monotonic()  # after a build
        self.temporary = Path(tempfile.mkdtemp(prefix=f"tollgate-{self.name}-"))
        self._running: list[Process | Provider] = []
        self._lock = threading.Lock()
        self._number = 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    # Things that scenarios start.

    def new_folder(self, name: str) -> Path:
        with self._lock:
            self._number += 1
            folder = self.temporary / f"{self._number:02}-{name}"
        folder.mkdir()
        return folder

    def _start(self, name: str, args: Sequence[str], env: dict[str, str], folder: Path | None = None) -> Process:
        folder = folder or self.new_folder(name)
        process = Process(args, environment(env), folder, folder / f"{name}.log")
        with self._lock:
            self._running.append(process)
        return process

    def sim(self, *args: str) -> Sim:
        return Sim(self._start("sim", [self.sim_bin, "serve", *args], {}))

    def play(self, reply: Callable[[Received], Reply]) -> Provider:
        provider = Provider(reply)
        with self._lock:
            self._running.append(provider)
        return provider

    def state(self) -> str:
        return f"sqlite:{self.new_folder('state')}"

    def serve(self, env: dict[str, str], *args: str, state: str | None = None, config: Path | None = None) -> Daemon:
        """A gateway with the profile's own files; `env` says where its providers are."""
        config = config or self.folder / "tollgate.yaml"
        common = ["--config", str(config), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        command = [self.tollgate_bin, "serve", *common, "--store", state or self.state(), *args]
        folder = self.new_folder("tollgate")
        process = self._start("tollgate", command, {"TOLLGATE_STATE_DIR": str(folder), **env}, folder)
        if self.log_file:
            process.log_path = folder / self.log_file
        return Daemon(process, folder)

    def variant(self, file: str, *changes: tuple[str, str]) -> Path:
        """The profile's configuration with other numbers in one of its provider files, where its own take hours."""
        folder = self.new_folder("variant")
        shutil.copytree(self.folder / "providers", folder / "providers")
        shutil.copy(self.folder / "tollgate.yaml", folder)
        changed = folder / "providers" / file
        text = changed.read_text()
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        changed.write_text(text)
        return folder / "tollgate.yaml"

    def tollgate(self, env: dict[str, str], *args: str, config: Path | None = None) -> subprocess.CompletedProcess:
        """Another command with the profile's own files, to its end."""
        own = {"TOLLGATE_CONFIG": str(config or self.folder / "tollgate.yaml"), "TOLLGATE_STATE_DIR": str(self.temporary)}
        env = {**own, **env}
        return subprocess.run(
            [self.tollgate_bin, *args], env=environment(env), cwd=self.temporary, capture_output=True, text=True, timeout=CALL_TIMEOUT
        )

    def preset(self, name: str) -> str:
        """What `tollgate provider show` says about a preset, without the profile's files."""
        shown = subprocess.run(
            [self.tollgate_bin, "provider", "show", name],
            env=environment({"TOLLGATE_STATE_DIR": str(self.temporary)}),
            cwd=self.temporary,
            capture_output=True,
            text=True,
        )
        return shown.stdout

    # Results.

    def check(self, ids: str, what: str, held: object, figure: object = "") -> None:
        """A row for each of the ids."""
        with self._lock:
            for one in ids.split():
                self.rows.append(Row(one, what, bool(held), str(figure)))

    def scenario(self, *ids: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def add(function: Callable[[], None]) -> Callable[[], None]:
            self.scenarios.append((function, ids))
            return function

        return add

    def _run_one(self, function: Callable[[], None], ids: tuple[str, ...]) -> None:
        try:
            function()
        except Exception as error:  # whatever went wrong, the table says so
            traceback.print_exc()
            place = traceback.extract_tb(error.__traceback__)[-1].lineno
            self.check(" ".join(ids), f"{function.__name__} ended early", False, f"{error} (line {place})")

    def run(self) -> int:
        """Runs the scenarios, prints the table, and returns the exit code."""
        wanted = sys.argv[1:]  # names of scenarios, to run some of them while working on a profile
        names = [f.__name__ for f, _ in self.scenarios]
        if unknown := [name for name in wanted if name not in names]:
            print(f"{self.name} has no scenario {', '.join(unknown)}; it has {', '.join(names)}", file=sys.stderr)
            return 2
        chosen = [(f, ids) for f, ids in self.scenarios if not wanted or f.__name__ in wanted]
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(chosen))) as pool:
                for future in [pool.submit(self._run_one, f, ids) for f, ids in chosen]:
                    future.result()
        finally:
            for one in reversed(self._running):
                one.stop()
            if os.environ.get("TOLLGATE_EXAMPLE_KEEP"):
                print(f"kept: {self.temporary}", file=sys.stderr)
            else:
                shutil.rmtree(self.temporary, ignore_errors=True)
        for one in self.ids:
            if not wanted and not any(row.id == one for row in self.rows):
                self.check(one, "was not checked", False)
        return self._print()

    def _print(self) -> int:
        order = {one: at for at, one in enumerate(self.ids)}
        rows = sorted(self.rows, key=lambda row: order.get(row.id, len(order)))
        width = max([len(row.what) for row in rows] + [20])
        print(f"profile {self.name}\n\n{'id':<4} {'what was checked':<{width}}  ok  figure")
        for row in rows:
            print(f"{row.id:<4} {row.what:<{width}}  {'✓' if row.held else '✗'}   {row.figure}")
        failed = sum(not row.held for row in rows)
        for note in self.notes:
            print(f"note: {note}")
        verdict = "held" if not failed else f"{failed} checks FAILED"
        took = time.monotonic() - self.began
        print(f"\n{verdict}: {len(rows)} checks of {len(self.ids)} ids in {took:.0f} s")
        most = float(os.environ.get("TOLLGATE_EXAMPLE_SECONDS", SECONDS_MAX))
        if took > most:
            print(f"too slow: it may take {most:.0f} s; on a busy machine set TOLLGATE_EXAMPLE_SECONDS")
        return 1 if failed or took > most else 0
