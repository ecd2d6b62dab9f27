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
    let about = run("dpkg-deb", &["--info", "target/dist/dev/tollgate.deb"]);
    assert!(about.contains("Package: tollgate"), "{about}");
    let folder = Folder::new("deb");
    let to = folder.path().display().to_string();
    run(
        "dpkg-deb",
        &["--extract", "target/dist/dev/tollgate.deb", &to],
    );
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
    let parts = std::fs::read_to_string(root().join("target/dist/dev/tollgate.spdx.json"));
    let parts: serde_json::Value = serde_json::from_str(&parts.expect("a file")).expect("JSON");
    let packages = parts["packages"].as_array().expect("a list");
    for name in ["tollgate-cli", "tollgate-core", "hyper", "rusqlite"] {
        assert!(
            packages.iter().any(|package| package["name"] == name),
            "{name}"
        );
    }
}

/// What the page about operation names, and never what the test above writes: it once replaced a package that
/// somebody had built.
#[test]
fn make_package_writes_where_the_page_says() {
    let planned = run("make", &["--dry-run", "package"]);
    let page = std::fs::read_to_string(root().join("docs/admin.md")).expect("the page");
    for file in ["target/dist/tollgate.deb", "target/dist/tollgate.spdx.json"] {
        assert!(planned.contains(file), "{planned}");
        assert!(page.contains(file), "{file}");
    }
    assert!(!planned.contains("target/dist/dev"), "{planned}");
    // A fresh machine has neither.
    for tool in ["cargo-deb", "cargo-sbom"] {
        assert!(planned.contains(tool), "{planned}");
    }
}

#[test]
fn every_command_has_a_manual_page_without_formatting_errors() {
    let folder = Folder::new("man");
    let output = folder.run(&["man", "--out", "."]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    for page in ["tollgate.1", "tollgate-serve.1", "tollgate-source-add.1"] {
        assert!(folder.path().join(page).exists(), "{page}");
    }
    let pages = std::fs::read_dir(folder.path()).expect("a folder");
    for page in pages.map(|page| page.expect("a file").path()) {
        let path = page.display().to_string();
        // `man` reads a page as UTF-8 too.
        let warnings = run("groff", &["-Kutf8", "-man", "-ww", "-z", "-Tutf8", &path]);
        assert_eq!(warnings, "", "{path}");
    }
    let missing = folder.run(&["man", "--out", "nowhere"]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.err.contains("cannot write manual pages to nowhere"),
        "{}",
        missing.err
    );
}

/// The shells that read them accept the scripts of the package and the completions.
#[test]
fn scripts_and_completions_are_valid() {
    for script in ["deploy/debian/postinst", "deploy/debian/prerm"] {
        run("sh", &["-n", script]);
    }
    let completions = Folder::new("completions-syntax").run(&["completions", "bash"]);
    assert_eq!(completions.code, Some(0), "{}", completions.err);
    let folder = Folder::new("completions-file").file("tollgate.bash", &completions.out);
    let path = folder.path().join("tollgate.bash").display().to_string();
    // Loaded as bash loads it, and asked for the commands that begin with `ser`.
    let ask = format!(
        "source {path}; COMP_WORDS=(tollgate ser); COMP_CWORD=1; _tollgate tollgate ser tollgate; echo \"${{COMPREPLY[@]}}\""
    );
    let offered = run("bash", &["-euc", &ask]);
    assert!(offered.contains("serve"), "{offered}");
    for (shell, name) in [("zsh", "_tollgate"), ("fish", "tollgate.fish")] {
        let completions = Folder::new(&format!("completions-{shell}")).run(&["completions", shell]);
        assert_eq!(completions.code, Some(0), "{}", completions.err);
        let folder = Folder::new(&format!("completions-{shell}-file")).file(name, &completions.out);
        let path = folder.path().join(name).display().to_string();
        run(shell, &["-n", &path]);
        match shell {
            // Found by its first line, as zsh finds the files of its folders.
            "zsh" => {
                let folder = folder.path().display();
                let ask = format!(
                    "fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; echo $_comps[tollgate]"
                );
                assert_eq!(run(shell, &["-fc", &ask]).trim(), name);
            }
            _ => {
                let ask = format!("source {path}; complete -C 'tollgate ser'");
                let offered = run(shell, &["--no-config", "-c", &ask]);
                assert!(offered.contains("serve"), "{offered}");
            }
        }
    }
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
    // Every file that a container mounts is there; a folder of that name would be made otherwise.
    let folder = root().join("deploy/docker");
    let compose = std::fs::read_to_string(folder.join("compose.yaml")).expect("a file");
    let mounts = compose.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("- ")?;
        line.starts_with('.').then(|| line.split(':').next())?
    });
    let mounts: Vec<&str> = mounts.collect();
    assert!(mounts.len() >= 5, "{mounts:?}");
    for mount in mounts {
        assert!(folder.join(mount).exists(), "{mount}");
    }
    // `COPY . .` must not send gigabytes of compiled code, nor the history.
    let ignored = std::fs::read_to_string(root().join(".dockerignore")).expect("a file");
    for name in ["target", ".git"] {
        assert!(ignored.lines().any(|line| line == name), "{name}");
    }
    let checked = run(
        env!("CARGO_BIN_EXE_tollgate"),
        &["check", "--config", "deploy/docker/tollgate.yaml"],
    );
    assert!(checked.contains(" 0 errors"), "{checked}");
}

