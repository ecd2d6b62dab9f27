"""C5, C6: a real Celery worker with a Redis broker, both started here and stopped by pid."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Iterator

import celery.exceptions
import pytest

import tollgate
from conftest import CONFIG, environment, write
from fake_server import Fake, respond

PATIENCE = 60
#: One token, then one each two seconds: a task without one is put back.
MORE = """guards:
  once: { limit: 30, period: 1m, burst: 1, by: name }
  brisk: { limit: 600, period: 1m, burst: 50, by: name, retries: 1, factor: 1.0 }
  patient: { limit: 15, period: 1m, burst: 1, by: name }
  impatient: { limit: 1, period: 1m, burst: 1, by: name, wait: 1s, retry_delay: 90s }
"""
GUARDS = CONFIG.replace("guards:\n", MORE)


_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port that is free, and that the kernel gives to nobody by chance: below its ephemeral range."""
    while True:
        port = 12_000 + next(_ports) % 20_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[str]:
    program = shutil.which("redis-server")
    assert program, "redis-server is not installed; run `make tools`"
    port = free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        [program, *arguments, "--dir", str(folder)], stdout=subprocess.DEVNULL
    )
    url = f"redis://127.0.0.1:{port}/0"
    import redis

    until = time.monotonic() + PATIENCE
    while True:
        try:
            redis.Redis.from_url(url).ping()
            break
        except redis.ConnectionError:
            assert process.poll() is None and time.monotonic() < until, "redis did not start"
            time.sleep(0.05)
    yield url
    stop(process)


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[tollgate.LocalDaemon]:
    x = write(folder / "x.yaml", "name: x\nupstream: http://127.0.0.1:9\nlimits: [100/1h]\n")
    config = write(folder / "tollgate.yaml", GUARDS)
    with tollgate.local(folder / "state", providers=[x], config=config) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def tasks(broker: str, daemon: tollgate.LocalDaemon, folder: Path) -> Iterator[object]:
    """The module of the tasks, with a worker of two forked processes behind it."""
    here = Path(__file__).parent
    env = environment(TEST_BROKER=broker, TOLLGATE_ADMIN=daemon.admin)
    env["PYTHONPATH"] += os.pathsep + str(here)
    log = open(folder / "worker.log", "wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "2", "-l", "INFO",
         "--without-gossip", "--without-mingle"],
        cwd=folder, env=env, stdout=log, stderr=log,
    )
    with pytest.MonkeyPatch.context() as environment_of_import:
        environment_of_import.setenv("TEST_BROKER", broker)
        module = importlib.import_module("celery_app")
    until = time.monotonic() + PATIENCE
    while not module.app.control.ping(timeout=0.5):
        assert worker.poll() is None and time.monotonic() < until, (folder / "worker.log").read_text()
    yield module
    stop(worker)
    log.close()
    del sys.modules["celery_app"]


def noted(tasks, what: str) -> list:
    """Time and retries of each run of a task."""
    lines = [line.decode().split(" ") for line in tasks.notes.lrange("notes", 0, -1)]
    return [(float(at), int(retries)) for name, at, retries in lines if name == what]


def runs_again(tasks, result) -> float:
    """When a task that was put back runs again, as its worker says."""
    until = time.monotonic() + PATIENCE
    while True:
        scheduled = tasks.app.control.inspect(timeout=1).scheduled() or {}
        of_task = [of for each in scheduled.values() for of in each if of["request"]["id"] == result.id]
        if result.state == "RETRY" and of_task:
            assert len(of_task) == 1
            return datetime.datetime.fromisoformat(of_task[0]["eta"]).timestamp()
        assert time.monotonic() < until, (result.state, scheduled)


def test_c5_tasks_run_with_a_token(tasks, daemon):
    results = [tasks.plain.delay(number) for number in range(3)]
    assert [result.get(timeout=PATIENCE) for result in results] == [0, 2, 4]
    with daemon.client() as client:
        assert client.get_status("plain", guard="task")["tokens_available"] < 14


