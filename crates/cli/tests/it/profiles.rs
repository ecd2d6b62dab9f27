//! The profiles of `examples/`, run as a user runs them: `examples/NAME/run` with these programs.
//!
//! Each `run` walks its document line by line against providers with logs of their own, prints a
//! table with a row for every check, and exits with 0 only if all held.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::folder::Folder;
use crate::python::root;

const STEP: Duration = Duration::from_millis(50);
/// Ten minutes: a profile takes less than one on an idle machine with two cores.
const PATIENCE_STEPS: u32 = 12_000;

/// A `run` that does not outlive its test.
struct ProfileRun(Child);

impl Drop for ProfileRun {
    fn drop(&mut self) {
        // SIGTERM: it stops the processes that it started.
        let pid = self.0.id().to_string();
        let ended = self.0.try_wait().is_ok_and(|status| status.is_some());
        if !ended {
            drop(Command::new("kill").args(["-TERM", &pid]).status());
        }
        drop(self.0.wait());
    }
}

/// `tollgate-sim`, which lies beside `tollgate` after a build of the workspace; built if it does not.
fn sim() -> &'static Path {
    static SIM: OnceLock<PathBuf> = OnceLock::new();
    SIM.get_or_init(|| {
        let sim = Path::new(env!("CARGO_BIN_EXE_tollgate")).with_file_name("tollgate-sim");
        if !sim.exists() {
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            build.args(["build", "--locked", "-p", "tollgate-sim"]);
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.current_dir(root()).status().unwrap().success());
        }
        sim
    })
}

/// Runs one profile and checks that every id of its document was shown and held.
fn profile(name: &str, letter: char, numbers: impl IntoIterator<Item = u32>) {
    let (holds, text) = run_profile(name, &[]);
    assert!(holds, "{name}\n{text}");
    for number in numbers {
        let id = format!("{letter}{number} ");
        let mut rows = text.lines().filter(|line| line.starts_with(&id)).peekable();
        assert!(rows.peek().is_some(), "{id}was not shown\n{text}");
        assert!(
            rows.all(|row| row.contains('✓')),
            "{id}did not hold\n{text}"
        );
    }
}

/// Whether the profile held, or these scenarios of it, and what it printed.
fn run_profile(name: &str, scenarios: &[String]) -> (bool, String) {
    // Of its own: another test may run the same profile now.
    let folder = Folder::new(&format!("profile-{name}-{}", scenarios.len()));
    let output = folder.path().join("output");
    let out = File::create(&output).unwrap();
    let child = Command::new(root().join("examples").join(name).join("run"))
        .args(scenarios)
        .current_dir(folder.path())
        .env("TOLLGATE_BIN", env!("CARGO_BIN_EXE_tollgate"))
        .env("TOLLGATE_SIM", sim())
        // The machine is shared with other tests; our own patience is the bound.
        .env("TOLLGATE_EXAMPLE_SECONDS", "600")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .expect("python3 runs");
    let mut run = ProfileRun(child);
    let mut status = None;
    for _ in 0..PATIENCE_STEPS {
        status = run.0.try_wait().unwrap();
        if status.is_some() {
            break;
        }
        std::thread::park_timeout(STEP);
    }
    drop(run);
    let text = folder.read("output");
    (status.is_some_and(|status| status.success()), text)
}

/// The two scenarios that the README of a profile runs alone: `examples/NAME/run A B`.
fn named_scenarios(name: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(root().join("examples").join(name).join("README.md"));
    let readme = readme.unwrap();
    let start = format!("\nexamples/{name}/run ");
    let lines = readme
        .split(&start)
        .skip(1)
        .filter_map(|rest| rest.lines().next());
    let mut named = lines.map(|line| line.split('#').next().unwrap_or_default().trim());
    let line = named.find(|line| !line.is_empty()).expect("two scenarios");
    let scenarios: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(scenarios.len(), 2, "{name}: {line}");
    scenarios
}

/// A name that does not exist ran nothing and exited with 0.
#[test]
fn the_scenarios_that_readmes_name_exist_and_others_are_rejected() {
    for name in ["media", "resilient-cli", "sports", "pipeline", "inbound"] {
        let mut scenarios = named_scenarios(name);
        scenarios.push("no_such_scenario".to_owned());
        let (holds, text) = run_profile(name, &scenarios);
        assert!(!holds, "{text}");
        let expected = format!("{name} has no scenario no_such_scenario; it has ");
        assert!(text.starts_with(&expected), "{text}");
    }
}

/// The second command of a README, as it stands there. Those of the pipeline take a second and start no server.
#[test]
fn two_scenarios_of_a_profile_run_alone() {
    let scenarios = named_scenarios("pipeline");
    let (holds, text) = run_profile("pipeline", &scenarios);
    assert!(holds, "{text}");
    assert!(text.contains("\nheld: 4 checks of 10 ids"), "{text}");
}

mod media {
    /// M1, M2, M3, M4, M5, M6, M7, M8, M9, M10, M11, M12, M13, M14, M15: the media document's system
    /// with the configuration of `examples/media`.
    #[test]
    fn every_line_of_the_media_document_holds() {
        super::profile("media", 'M', 1..=15);
    }
}

mod resilient_cli {
    /// A1, A2, A3, A4, A5, A6, A7, A8, A9, A10, A11, A12, A13, A14, A15, A16, A17, A18: the resilient-CLI
    /// document's system with the configuration of `examples/resilient-cli`.
    #[test]
    fn every_line_of_the_resilient_cli_document_holds() {
        super::profile("resilient-cli", 'A', 1..=18);
    }
}

mod sports {
    /// S1, S2, S3, S4, S5, S6, S7, S8, S9, S10, S11, S12, S13, S14, S15: the sports document's system with
    /// the configuration of `examples/sports`.
    #[test]
    fn every_line_of_the_sports_document_holds() {
        super::profile("sports", 'S', 1..=15);
    }
}

mod pipeline {
    /// H1, H2, H3, H4, H5, H6, H7, H8, H9, H10: the pipeline document's system with the configuration of
    /// `examples/pipeline`: a real Postgres among it.
    #[test]
    fn every_line_of_the_pipeline_document_holds() {
        super::profile("pipeline", 'H', 1..=10);
    }
}

mod inbound {
    /// C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13: the inbound document's system with the
    /// configuration of `examples/inbound`: real Redis, FastAPI, Celery and Prometheus.
    #[test]
    fn every_line_of_the_inbound_document_holds() {
        super::profile("inbound", 'C', 1..=13);
    }
}
