"""The first five minutes: the wheel in a fresh environment, the quickstart, `tollgate.local()`."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

import tollgate
from tollgate.daemon import SCRIPT, STOP_WITHIN
from conftest import environment, write

ROOT = Path(__file__).parent.parent
PAGE = ROOT.parent.parent / "docs" / "libraries.md"
PATIENCE = 60


def run(*command: object, **options) -> str:
    """Runs to its end within our patience; its output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def snippets(page: Path) -> list:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built without a network: the backend is in this environment."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (found,) = out.glob("tollgate-*.whl")
    return found


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory) -> Path:
    """A fresh environment with the wheel and nothing else."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "pip", "install", "-q", "--no-index", wheel, env=environment(PYTHONPATH=""))
    return venv / "bin" / "python"


def test_every_source_is_python_3_9():
    """The oldest version that the metadata names, which no machine of ours has."""
    assert 'requires-python = ">=3.9"' in (ROOT / "pyproject.toml").read_text()
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        tree = ast.parse(source.read_text(), str(source), feature_version=(3, 9))
        # Annotations that 3.9 cannot evaluate (`int | None`) are texts only with this.
        names = [of.names[0].name for of in tree.body if isinstance(of, ast.ImportFrom) and of.module == "__future__"]
        assert "annotations" in names or source.name == "__init__.py", source


def test_the_wheel_has_the_library_and_its_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "tollgate/py.typed" in names and "tollgate/client.py" in names
    assert not [name for name in names if "test" in name or "bench" in name]
    metadata = next(name for name in names if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert all("extra ==" in line for line in required), required


def test_the_library_needs_nothing_but_the_standard_library(fresh_python, tmp_path):
    """Neither httpx nor Celery is there; what needs them says so when it is used."""
    code = """
        import sys, tollgate
        assert "site-packages" in tollgate.__file__
        for name in tollgate.__all__:
            try:
                getattr(tollgate, name)
            except ImportError as error:
                assert "httpx" in str(error), error
        assert not {"httpx", "celery", "starlette", "requests"} & set(sys.modules)
    """
    env = environment(PYTHONPATH="")
    run(fresh_python, "-c", textwrap.dedent(code), cwd=tmp_path, env=env)


def test_the_quickstart_of_the_readme_runs_in_a_fresh_environment(fresh_python, tmp_path, provider):
    """Five lines: the provider's log says that the call was made, and made once."""
    code = snippets(ROOT / "README.md")[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) == 5, lines
    code = code.replace("https://api.example.com", provider.url)
    write(tmp_path / "example.yaml", f"name: example\nupstream: {provider.url}\nlimits: [5/1s]\n")
    output = run(fresh_python, "-c", code, cwd=tmp_path, env=environment(PYTHONPATH=""))
    assert output.strip() == "200"
    assert provider.paths() == {"/items": 1}


@pytest.mark.parametrize("number", range(7))
def test_every_snippet_of_the_page_runs(number, daemon, provider, tmp_path):
    """The addresses are those of the test; nothing else is changed."""
    found = snippets(PAGE)
    assert len(found) == 7
    code = found[number]
    for shown, real in [
        ("http://127.0.0.1:4291", daemon.admin),
        ("http://127.0.0.1:4290", daemon.gateway),
        ("https://api.example.com", provider.url),
    ]:
        code = code.replace(shown, real)
    write(tmp_path / "example.yaml", f"name: example\nupstream: {provider.url}\nlimits: [5/1s]\n")
    env = environment(TOLLGATE_ADMIN=daemon.admin, APP_TOKEN="canary-app-token")  # tidy:canary
    run(sys.executable, "-c", code, cwd=tmp_path, env=env)


def test_local_daemons_on_one_folder_share_one_quota(make_daemon, provider):
    text = f"name: x\nupstream: {provider.url}\nlimits: [5/1h]\n"
    clients = [make_daemon(text).client() for _ in range(3)]
    granted = 0
    for number in range(12):
        try:
            clients[number % 3].acquire("x", timeout=5).report(status=200)
            granted += 1
        except tollgate.RateLimitExceeded as denied:
            assert str(denied.limit) == "5/1h"
    assert granted == 5


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends(pid: int) -> bool:
    until = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_running(pid)


def test_a_local_daemon_stops_with_its_block(make_daemon):
    daemon = make_daemon()
    assert is_running(daemon.pid) and "127.0.0.1" in repr(daemon)
    daemon.stop()
    assert not is_running(daemon.pid)
    assert daemon._process.stdin.closed and daemon._process.stdout.closed
    daemon.stop()


def test_a_local_daemon_stops_although_a_forked_worker_lives(make_daemon):
    """The worker held the pipe whose end stops the daemon: 15 seconds, then SIGKILL."""
    daemon = make_daemon("name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1h]\n")
    with daemon.client() as client:
        client.acquire("x").report(status=200)
    read_end, write_end = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(write_end)
        os.read(read_end, 1)  # lives until the test lets it go
        os._exit(0)
    os.close(read_end)
    try:
        began = time.monotonic()
        daemon.stop()
        assert time.monotonic() - began < STOP_WITHIN / 2 and not is_running(daemon.pid)
        assert daemon._process.returncode == 0, "ended by SIGTERM, not killed"
        assert is_running(worker)
    finally:
        os.close(write_end)
        os.waitpid(worker, 0)


