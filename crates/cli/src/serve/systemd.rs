//! The service manager: what it is told, and the sockets that it holds for us.
//!
//! Tells `READY=1`, `RELOADING=1`, `STOPPING=1` and, if it wants them, signs of life. Takes sockets by
//! `LISTEN_FDS`, so that a restart refuses no connection. Everything is by systemd's documented
//! protocols; without a service manager nothing happens.
//!
//! Promises: telling never waits and never fails a start.
//!
//! Never: believes sockets that were meant for another process (`LISTEN_PID`); the crate that takes
//! them checks it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::time::Duration;

use listenfd::ListenFd;
use tollgate_config::ProviderSetting;

/// The most sockets that are taken: a gateway, an admin address, and one per provider that has its
/// own.
const SOCKETS_MAX: usize = 64;

/// The names by `FileDescriptorName=`.
const GATEWAY: &str = "gateway";
const ADMIN: &str = "admin";

/// Sockets that are open already.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) gateway: Option<TcpListener>,
    pub(super) admin: Option<TcpListener>,
    /// By their names, which are providers'.
    pub(super) by_provider: HashMap<String, TcpListener>,
}

impl Sockets {
    /// Takes what the service manager holds. By the names that somebody gave: `gateway`, `admin` or a
    /// provider's; without any the first is the gateway's and the second the admin's.
    pub(super) fn take() -> io::Result<Sockets> {
        // Read first: taking the sockets removes the variables, so that no child sees them.
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names: Vec<&str> = names.split(':').collect();
        // What nobody named has the name of its unit.
        let is_given = |name: &&str| !name.is_empty() && !name.contains('.') && *name != "unknown";
        let is_named = names.iter().any(is_given);
        let mut given = ListenFd::from_env();
        let mut sockets = Sockets::default();
        for index in 0..given.len().min(SOCKETS_MAX) {
            let Some(listener) = given.take_tcp_listener(index)? else {
                continue;
            };
            listener.set_nonblocking(true)?;
            let name = names.get(index).copied().unwrap_or_default();
            match name {
                GATEWAY => sockets.gateway = Some(listener),
                ADMIN => sockets.admin = Some(listener),
                _ if index == 0 && !is_named => sockets.gateway = Some(listener),
                _ if index == 1 && !is_named => sockets.admin = Some(listener),
                name => drop(sockets.by_provider.insert(name.to_owned(), listener)),
            }
        }
        Ok(sockets)
    }

    /// Providers listen where their sockets do, whatever their files say. A socket that is nobody's is
    /// told and closed: whoever connects to it would wait for ever.
    pub(super) fn provider_addresses(
        &mut self,
        is_provider: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<ProviderSetting>> {
        let mut own = Vec::new();
        for (name, socket) in std::mem::take(&mut self.by_provider) {
            if is_provider(&name) {
                own.push(ProviderSetting {
                    provider: name.clone(),
                    key: "listen".to_owned(),
                    value: socket.local_addr()?.to_string(),
                });
                self.by_provider.insert(name, socket);
            } else {
                writeln!(
                    io::stderr(),
                    "warning: the service manager's socket `{name}` matches no provider and is closed; name it \
                     `gateway`, `admin` or like a provider (FileDescriptorName=)"
                )?;
            }
        }
        Ok(own)
    }
}

/// Where a socket listens, as a flag would say it.
pub(super) fn address(socket: Option<&TcpListener>) -> io::Result<Option<String>> {
    let address = socket.map(TcpListener::local_addr).transpose()?;
    Ok(address.map(|address| address.to_string()))
}

/// Tells the service manager something, if there is one.
pub(super) fn notify(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    // A service manager that does not listen is its own affair.
    send(&address, state).ok();
}

/// All is well again after a reload, or for the first time.
pub(super) fn ready() {
    notify("READY=1\nSTATUS=Accepting calls");
}

/// A reload begins. The service manager compares the time with its own.
pub(super) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// How often the service manager wants a sign of life, halved; `None` = it wants none.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros >= 2)?;
    Some(Duration::from_micros(micros / 2))
}

/// Sends signs of life for as long as the runtime lives: a runtime that hangs sends none.
pub(super) async fn send_watchdog(every: Duration) {
    let mut beat = tokio::time::interval(every);
    loop {
        beat.tick().await;
        notify("WATCHDOG=1");
    }
}

fn send(address: &std::ffi::OsStr, state: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