def test_c5_a_task_without_a_token_is_put_back_and_that_is_no_retry(tasks):
    """Three tasks, one token each two seconds: all run, none of them as a retry."""
    results = [tasks.denied.delay() for _ in range(3)]
    assert [result.get(timeout=PATIENCE) for result in results] == ["ran"] * 3
    runs = noted(tasks, "denied")
    assert len(runs) == 3 and all(retries == 0 for _, retries in runs)
    times = sorted(at for at, _ in runs)
    assert times[2] - times[0] > 3.5  # two more tokens had to come


def test_c5_a_failing_task_is_retried_three_times_after_1_2_4_seconds(tasks):
    with pytest.raises(RuntimeError):
        tasks.failing.delay().get(timeout=PATIENCE)
    runs = noted(tasks, "failing")
    assert [retries for _, retries in runs] == [0, 1, 2, 3]
    gaps = [after[0] - before[0] for before, after in zip(runs, runs[1:])]
    # Not before their time; how much later is up to a busy machine.
    assert all(gap >= wanted - 0.1 for gap, wanted in zip(gaps, [1, 2, 4])), gaps


def test_c5_a_task_that_recovers_returns_its_result(tasks):
    assert tasks.recovers.delay().get(timeout=PATIENCE) == "recovered"
    assert [retries for _, retries in noted(tasks, "recovers")] == [0, 1]


def test_c5_retries_are_those_of_the_guard(tasks):
    """C12: what the daemon's variables set has its effect on Celery: one retry, not three."""
    result = tasks.failing_by_guard.delay()
    with pytest.raises(RuntimeError):
        result.get(timeout=PATIENCE)
    assert [retries for _, retries in noted(tasks, "failing_by_guard")] == [0, 1]


def test_c5_the_wait_and_the_countdown_are_those_of_the_guard(tasks):
    """The next token comes in a minute: longer than `wait`, so it is put back for `retry_delay`."""
    assert tasks.denied_by_guard.delay().get(timeout=PATIENCE) == "ran"
    began = time.time()
    result = tasks.denied_by_guard.delay()
    assert 89 <= runs_again(tasks, result) - began <= 90 + PATIENCE
    result.revoke()


def test_c5_a_soft_time_limit_while_a_task_waits_for_its_token_costs_no_retry(tasks):
    """A token each four seconds, and one second until the limit: put back until there is one. Each
    time it had been a failure, and the task was lost after four."""
    results = [tasks.waits_long.delay() for _ in range(2)]
    assert [result.get(timeout=PATIENCE) for result in results] == ["ran"] * 2
    runs = noted(tasks, "waits_long")
    assert [retries for _, retries in runs] == [0, 0]
    assert abs(runs[1][0] - runs[0][0]) > 3


def test_c5_a_denial_inside_the_task_is_not_a_failure(tasks):
    """It is put back: the longer of `retry_delay` (60 s) and the time of the denial counts."""
    result = tasks.denied_inside.delay()
    again = runs_again(tasks, result)
    assert 59 <= again - noted(tasks, "inside")[0][0] <= 60 + PATIENCE
    result.revoke()


def test_c5_a_task_takes_a_permit_of_a_provider(tasks, daemon):
    assert tasks.unbound.delay().get(timeout=PATIENCE) == "called"
    with daemon.client() as client:
        assert client.get_status("x")["limits"][0]["used"] == 1
        assert client.get_status("x")["permits"]["open"] == 0


def test_a_task_called_as_a_function_is_limited_too(tasks, daemon, monkeypatch):
    monkeypatch.setattr("tollgate.tasks._default._client", daemon.client())
    assert tasks.plain(21) == 42
    assert tasks.unbound() == "called"


