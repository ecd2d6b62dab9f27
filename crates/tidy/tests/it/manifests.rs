//! Crates depend in one direction, inherit the settings of the workspace, and are locked.
//!
//! The order is `core ← ledger ← tollgate ← server ← cli`, `core ← config ← tollgate` and
//! `guard ← tollgate`. The simulator may use all but `server` and `cli`; only tests, benches and `cli`
//! use the simulator.

use crate::tree::{Source, Violation, assert_clean, tree};

/// Crate folder → the crate folders that it may use.
const MAY_USE: [(&str, &[&str]); 10] = [
    ("core", &[]),
    ("ledger", &["core"]),
    ("config", &["core"]),
    ("guard", &[]),
    ("tollgate", &["core", "ledger", "config", "guard"]),
    ("server", &["core", "ledger", "config", "guard", "tollgate"]),
    (
        "cli",
        &[
            "core", "ledger", "config", "guard", "tollgate", "server", "sim",
        ],
    ),
    ("sim", &["core", "ledger", "config", "tollgate"]),
    (
        "fuzzing",
        &["core", "ledger", "config", "tollgate", "server"],
    ),
    ("tidy", &[]),
];

/// Crates with a clock, I/O, async, locks, logging or randomness: `core` may not use them.
const IMPURE: [&str; 16] = [
    "tokio",
    "futures",
    "hyper",
    "reqwest",
    "rusqlite",
    "redis",
    "tracing",
    "log",
    "metrics",
    "parking_lot",
    "arc-swap",
    "fastrand",
    "rand",
    "getrandom",
    "quanta",
    "rustix",
];

/// The keys that each crate inherits from the workspace.
const INHERITED: [&str; 4] = ["edition", "rust-version", "license", "lints"];

const LOCK_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Clone, Copy, PartialEq, Eq)]
enum DependencyKind {
    Normal,
    Dev,
}

struct Dependency {
    name: String,
    kind: DependencyKind,
    line: usize,
}

fn violations(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        if let Some(folder) = crate_folder(&source.path) {
            violations.extend(wrong_direction(source, folder));
            violations.extend(not_inherited(source));
        }
    }
    match sources.iter().find(|source| source.path == "Cargo.lock") {
        Some(lock) => violations.extend(foreign_sources(lock)),
        None => violations.push(Source::fixture("Cargo.lock", "").violation(
            1,
            "is missing".to_owned(),
            "commit it, so that everybody builds the same program",
        )),
    }
    violations
}

/// `crates/x/Cargo.toml` → `x`.
fn crate_folder(path: &str) -> Option<&str> {
    let folder = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!folder.contains('/')).then_some(folder)
}

fn wrong_direction(manifest: &Source, folder: &str) -> Vec<Violation> {
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == folder) else {
        let remedy = "write an ADR and add it to MAY_USE in crates/tidy";
        return vec![manifest.violation(
            1,
            format!("crate `{folder}` is not in the dependency order"),
            remedy,
        )];
    };
    let mut violations = Vec::new();
    for dependency in dependencies(manifest) {
        let name = dependency.name.as_str();
        if folder == "core" && dependency.kind == DependencyKind::Normal && IMPURE.contains(&name) {
            let what = format!("core uses `{name}`");
            let remedy = "core is pure: take the value as an argument, act in another crate";
            violations.push(manifest.violation(dependency.line, what, remedy));
        }
        let Some(used) = own_folder(name) else {
            continue;
        };
        // Cargo allows a package to be its own dev-dependency; so do we.
        let in_tests = dependency.kind == DependencyKind::Dev && (used == "sim" || used == folder);
        if !allowed.contains(&used) && !in_tests {
            let what = format!("`{folder}` uses `{used}`");
            let remedy = format!("it may use {allowed:?}, in tests also sim; see ARCHITECTURE.md");
            violations.push(manifest.violation(dependency.line, what, &remedy));
        }
    }
    violations
}

/// The folder of one of our own packages; `None` for a third-party package.
fn own_folder(package: &str) -> Option<&str> {
    if package == "tollgate" {
        Some(package)
    } else {
        package.strip_prefix("tollgate-")
    }
}

/// All dependencies of a manifest. Reads the forms that cargo accepts: `name.workspace = true`,
/// `name = …`, `name = { package = "…" }`, `[dependencies.name]`, `[target.….dependencies]`.
fn dependencies(manifest: &Source) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut section: Option<DependencyKind> = None;
    for (index, text) in manifest.text.lines().enumerate() {
        let text = text.trim();
        let line = index + 1;
        if let Some(header) = text
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            let (kind, name) = dependency_section(header);
            // A table for one dependency: its lines are settings, not names.
            found.extend(
                name.zip(kind)
                    .map(|(name, kind)| Dependency { name, kind, line }),
            );
            section = if found.last().is_some_and(|last| last.line == line) {
                None
            } else {
                kind
            };
            continue;
        }
        let Some((key, value)) = text.split_once('=') else {
            continue;
        };
        let Some(kind) = section.filter(|_| !text.starts_with('#')) else {
            continue;
        };
        let package = value
            .split_once("package")
            .and_then(|(_, rest)| rest.split('"').nth(1));
        let key = key
            .split('.')
            .next()
            .unwrap_or(key)
            .trim()
            .trim_matches('"');
        found.push(Dependency {
            name: package.unwrap_or(key).to_owned(),
            kind,
            line,
        });
    }
    found
}

