//! schemathesis makes requests of every kind from docs/openapi.json, valid and not, and compares the
//! replies of a real daemon with what the document says.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;
use crate::running_daemon::RunningDaemon;

/// Limits that no run reaches: a denial is a fine reply, and a wait is a slow one. A request may ask for
/// more than a limit has, so no call waits for longer than a second unless it says so. Reports of failures
/// must not close the provider: calls with a long timeout of their own would wait for it.
const PROVIDER: &str = "name: tmdb
domain: api.example.org
limits: [1000000/1s]
queue: { timeout: 1s }
health: off
";
const SPARE: &str = "name: spare
domain: spare.example
queue: { timeout: 1s }
";
const CONFIG: &str = "guards:
  api:  { limit: 1000000, period: 1m, burst: 1000000, by: global }
  task: { limit: 1000000, period: 1m, burst: 1000000, by: name, max_pending: 50 }
";

/// Formats that JSON Schema does not have.
const HOOKS: &str = "import schemathesis
from hypothesis import strategies as st

URLS = ['https://api.example.org/v1/x', 'http://other.example/', 'https://api.example.org/a?b=1']
schemathesis.openapi.format('http-url', st.sampled_from(URLS))
";

/// A document cannot say that a query needs one of two parameters, or one parameter because of
/// another, or which numbers the fields of a cron line may have; and which settings a provider has, is
/// not its matter. A head above the bound gets 431, which is a rejection too.
const SETTINGS: &str = "hooks = 'hooks.py'

[checks]
positive_data_acceptance.expected-statuses = ['2xx', '403', '404', '409', '429']
negative_data_rejection.expected-statuses = ['4xx']

[[operations]]
include-path = '/v1/check'
checks.negative_data_rejection.expected-statuses = ['4xx', '5xx']

[[operations]]
include-path = ['/v1/check', '/v1/capacity', '/v1/cache', '/v1/providers/{name}/settings', '/v1/sources']
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path-regex = '^/v1/providers/'
parameters.name = 'spare'

[[operations]]
include-path = '/v1/guards/{class}'
parameters.class = 'api'
";

/// A program of the folder that `make tools` fills.
pub(crate) fn client(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/clients/venv/bin").join(name);
    assert!(path.exists(), "{name} is not installed; run `make tools`");
    path
}

/// The seeds are fixed, so that a run repeats.
#[test]
fn schemathesis_finds_no_difference() {
    find_no_difference("schemathesis", 1, 15);
}

/// With 40 examples this one has found an entity with a space, which the schema allowed, and a head above
/// the bound, whose response was no JSON. They took a minute on a busy machine; 20 take half of it.
#[test]
fn schemathesis_finds_no_difference_with_another_seed() {
    find_no_difference("schemathesis-7", 7, 20);
}

fn find_no_difference(name: &str, seed: u32, examples: u32) {
    let folder = Folder::new(name)
        .file("x.yaml", PROVIDER)
        .file("spare.yaml", SPARE)
        .file("tollgate.yaml", CONFIG)
        .file("hooks.py", HOOKS)
        .file("schemathesis.toml", SETTINGS);
    let daemon = RunningDaemon::start(folder, &["--provider", "spare.yaml"]);
    let url = format!("http://{}/openapi.json", daemon.admin);
    let mut command = Command::new(client("schemathesis"));
    command.args(["--config-file", "schemathesis.toml", "run", &url]);
    command.args(["-H", "X-Tollgate-Admin: 1", "--no-color"]);
    command.args(["--seed", &seed.to_string()]);
    // A stream of events has no end.
    command.args(["--exclude-path", "/v1/events"]);
    command.args(["--max-examples", &examples.to_string()]);
    command.args(["--request-timeout", "30"]);
    command.env("PYTHONPATH", ".");
    let output = daemon
        .folder
        .prepare(&mut command)
        .output()
        .expect("it runs");
    let out = crate::text(&output.stdout);
    assert!(output.status.success(), "{out}");
    assert!(out.contains("Tested: 43"), "operations are missing:\n{out}");
}
