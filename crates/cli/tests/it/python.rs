//! The Python library of `clients/python`, tested by its own tests against this program.
//!
//! `make tools` makes the environment `target/clients/venv`; without it these tests fail.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;

const STEP: Duration = Duration::from_millis(50);
/// Five minutes: one file of tests takes less than one on an idle machine with two cores.
const PATIENCE_STEPS: u32 = 6_000;

/// A process that does not outlive its test.
struct Pytest(Child);

impl Drop for Pytest {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

pub(crate) fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = crates.and_then(Path::parent).expect("a workspace");
    root.to_owned()
}

pub(crate) fn python() -> PathBuf {
    let python = root().join("target/clients/venv/bin/python");
    let hint = "is missing; run `make tools` (it needs python3 with venv)";
    assert!(python.exists(), "{} {hint}", python.display());
    python
}

/// Runs one file of the tests, to its end or to the end of our patience.
fn pytest(file: &str) {
    let folder = Folder::new(&format!("python-{file}"));
    let output = folder.path().join("output");
    let out = std::fs::File::create(&output).expect("a file");
    let mut command = Command::new(python());
    command
        .args(["-m", "pytest", "-q", "--basetemp"])
        .arg(folder.path().join("tests"))
        .arg(format!("tests/{file}.py"))
        .current_dir(root().join("clients/python"))
        .env("TOLLGATE_BIN", env!("CARGO_BIN_EXE_tollgate"))
        .env("PYTHONPATH", "src")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("a file"))
        .stderr(out);
    let mut child = Pytest(command.spawn().expect("python runs"));
    let mut status = None;
    for _ in 0..PATIENCE_STEPS {
        status = child.0.try_wait().expect("a child");
        if status.is_some() {
            break;
        }
        std::thread::park_timeout(STEP);
    }
    let is_passed = status.is_some_and(|status| status.success());
    let text = std::fs::read(&output).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    assert!(is_passed, "{file}: {status:?}\n{text}");
}

/// C1, C2, C11, S11: permits, guards and errors; threads, forks, a daemon that is away.
#[test]
fn s11_the_blocking_client() {
    pytest("test_client");
}

/// asyncio: cancellation takes nothing, blocks settle their permits.
#[test]
fn the_client_of_asyncio() {
    pytest("test_async_client");
}

/// Few connections for many requests; nothing is counted twice; a busy daemon opens nothing.
#[test]
fn the_connections_under_pressure() {
    pytest("test_connections");
}

/// C4, C10: a real FastAPI application behind the middleware, served by uvicorn.
#[test]
fn c4_c10_the_middleware_in_front_of_fastapi() {
    pytest("test_asgi");
}

/// C5, C6: real Celery workers with a Redis broker.
#[test]
fn c5_c6_celery_tasks_and_queues() {
    pytest("test_celery");
}

/// S11: httpx through the gateway, with the switches of one call.
#[test]
fn s11_httpx_through_the_gateway() {
    pytest("test_transport");
}

/// The wheel in a fresh environment, the snippets of README and docs/libraries.md, `tollgate.local()`.
#[test]
fn the_first_five_minutes_of_python() {
    pytest("test_first_minutes");
}