/// The kind of dependencies under a `[header]`, and the package if the header names one.
fn dependency_section(header: &str) -> (Option<DependencyKind>, Option<String>) {
    let of = |part: &str| match part {
        "dependencies" | "build-dependencies" => Some(DependencyKind::Normal),
        "dev-dependencies" => Some(DependencyKind::Dev),
        _ => None,
    };
    let (before, last) = header.rsplit_once('.').unwrap_or(("", header));
    if let Some(kind) = of(last) {
        return (Some(kind), None);
    }
    let kind = of(before.rsplit('.').next().unwrap_or(before));
    (kind, kind.map(|_| last.trim_matches('"').to_owned()))
}

fn not_inherited(manifest: &Source) -> Vec<Violation> {
    let bare: String = manifest.text.split(' ').collect();
    let says = |key: &str| {
        bare.contains(&format!("\n{key}.workspace=true"))
            || bare.contains(&format!("\n[{key}]\nworkspace=true"))
    };
    let missing = INHERITED.iter().filter(|key| !says(key));
    missing
        .map(|key| {
            let what = format!("does not inherit `{key}`");
            manifest.violation(1, what, &format!("write `{key}.workspace = true`"))
        })
        .collect()
}

/// A lock file written with a private mirror names the mirror and builds nowhere else.
fn foreign_sources(lock: &Source) -> Vec<Violation> {
    let sources = lock
        .text
        .lines()
        .enumerate()
        .filter(|(_, text)| text.starts_with("source = "));
    let foreign = sources.filter(|(_, text)| !text.contains(LOCK_SOURCE));
    let remedy = "use a published crate, and lock without a private mirror";
    foreign
        .map(|(index, text)| lock.violation(index + 1, format!("`{text}`"), remedy))
        .collect()
}

#[test]
fn crates_depend_in_one_direction_and_inherit_the_workspace() {
    assert_clean(&violations(tree()));
}

/// A program of 98 MB is mostly debug information, which `make release` puts beside it.
#[test]
fn release_builds_are_stripped() {
    let manifest = include_str!("../../../../Cargo.toml");
    let release = manifest
        .split("[profile.release]")
        .nth(1)
        .unwrap_or_default();
    let release = release.split("\n[").next().unwrap_or_default();
    assert!(release.contains("strip = \"symbols\""), "{release}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[package]\nedition.workspace = true\nrust-version.workspace = true\n\
                        license.workspace = true\n[lints]\nworkspace = true\n";

    fn found(folder: &str, tail: &str) -> Vec<String> {
        let path = format!("crates/{folder}/Cargo.toml");
        let manifest = Source::fixture(&path, &format!("{HEAD}{tail}"));
        let sources = [manifest, Source::fixture("Cargo.lock", "")];
        violations(&sources)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn the_allowed_direction_passes() {
        assert!(found("ledger", "[dependencies]\ntollgate-core.workspace = true\n").is_empty());
        assert!(
            found(
                "core",
                "[dev-dependencies]\ntollgate-sim.workspace = true\n"
            )
            .is_empty()
        );
        assert!(
            found(
                "cli",
                "[dependencies]\ntollgate-sim = { path = \"../sim\" }\n"
            )
            .is_empty()
        );
    }

    #[test]
    fn every_shape_of_a_wrong_dependency_is_found() {
        for tail in [
            "[dependencies]\ntollgate-ledger.workspace = true\n",
            "[dependencies]\ntollgate = { path = \"../tollgate\" }\n",
            "[dependencies]\nledger = { package = \"tollgate-ledger\", path = \"x\" }\n",
            "[dependencies.tollgate-ledger]\npath = \"x\"\n",
            "[target.'cfg(unix)'.dependencies]\ntollgate-sim.workspace = true\n",
            "[build-dependencies]\ntollgate-sim.workspace = true\n",
            "[dev-dependencies]\ntollgate-server.workspace = true\n",
        ] {
            let violations = found("core", tail);
            assert!(
                violations.len() == 1 && violations[0].contains("`core` uses"),
                "{tail}"
            );
        }
    }

    #[test]
    fn the_simulator_is_not_shipped_and_does_not_use_the_program() {
        assert_eq!(
            found(
                "tollgate",
                "[dependencies]\ntollgate-sim.workspace = true\n"
            )
            .len(),
            1
        );
        assert_eq!(
            found("sim", "[dependencies]\ntollgate-cli.workspace = true\n").len(),
            1
        );
    }

    #[test]
    fn core_stays_pure() {
        let violations = found(
            "core",
            "[dependencies]\nsmallvec = \"1\"\ntokio.workspace = true\n",
        );
        assert!(violations.len() == 1 && violations[0].contains(":9: core uses `tokio`"));
        assert!(found("core", "[dev-dependencies]\ntokio.workspace = true\n").is_empty());
    }

    #[test]
    fn an_unknown_crate_is_found() {
        assert!(found("extra", "")[0].contains("crate `extra` is not in the dependency order"));
    }

    #[test]
    fn a_crate_that_does_not_inherit_is_found() {
        let manifest = Source::fixture("crates/core/Cargo.toml", "[package]\nedition = \"2024\"\n");
        assert_eq!(not_inherited(&manifest).len(), INHERITED.len());
    }

    #[test]
    fn a_missing_lock_and_a_lock_with_a_private_mirror_are_found() {
        assert!(
            violations(&[])[0]
                .to_string()
                .contains("Cargo.lock:1: is missing")
        );
        let lock = Source::fixture(
            "Cargo.lock",
            "[[package]]\nsource = \"registry+https://mirror.invalid/index\"\n",
        );
        assert!(
            violations(&[lock])[0]
                .to_string()
                .starts_with("Cargo.lock:2:")
        );
    }
}
