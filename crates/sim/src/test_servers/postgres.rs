//! A Postgres server for tests.
//!
//! Promises: it runs as another user where the tests run as root, which Postgres rejects. It is
//! durable: what it has committed survives kill -9. It waits for no disk (`fsync=off`): only a power cut
//! would lose what the kernel has.
//!
//! Never: uses a cluster of the host.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

#[cfg(feature = "http")]
use super::Certificate;
use super::{HostClock, STARTS, Server};
use crate::test_host::{TempFolder, free_address};

/// Where distributions put the programs of each version.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// Steps of 10 ms in which the kernel ends a killed process, far beyond the need of a busy machine.
const DEATH_STEPS: u32 = 6_000;

/// A Postgres server.
#[derive(Debug)]
pub struct PostgresServer {
    server: Server,
    address: SocketAddr,
    clock: Option<HostClock>,
    /// Unmounted after the server has ended, and before the folder is removed.
    disk: Option<SmallDisk>,
    folder: TempFolder,
}

/// A small file system at this place.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        drop(unmount.arg("-l").arg(&self.0).output());
    }
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
        PostgresServer::make(TempFolder::new("postgres"), settings, &[], None)
    }

    /// The same on a host whose clock differs, such as by `+30s` (libfaketime).
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start_on_clock(offset: &str) -> PostgresServer {
        PostgresServer::make(TempFolder::new("postgres"), &[], &[], Some(offset))
    }

    /// A server that speaks TLS too.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn start_with_tls(certificate: &Certificate) -> PostgresServer {
        let folder = TempFolder::new("postgres");
        certificate.copy_to(folder.path());
        for file in ["server.crt", "server.key"] {
            let file = folder.path().join(file);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(&file, mode).unwrap_or_else(|error| panic!("{error}"));
            give_to_postgres(&file);
        }
        let file = |name: &str| folder.path().join(name).display().to_string();
        let certificate = format!("ssl_cert_file='{}'", file("server.crt"));
        let key = format!("ssl_key_file='{}'", file("server.key"));
        PostgresServer::make(folder, &["ssl=on", &certificate, &key], &[], None)
    }

    fn make(
        folder: TempFolder,
        settings: &[&str],
        options: &[&str],
        clock: Option<&str>,
    ) -> PostgresServer {
        let data = folder.path().join("data");
        give_to_postgres(folder.path());
        let mut init = as_user("initdb");
        init.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"])
            .args(["--no-locale", "-D"])
            .arg(&data)
            .args(options);
        check(&mut init);
        let settings = settings.iter().map(|one| format!("{one}\n"));
        let settings: String = settings.collect();
        let file = data.join("postgresql.conf");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, before + &settings).unwrap_or_else(|error| panic!("{error}"));
        PostgresServer::on(folder, clock)
    }

    /// The same on a file system of so many bytes, which is unmounted with it; `None` where this user
    /// may not mount one.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start_on_small_disk(megabytes: u32) -> Option<PostgresServer> {
        let folder = TempFolder::new("postgres");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o"]);
        mount.arg(format!("size={megabytes}m")).arg("none");
        let mounted = mount.arg(folder.path()).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let disk = Some(SmallDisk(folder.path().to_owned()));
        let mut server = PostgresServer::make(folder, &["fsync=off"], &["--wal-segsize=1"], None);
        server.disk = disk;
        Some(server)
    }

    /// Where its files are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A standby of this server, which follows it.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby(&self) -> PostgresServer {
        self.standby_on_clock(None)
    }

    /// The same on a host whose clock differs, such as by `+30s` (libfaketime).
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby_on_clock(&self, clock: Option<&str>) -> PostgresServer {
        self.make_standby(clock, None)
    }

    /// A standby that follows this server through another address, such as that of a proxy.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby_through(&self, address: SocketAddr) -> PostgresServer {
        self.make_standby(None, Some(address))
    }

    fn make_standby(&self, clock: Option<&str>, through: Option<SocketAddr>) -> PostgresServer {
        let folder = TempFolder::new("postgres");
        give_to_postgres(folder.path());
        let mut copy = as_user("pg_basebackup");
        copy.args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-c", "fast"])
            .arg("--no-sync")
            .args(["-p", &self.address.port().to_string(), "-D"])
            .arg(folder.path().join("data"));
        check(&mut copy);
        if let Some(through) = through {
            // The last line of a setting holds.
            let file = folder.path().join("data/postgresql.auto.conf");
            let line = format!(
                "primary_conninfo = 'user=postgres host={} port={}'\n",
                through.ip(),
                through.port()
            );
            let before = fs::read_to_string(&file).unwrap_or_default();
            fs::write(&file, before + &line).unwrap_or_else(|error| panic!("{error}"));
        }
        PostgresServer::on(folder, clock)
    }

    fn on(folder: TempFolder, clock: Option<&str>) -> PostgresServer {
        let clock = clock.map(|offset| HostClock::new(folder.path(), offset));
        let mut last = String::new();
        for _ in 0..STARTS {
            let address = free_address();
            match launch(&folder, address, clock.as_ref()) {
                Ok(server) => {
                    return PostgresServer {
                        server,
                        address,
                        clock,
                        disk: None,
                        folder,
                    };
                }
                Err(error) => last = error,
            }
        }
        panic!("{last}");
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

    /// The same with TLS.
    #[must_use]
    pub fn tls_url(&self, database: &str) -> String {
        format!("{}?sslmode=require", self.url(database))
    }

    /// Rejects whoever comes without TLS from now on.
    ///
    /// # Panics
    ///
    /// If its settings cannot be written.
    pub fn require_tls(&self) {
        let file = self.folder.path().join("data/pg_hba.conf");
        let rule = "hostssl all all 127.0.0.1/32 trust\n";
        fs::write(&file, rule).unwrap_or_else(|error| panic!("{error}"));
        let mut reload = as_user("pg_ctl");
        reload
            .args(["reload", "-D"])
            .arg(self.folder.path().join("data"));
        check(&mut reload);
    }

    /// Steps the clock of its host, such as to `+2s`.
    ///
    /// # Panics
    ///
    /// If it was not started on a clock of its own.
    pub fn step_clock(&self, offset: &str) {
        let clock = self.clock.as_ref();
        clock.expect("a server on a clock of its own").set(offset);
    }

    /// The numbers of its processes: the main one first, which has started all others.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let main = self.server.pid();
        let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_main = |&pid: &u32| stat(pid).is_some_and(|(_, parent)| parent == main);
        std::iter::once(main)
            .chain(numbers.filter(of_main))
            .collect()
    }

    /// kill -9 of all of its processes. Nothing of them is left when this returns.
    pub fn kill(&mut self) {
        if self.server.is_running() {
            // A process that stands still starts no other one.
            signal("STOP", &[self.server.pid()]);
            let processes = self.processes();
            signal("KILL", &processes);
            self.server.kill();
            wait_until_dead(&processes);
        }
    }

    /// Ends it as `pg_ctl stop -m MODE` does; `immediate` ends its processes without a checkpoint.
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
        self.server = launch(&self.folder, self.address, self.clock.as_ref())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs SQL and returns what it prints.
    ///
    /// # Panics
    ///
    /// If the server rejects it.
    #[must_use]
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql)
            .unwrap_or_else(|errors| panic!("{sql}: {errors}"))
    }

    /// Runs SQL and returns what it prints, or the server's errors.
    ///
    /// # Panics
    ///
    /// If `psql` is missing.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
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
        let output = run(&mut psql);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

