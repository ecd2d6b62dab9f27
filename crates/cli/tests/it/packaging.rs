//! What `deploy/` and `make package` ship: built from the program under test, or checked by the tools
//! that will read it. There is no Docker daemon in the tests; the files for it are linted.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

/// Runs a tool in the repository; it must succeed. Returns its output, standard error last.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run `make tools`"));
    let (out, err) = (crate::text(&output.stdout), crate::text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}\n{out}\n{err}");
    format!("{out}{err}")
}

/// A program of the virtual environment that `make tools` makes.
fn client(name: &str) -> String {
    let path = root().join("target/clients/venv/bin").join(name);
    assert!(path.exists(), "{name} is not installed; run `make tools`");
    path.display().to_string()
}

#[test]
fn the_debian_package_has_a_program_that_runs_with_its_pages_and_units() {
    run("make", &["package", "PROFILE=dev"]);
    let about = run("dpkg-deb", &["--info", "target/dist/tollgate.deb"]);
    assert!(about.contains("Package: tollgate"), "{about}");
    let folder = Folder::new("deb");
    let to = folder.path().display().to_string();
    run("dpkg-deb", &["--extract", "target/dist/tollgate.deb", &to]);
    let program = folder.path().join("usr/bin/tollgate");
    let version = run(&program.display().to_string(), &["--version"]);
    assert!(version.starts_with("tollgate "), "{version}");
    for path in [
        "etc/tollgate/keys.env",
        "usr/lib/systemd/system/tollgate.service",
        "usr/share/man/man1/tollgate-serve.1.gz",
        "usr/share/bash-completion/completions/tollgate",
        "usr/share/doc/tollgate/copyright",
    ] {
        assert!(folder.path().join(path).exists(), "{path} is missing");
    }
    let config = folder.path().join("etc/tollgate/tollgate.yaml");
    let checked = run(
        &program.display().to_string(),
        &["check", "--config", &config.display().to_string()],
    );
    assert!(checked.contains(" 0 errors"), "{checked}");
    // The program itself and the crates that it was built from.
    let parts = std::fs::read_to_string(root().join("target/dist/tollgate.spdx.json"));
    let parts: serde_json::Value = serde_json::from_str(&parts.expect("a file")).expect("JSON");
    let packages = parts["packages"].as_array().expect("a list");
    for name in ["tollgate-cli", "tollgate-core", "hyper", "rusqlite"] {
        assert!(
            packages.iter().any(|package| package["name"] == name),
            "{name}"
        );
    }
}

#[test]
fn every_command_has_a_manual_page_without_formatting_errors() {
    let folder = Folder::new("man");
    let output = folder.run(&["man", "--out", "."]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for page in ["tollgate.1", "tollgate-serve.1", "tollgate-source-add.1"] {
        let path = folder.path().join(page).display().to_string();
        let warnings = run("groff", &["-man", "-ww", "-z", "-Tutf8", &path]);
        assert_eq!(warnings, "", "{page}");
    }
    let missing = folder.run(&["man", "--out", "nowhere"]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.err.contains("cannot write manual pages to nowhere"),
        "{}",
        missing.err
    );
}

#[test]
fn systemd_accepts_the_units() {
    // The program must exist where a unit starts it, so the copy under test names the built one.
    let folder = Folder::new("units");
    let service = std::fs::read_to_string(root().join("deploy/systemd/tollgate.service"));
    let program = env!("CARGO_BIN_EXE_tollgate");
    let service = service
        .expect("a unit")
        .replace("/usr/bin/tollgate", program);
    let mut folder = folder.file("tollgate.service", &service);
    for name in ["tollgate.socket", "tollgate-admin.socket"] {
        let unit = std::fs::read_to_string(root().join("deploy/systemd").join(name));
        folder = folder.file(name, &unit.expect("a unit"));
    }
    for name in [
        "tollgate.service",
        "tollgate.socket",
        "tollgate-admin.socket",
    ] {
        let path = folder.path().join(name).display().to_string();
        let said = run("systemd-analyze", &["verify", "--man=no", &path]);
        assert!(!said.contains("tollgate"), "{name}: {said}");
    }
}

#[test]
fn the_container_files_are_valid() {
    run(&client("hadolint"), &["deploy/docker/Dockerfile"]);
    run(
        &client("check-jsonschema"),
        &[
            "--builtin-schema",
            "vendor.compose-spec",
            "deploy/docker/compose.yaml",
        ],
    );
    run(
        "promtool",
        &["check", "config", "deploy/docker/prometheus.yml"],
    );
    let checked = run(
        env!("CARGO_BIN_EXE_tollgate"),
        &["check", "--config", "deploy/docker/tollgate.yaml"],
    );
    assert!(checked.contains(" 0 errors"), "{checked}");
}
