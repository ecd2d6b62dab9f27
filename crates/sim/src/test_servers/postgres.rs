//! A Postgres server for tests.
//!
//! Promises: it runs as another user where the tests run as root, which Postgres rejects. It is
//! durable: what it has committed survives kill -9.
//!
//! Never: uses a cluster of the host.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::Server;
use crate::test_host::{TempFolder, free_address};

/// Where distributions put the programs of each version.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// A Postgres server.
#[derive(Debug)]
pub struct PostgresServer {
    server: Server,
    address: SocketAddr,
    folder: TempFolder,
}

impl PostgresServer {
    /// A new cluster, with these settings besides the usual ones, such as
    /// `synchronous_standby_names=x`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(settings: &[&str]) -> PostgresServer {
        let folder = TempFolder::new("postgres");
        let data = folder.path().join("data");
        give_to_postgres(folder.path());
        let mut init = as_user("initdb");
        init.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"])
            .args(["--no-locale", "-D"])
            .arg(&data);
        check(&mut init);
        let settings = settings.iter().map(|one| format!("{one}\n"));
        let settings: String = settings.collect();
        let file = data.join("postgresql.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, before + &settings).unwrap_or_else(|error| panic!("{error}"));
        PostgresServer::on(folder)
    }

    /// A standby of this server, which follows it.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby(&self) -> PostgresServer {
        let folder = TempFolder::new("postgres");
        give_to_postgres(folder.path());
        let mut copy = as_user("pg_basebackup");
        copy.args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-c", "fast"])
            .args(["-p", &self.address.port().to_string(), "-D"])
            .arg(folder.path().join("data"));
        check(&mut copy);
        PostgresServer::on(folder)
    }

    fn on(folder: TempFolder) -> PostgresServer {
        let address = free_address();
        let server = launch(&folder, address).unwrap_or_else(|error| panic!("{error}"));
        PostgresServer {
            server,
            address,
            folder,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of a database for clients.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address)
    }

    /// kill -9 of all of its processes.
    pub fn kill(&mut self) {
        self.stop("immediate");
        self.server.kill();
    }

    /// Ends it as `pg_ctl stop -m MODE` does.
    pub fn stop(&mut self, mode: &str) {
        let mut stop = as_user("pg_ctl");
        stop.args(["stop", "-w", "-m", mode, "-D"])
            .arg(self.folder.path().join("data"));
        drop(stop.output());
    }

    /// Makes a standby the server that accepts writes.
    ///
    /// # Panics
    ///
    /// If it is no standby.
    pub fn promote(&self) {
        let mut promote = as_user("pg_ctl");
        promote
            .args(["promote", "-w", "-D"])
            .arg(self.folder.path().join("data"));
        check(&mut promote);
    }

    /// Starts it again, on the same port and in the same folder.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        self.server = launch(&self.folder, self.address).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs SQL and returns what it prints.
    ///
    /// # Panics
    ///
    /// If the server rejects it.
    #[must_use]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut psql = as_user("psql");
        psql.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-At",
            "-v",
            "ON_ERROR_STOP=1",
        ])
        .args([
            "-p",
            &self.address.port().to_string(),
            "-d",
            database,
            "-c",
            sql,
        ]);
        let output = check(&mut psql);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn launch(folder: &TempFolder, address: SocketAddr) -> Result<Server, String> {
    let mut command = as_user("postgres");
    command
        .arg("-D")
        .arg(folder.path().join("data"))
        .args(["-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "shared_buffers=16MB", "-c", "max_connections=200"])
        .args(["-p", &address.port().to_string(), "-k"])
        .arg(folder.path());
    Server::start(&mut command, "database system is ready to accept")
}

/// A program of Postgres, run as the user `postgres` if this one is root.
fn as_user(program: &str) -> Command {
    let program = programs().join(program);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    // The folder of the test may be closed to that user.
    command.current_dir("/");
    command
}

/// The folder of the newest version.
fn programs() -> PathBuf {
    let versions = fs::read_dir(PROGRAMS).into_iter().flatten().flatten();
    let newest = versions
        .map(|entry| entry.path().join("bin"))
        .filter(|folder| folder.join("postgres").exists())
        .max();
    // Without one, the programs are looked for as any other.
    newest.unwrap_or_default()
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn give_to_postgres(folder: &Path) {
    if is_root() {
        let mut chown = Command::new("chown");
        check(chown.arg("postgres:postgres").arg(folder));
    }
}

fn check(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().unwrap_or_else(|error| {
        panic!("{program} could not be started: {error}; `make tools` installs postgresql")
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}