fn launch(
    folder: &TempFolder,
    address: SocketAddr,
    clock: Option<&HostClock>,
) -> Result<Server, String> {
    let mut command = match clock {
        None => as_user("postgres"),
        Some(clock) => {
            // Set by a program that runs as that user: the library's files must be that user's.
            let mut command = as_user_run(Path::new("env"));
            let variables = clock.variables().into_iter();
            command
                .args(variables.map(|(name, value)| format!("{name}={value}")))
                .arg(programs().join("postgres"));
            command
        }
    };
    command
        .arg("-D")
        .arg(folder.path().join("data"))
        .args(["-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "shared_buffers=16MB", "-c", "max_connections=800"])
        // What the kernel has survives a kill. With it, a start after a kill syncs each of a thousand files.
        .args(["-c", "fsync=off"])
        .args(["-p", &address.port().to_string(), "-k"])
        .arg(folder.path());
    Server::start(&mut command, "database system is ready to accept")
}

/// The state of a process, and who has started it; `None`: it is gone.
fn stat(pid: u32) -> Option<(char, u32)> {
    // "pid (name) state parent …"
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit(") ").next()?.split(' ');
    let state = words.next()?.chars().next()?;
    Some((state, words.next()?.parse().ok()?))
}

/// One that has ended meanwhile gets nothing.
fn signal(name: &str, processes: &[u32]) {
    let mut kill = Command::new("kill");
    kill.args(["-s", name]);
    drop(run(kill.args(processes.iter().map(u32::to_string))));
}

/// A server does not start while a process of the former one is left: it has its memory open.
fn wait_until_dead(processes: &[u32]) {
    for _ in 0..DEATH_STEPS {
        // One that nobody has asked for its end (Z) has nothing open any more.
        let is_dead = |&pid: &u32| stat(pid).is_none_or(|(state, _)| "ZX".contains(state));
        if processes.iter().all(is_dead) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("processes of the server do not end: {processes:?}");
}

/// A program of Postgres, run as the user `postgres` if this one is root.
fn as_user(program: &str) -> Command {
    as_user_run(&programs().join(program))
}

fn as_user_run(program: &Path) -> Command {
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

fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().unwrap_or_else(|error| {
        panic!("{program} could not be started: {error}; `make tools` installs postgresql")
    })
}

fn check(command: &mut Command) -> Output {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}