/// A YAML file of the repository.
fn yaml(path: &str) -> serde_json::Value {
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let text = run(&client("python"), &["-c", program, path]);
    serde_json::from_str(&text).expect("JSON")
}

/// The dashboard that Grafana loads is where the compose file mounts it, and its data source is the one
/// that is provisioned.
#[test]
fn grafana_finds_the_dashboard_and_its_data_source() {
    let compose = yaml("deploy/docker/compose.yaml");
    let mounts = compose["services"]["grafana"]["volumes"].as_array();
    let mounts: Vec<&str> = mounts
        .expect("a list")
        .iter()
        .filter_map(|mount| mount.as_str())
        .collect();
    // Where a container has what the file mounts there, and the other way round.
    let source = |inside: &str| {
        let of = |mount: &&str| {
            mount
                .trim_end_matches(":ro")
                .ends_with(&format!(":{inside}"))
        };
        let found = mounts.iter().copied().find(of);
        found.and_then(|mount| mount.split(':').next())
    };
    for (kind, file) in [
        ("datasources", "./grafana/datasource.yaml"),
        ("dashboards", "./grafana/dashboards.yaml"),
    ] {
        let inside = format!("/etc/grafana/provisioning/{kind}/tollgate.yaml");
        assert_eq!(source(&inside), Some(file), "{kind}");
    }
    let dashboards = yaml("deploy/docker/grafana/dashboards.yaml");
    let path = dashboards["providers"][0]["options"]["path"].as_str();
    let folder = source(path.expect("a path")).expect("it is mounted");
    let folder = root().join("deploy/docker").join(folder);
    let dashboard = std::fs::read_to_string(folder.join("tollgate.json")).expect("a dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");

    let provisioned = yaml("deploy/docker/grafana/datasource.yaml");
    let provisioned = &provisioned["datasources"][0];
    let address = provisioned["url"].as_str().expect("an address");
    let host = address.trim_start_matches("http://").split(':').next();
    let services = compose["services"].as_object().expect("services");
    assert!(services.contains_key(host.expect("a host")), "{address}");
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    let chosen = variables.iter().find(|one| one["name"] == "datasource");
    let chosen = chosen.expect("the dashboard lets people choose a data source");
    assert_eq!(
        (&chosen["type"], &chosen["query"]),
        (&"datasource".into(), &provisioned["type"])
    );
    assert_eq!(provisioned["isDefault"], true, "so it is chosen");
    for panel in dashboard["panels"].as_array().expect("panels") {
        let source = &panel["datasource"]["uid"];
        let is_known = source == "${datasource}" || *source == provisioned["uid"];
        assert!(is_known || source.is_null(), "{}: {source}", panel["title"]);
    }
}

/// What is installed is small: symbols are half of a release binary.
#[test]
fn a_release_binary_is_stripped() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a file");
    let profile = manifest.split("\n[profile.release]\n").nth(1);
    let profile = profile.and_then(|rest| rest.split("\n[").next());
    let lines = profile.expect("a profile").lines();
    let strips = lines
        .filter(|line| line.starts_with("strip = "))
        .collect::<Vec<_>>();
    assert_eq!(strips, ["strip = \"symbols\""]);
    // A profile of its own package would leave the program unstripped.
    assert!(!manifest.contains("[profile.release.package.tollgate-cli]"));
    assert!(!manifest.contains("\ntollgate-cli = { opt-level"));
}