def test_c6_a_full_queue_takes_no_task_and_its_depth_is_logged(tasks, daemon, caplog):
    manager = tollgate.QueueManager(daemon.client(), app=tasks.app)
    assert manager.pending("backlog") == 0 and manager.can_submit_task("backlog")
    for number in range(51):
        tasks.plain.apply_async((number,), queue="backlog")  # no worker listens to it
    assert manager.pending("backlog") == 51
    with caplog.at_level(logging.WARNING, "tollgate"):
        assert not manager.can_submit_task("backlog")
    assert "backlog is full: 51 tasks" in caplog.text
    tasks.notes.delete("backlog")
    assert manager.can_submit_task("backlog")


def test_c6_can_submit_takes_a_task_token_without_waiting(daemon):
    manager = tollgate.QueueManager(daemon.client())
    granted = [manager.can_submit_task("tokens") for _ in range(20)]
    assert granted == [True] * 15 + [False] * 5
    assert not manager.can_submit_task("other", pending=51)
    assert manager.can_submit_task("other", pending=50)
    loose = tollgate.QueueManager(daemon.client(), max_pending=100)
    assert not loose.can_submit_task("other", pending=51), "the daemon's bound holds too"
    smaller = tollgate.QueueManager(daemon.client(), max_pending=10)  # the daemon's bound is 50
    assert not smaller.can_submit_task("other", pending=11)
    assert smaller.can_submit_task("other", pending=10)


def test_c6_a_smaller_bound_holds_for_the_daemons_count_too(daemon, caplog):
    """Without a broker and without `pending=` it had no effect."""
    manager = tollgate.QueueManager(daemon.client(), max_pending=2)
    assert manager.can_submit_task("small"), "nobody has heard of this queue"
    for number in range(3):
        assert manager.can_submit_task("small")
        manager.report_event("small", str(number), "submitted")
    with daemon.client() as client:
        tokens = client.get_status("small", guard="task")["tokens_available"]
        with caplog.at_level(logging.WARNING, "tollgate"):
            assert not manager.can_submit_task("small")
        assert client.get_status("small", guard="task")["tokens_available"] >= tokens
    assert "small is full: 3 tasks" in caplog.text
    assert tollgate.QueueManager(daemon.client()).can_submit_task("small")
    manager.report_event("small", "0", "started")
    assert manager.can_submit_task("small")


@pytest.mark.parametrize("pending", ["many", -1, True, 1.5])
def test_a_count_that_is_none_is_a_typed_error(daemon, pending):
    manager = tollgate.QueueManager(daemon.client())
    with pytest.raises(tollgate.BadRequest) as wrong:
        manager.can_submit_task("other", pending=pending)
    assert wrong.value.hint
    with pytest.raises(tollgate.BadRequest):
        tollgate.QueueManager(daemon.client(), max_pending=pending)
    with pytest.raises(tollgate.BadRequest):
        manager.report_event(5, "id", "submitted")


def test_c6_the_queue_status_has_the_documents_parts(tasks, daemon):
    status = tollgate.QueueManager(daemon.client(), app=tasks.app).get_queue_status()
    assert set(status) == {"active_queues", "active", "scheduled", "reserved", "pending"}
    names = [queue["name"] for of in status["active_queues"].values() for queue in of]
    assert names == ["celery"] and status["pending"] == {"celery": 0}
    assert list(status["active"].values()) == [[]]


def test_c6_without_a_broker_the_daemon_counts(daemon):
    manager = tollgate.QueueManager(daemon.client())
    for number in range(3):
        manager.report_event("counted", str(number), "submitted")
    manager.report_event("counted", "0", "started")
    status = manager.get_queue_status()
    assert "counted" in status["active_queues"]
    assert status["active"]["counted"] == 1 and status["pending"]["counted"] >= 2
    with pytest.raises(tollgate.BadRequest):
        manager.report_event("counted", "0", "exploded")
    with pytest.raises(tollgate.BadRequest):
        manager.pending("counted")