def test_a_local_daemon_ends_with_a_killed_program_although_a_forked_worker_lives(tmp_path):
    """Nobody writes a line then: the pipe has to end, so the worker must not hold it."""
    code = f"""
        import os, tollgate
        daemon = tollgate.local({str(tmp_path / "state")!r})
        worker = os.fork()
        if worker == 0:
            os.read(0, 1)  # lives until the test lets it go
            os._exit(0)
        print(daemon.pid, worker, flush=True)
        os.kill(os.getpid(), 9)
    """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    daemon, worker = (int(pid) for pid in program.stdout.readline().split())
    program.wait(PATIENCE)
    try:
        assert is_running(worker)
        assert ends(daemon), "the daemon outlives its program"
    finally:
        program.stdin.close()
        program.stdout.close()
        assert ends(worker)


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(1)", "os._exit(0)", "os.kill(0, 9)"])
def test_a_local_daemon_ends_with_its_program(end, tmp_path):
    """Also if the program is killed or leaves without a word."""
    code = f"""
        import os, sys, tollgate
        daemon = tollgate.local({str(tmp_path / "state")!r})
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # a forked worker that ends does not stop it
        os.waitpid(pid, 0)
        os.kill(daemon.pid, 0)
        print(daemon.pid, flush=True)
        {end.replace("os.kill(0, 9)", "os.kill(os.getpid(), 9)")}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        env=environment(),
        timeout=2 * PATIENCE,
    )
    assert ends(int(done.stdout)), "the daemon outlives its program"


def test_a_daemon_that_cannot_start_says_why(tmp_path, monkeypatch):
    bad = write(tmp_path / "bad.yaml", "name: x\nlimits: [nonsense]\n")
    with pytest.raises(tollgate.TollgateUnavailable) as failed:
        tollgate.local(tmp_path / "state", providers=[bad])
    assert "bad.yaml" in str(failed.value)
    monkeypatch.setenv("TOLLGATE_BIN", str(tmp_path / "nothing"))
    with pytest.raises(tollgate.TollgateUnavailable) as failed:
        tollgate.local(tmp_path / "state")
    assert "TOLLGATE_BIN" in str(failed.value)
    monkeypatch.delenv("TOLLGATE_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tollgate.TollgateUnavailable) as failed:
        tollgate.local(tmp_path / "state")
    assert "PATH" in str(failed.value)


def test_a_folder_or_a_list_that_is_none_is_told(tmp_path):
    file = write(tmp_path / "file", "")
    with pytest.raises(tollgate.BadRequest) as wrong:
        tollgate.local(file / "state")
    assert str(file) in str(wrong.value) and wrong.value.hint
    for options in ({"providers": "tmdb.yaml"}, {"providers": file}, {"args": "--verbose"}):
        with pytest.raises(tollgate.BadRequest):
            tollgate.local(tmp_path / "state", **options)


@pytest.mark.parametrize("value", [5, 1.5, object(), "a\0b", "\ud800"])
@pytest.mark.parametrize("name", ["folder", "config", "providers", "args"])
def test_a_path_that_is_none_is_told(name, value, tmp_path):
    """They were a bare TypeError or ValueError, and the folder was made before."""
    wrong_value = [value] if name in ("providers", "args") else value
    options = {"folder": tmp_path / "state", name: wrong_value}
    with pytest.raises(tollgate.BadRequest) as wrong:
        tollgate.local(**options)
    assert f"`{name}`" in wrong.value.message and f"{name}=" in wrong.value.hint
    assert not (tmp_path / "state").exists()
    if name in ("providers", "args"):
        with pytest.raises(tollgate.BadRequest) as wrong:
            tollgate.local(tmp_path / "state", **{name: 5})
        assert f"`{name}` is not a list" in str(wrong.value)


def test_paths_may_be_of_any_kind(tmp_path):
    file = write(tmp_path / "x.yaml", "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1h]\n")
    paths = iter([os.fsencode(file)])
    with tollgate.local(os.fsencode(tmp_path / "state"), providers=paths, args=("--offline",)) as daemon:
        assert daemon.client().get_status("x")["limits"][0]["used"] == 0
    assert (tmp_path / "state").exists()


@pytest.mark.parametrize("shell", [["sh"], ["bash"], ["bash", "--posix"]])
@pytest.mark.parametrize("is_dead", [False, True])
def test_the_shell_of_a_local_daemon_signals_nobody_else(shell, is_dead, tmp_path):
    """bash reaps a dead daemon at once, and its pid may mean another process when the program ends."""
    record = tmp_path / "record"
    noting = f'kill() {{ command kill "$@"; echo "$?" >{shlex.quote(str(record))}; }}; '
    # Its own output stays open as long as it lives.
    work = ["sh", "-c", "true" if is_dead else "exec sleep 60"]
    process = subprocess.Popen(
        [*shell, "-c", noting + SCRIPT, "tollgate", *work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    pid = int(process.stdout.readline().split()[1])
    if is_dead:
        process.stdout.read()  # ends with the one that holds its other end
    assert is_dead or is_running(pid)
    process.communicate(b"\n", timeout=PATIENCE)
    assert record.read_text() == "0\n", "the signal reached whom it was sent to"
    assert ends(pid)


def test_the_library_is_typed():
    run(sys.executable, "-m", "mypy", "--cache-dir", os.devnull, cwd=ROOT)
