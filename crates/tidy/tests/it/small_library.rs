//! The embedded library without its features stays small: fewer crates to compile, audit and update.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Crates that `tollgate` compiles, itself included, on Linux: without its features, as it is by default, and with a
/// reqwest client. A change that raises a number says why in its commit.
const WITHOUT_FEATURES: usize = 88;
const BY_DEFAULT: usize = 107;
const WITH_REQWEST: usize = 146;

/// The crates in `cargo tree`: cargo has resolved them already to build this test, so it needs no
/// network.
fn crates(features: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["tree", "--locked", "--offline", "-p", "tollgate"])
        .args(["-e", "normal", "--prefix", "none", "--format", "{p}"])
        .args(features)
        .output()
        .expect("cargo runs");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{problem}");
    let text = String::from_utf8(output.stdout).expect("names of crates are text");
    let name = |line: &str| line.trim_end_matches(" (*)").to_owned();
    text.lines().map(name).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn the_library_without_features_compiles_few_crates() {
    let small = crates(&["--no-default-features"]);
    let whole = crates(&[]);
    assert!(
        whole.iter().any(|line| line.starts_with("rusqlite ")),
        "on by default"
    );
    for unwanted in ["rusqlite", "libsqlite3-sys", "rustls", "quick_cache"] {
        let found = small.iter().find(|line| line.starts_with(unwanted));
        assert_eq!(found, None, "it is behind a feature");
    }
    for unwanted in [
        "reqwest",
        "tower",
        "axum",
        "tollgate-guard",
        "tollgate-server",
    ] {
        let found = whole.iter().find(|line| line.starts_with(unwanted));
        assert_eq!(found, None, "a program asks for it");
    }
    assert_eq!(small.len(), WITHOUT_FEATURES, "{small:#?}");
    assert_eq!(whole.len(), BY_DEFAULT, "{whole:#?}");
    let client = crates(&["--features", "reqwest"]);
    assert_eq!(client.len(), WITH_REQWEST, "{client:#?}");
}