def test_c6_the_bound_is_the_daemons(make_daemon):
    """Before, the client had a bound of 50 of its own."""
    roomy = make_daemon(config=CONFIG.replace("max_pending: 50", "max_pending: 100"))
    manager = tollgate.QueueManager(roomy.client())
    assert manager.can_submit_task("q", pending=51) and manager.can_submit_task("q", pending=100)
    assert not manager.can_submit_task("q", pending=101)


def test_c5_the_documents_values_are_the_defaults():
    """Waits up to 300 s, put back for 60 s, three retries with factor 2, if no guard says otherwise."""
    asked = []

    class Recorder:
        address = tollgate.Client("127.0.0.1:1").address

        def acquire(self, *arguments, **options):
            asked.append((arguments, options))
            raise tollgate.RateLimitExceeded("no", retry_in=1.0)

    limited = tollgate.rate_limited("a", client=Recorder())(lambda: None)
    for _ in range(2):
        with pytest.raises(tollgate.RateLimitExceeded):
            limited()
    waiting = (("a", 1, True, 300.0), {"guard": "task"})
    # The first asks without a wait, because it does not know how long; from then on it is known.
    assert asked == [(("a", 1, False, 0.0), {"guard": "task"}), waiting, waiting]
    rules = tollgate.tasks._TaskRules()
    assert (rules.retry_delay, rules.retries, rules.factor) == (60.0, 3, 2.0)


class FakeTask:
    """A task that a worker runs; it notes how it would be retried or put back."""

    def __init__(self, is_eager: bool = False) -> None:
        self.name = "fake"
        self.request = SimpleNamespace(retries=0, is_eager=is_eager)
        self.noted: list = []

    def retry(self, **options: object) -> Exception:
        self.noted.append(("retry", options["countdown"], options["max_retries"]))
        return celery.exceptions.Retry()

    def signature_from_request(self, **options: object) -> object:
        self.noted.append(("put back", options["countdown"], options["retries"]))
        return SimpleNamespace(apply_async=lambda: None)


def runs_as(task: FakeTask, monkeypatch, client: tollgate.Client, work, **options) -> None:
    monkeypatch.setattr(tollgate.tasks, "_current_task", lambda args: task)
    with pytest.raises(celery.exceptions.Retry):
        tollgate.rate_limited("a", client=client, **options)(work)()


RULES = b'{"wait": 5, "retry_delay": 90, "retries": 7, "factor": 1.0}'


def fails() -> None:
    raise RuntimeError("broken")


def test_c5_a_task_that_runs_long_is_retried_as_its_guard_says(fake, monkeypatch):
    """What the daemon had said was forgotten after a minute: 3 retries and factor 2 then."""
    monkeypatch.setattr(tollgate.tasks, "RULES_FOR", 0.0)

    def grants(fake: Fake, connection: socket.socket, number: int) -> None:
        while True:
            fake.body_of(connection)
            respond(connection, b'{"granted": true, "task": %s}' % RULES)

    task = FakeTask()
    with tollgate.Client(fake(grants).url) as client:
        for _ in range(2):
            runs_as(task, monkeypatch, client, fails)
    assert task.noted == [("retry", 1.0, 7)] * 2


def test_c5_a_task_is_put_back_as_its_guard_says_while_the_daemon_is_away(fake, monkeypatch):
    monkeypatch.setattr(tollgate.tasks, "RULES_FOR", 0.0)

    def grants_once(fake: Fake, connection: socket.socket, number: int) -> None:
        fake.body_of(connection)
        respond(connection, b'{"granted": true, "task": %s}' % RULES)

    task = FakeTask()
    server = fake(grants_once)
    with tollgate.Client(server.url) as client:
        runs_as(task, monkeypatch, client, fails)
        server.server.shutdown(socket.SHUT_RDWR)
        server.server.close()
        runs_as(task, monkeypatch, client, fails)
    assert task.noted == [("retry", 1.0, 7), ("put back", 90.0, 0)]


def test_c5_a_denial_of_an_eager_task_is_not_its_own_cause(monkeypatch):
    """Whoever printed the chain of causes never came to an end."""
    task = FakeTask(is_eager=True)
    monkeypatch.setattr(tollgate.tasks, "_current_task", lambda args: task)
    limited = tollgate.rate_limited("a", client=tollgate.Client("127.0.0.1:1"))(fails)
    with pytest.raises(tollgate.TollgateUnavailable) as away:
        limited()
    assert away.value.__cause__ is not away.value and task.noted == []


def test_c5_the_permit_of_a_provider_is_held_as_long_as_its_task_runs(fake):
    """It expired after half a minute and the provider's timeout, and another task could call too."""
    server = fake(lends)

    def work() -> None:
        until = time.monotonic() + PATIENCE
        while server.paths.count("/v1/renew") < 3 and time.monotonic() < until:
            time.sleep(0.01)

    with tollgate.Client(server.url) as client:
        tollgate.rate_limited(provider="x", client=client)(work)()
        assert server.paths.count("/v1/renew") >= 3 and server.paths[0] == "/v1/acquire" and "/v1/report" in server.paths[-2:]
        until = time.monotonic() + PATIENCE
        while "tollgate-renew" in [thread.name for thread in threading.enumerate()]:
            assert time.monotonic() < until, "renewals end with the task"
            time.sleep(0.01)


def lends(fake: Fake, connection: socket.socket, number: int) -> None:
    while True:
        fake.body_of(connection)
        is_first_renewal = fake.paths.count("/v1/renew") == 1 and fake.paths[-1] == "/v1/renew"
        if is_first_renewal:  # one that does not come through ends nothing
            respond(connection, b'{"error": "StoreLost"}', b"503 Service Unavailable")
        else:
            respond(connection, b'{"granted": true, "permit": "p1", "use_within": 0.1}')


@pytest.mark.parametrize(
    "options", [{"retries": -1}, {"factor": 0.5}, {"wait": -1}, {"tokens": 0}, {"factor": "2"}]
)
def test_wrong_options_are_told(options):
    with pytest.raises(tollgate.BadRequest):
        tollgate.rate_limited("a", **options)
    with pytest.raises(tollgate.BadRequest):
        tollgate.rate_limited(lambda: None)
    asking = tollgate.AsyncClient("127.0.0.1:1")
    for use in (tollgate.QueueManager, lambda client: tollgate.rate_limited("a", client=client)):
        with pytest.raises(tollgate.BadRequest) as wrong:
            use(asking)
        assert "tollgate.Client()" in str(wrong.value)


def test_a_coroutine_is_told_and_not_run_without_its_permit():
    async def transcribe() -> None:
        pass

    with pytest.raises(tollgate.BadRequest) as wrong:
        tollgate.rate_limited("a")(transcribe)
    assert "`transcribe`" in str(wrong.value) and "AsyncClient" in wrong.value.hint


def test_a_countdown_has_a_bound():
    """A hundredfold wait was an OverflowError after 154 retries, and no date long before that."""
    rules = tollgate.tasks._TaskRules(factor=100.0)
    assert [rules.countdown(retries) for retries in (0, 1, 2)] == [1.0, 100.0, 10_000.0]
    assert [rules.countdown(retries) for retries in (3, 200, 10**9)] == [86_400.0] * 3
    assert tollgate.tasks._TaskRules(factor=1.0).countdown(10**9) == 1.0


def test_a_fork_under_the_lock_of_the_default_client_does_not_block(daemon, monkeypatch):
    """Celery forks its workers while other threads of the parent may ask for the client."""
    monkeypatch.setenv("TOLLGATE_ADMIN", daemon.admin)
    default = tollgate.tasks._DefaultClient()
    monkeypatch.setattr(tollgate.tasks, "_default", default)
    with default._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(PATIENCE)  # a child that blocks dies, and the test fails
            tollgate.tasks.default_client().acquire("x").report(status=200)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
