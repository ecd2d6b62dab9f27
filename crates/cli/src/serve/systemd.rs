//! The service manager: notifications to it, and sockets inherited from it.
//!
//! Sends `READY=1`, `RELOADING=1`, `STOPPING=1` and, if requested, watchdog messages. Takes sockets
//! by `LISTEN_FDS`, so that a restart rejects no connection. Everything follows systemd's
//! documented protocols; without a service manager nothing happens.
//!
//! Promises: a notification never waits and never fails a start.
//!
//! Never: uses sockets that were meant for another process (`LISTEN_PID`); the crate that takes
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

/// Inherited sockets.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) gateway: Option<TcpListener>,
    pub(super) admin: Option<TcpListener>,
    /// By provider name.
    pub(super) by_provider: HashMap<String, TcpListener>,
}

impl Sockets {
    /// Takes the sockets of the service manager by their names: `gateway`, `admin` or a provider's.
    /// Without names the first is the gateway's and the second the admin's.
    pub(super) fn take() -> io::Result<Sockets> {
        // Read first: taking the sockets removes the variables, so that no child sees them.
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names: Vec<&str> = names.split(':').collect();
        // An unnamed socket has the name of its unit.
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

    /// Inherited sockets take precedence over `listen` in provider files. A socket that matches no
    /// provider is reported and closed: a client that connects to it would wait for ever.
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

/// The address of a socket, as the value of a flag.
pub(super) fn address(socket: Option<&TcpListener>) -> io::Result<Option<String>> {
    let address = socket.map(TcpListener::local_addr).transpose()?;
    Ok(address.map(|address| address.to_string()))
}

/// Notifies the service manager, if there is one.
pub(super) fn notify(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    // A service manager that does not listen is no reason to fail.
    send(&address, state).ok();
}

/// Ready to accept calls, at the start or after a reload.
pub(super) fn ready() {
    notify("READY=1\nSTATUS=Accepting calls");
}

/// A reload starts. The service manager compares the time with its own.
pub(super) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Half of the watchdog interval of the service manager; `None` = no watchdog.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros >= 2)?;
    Some(Duration::from_micros(micros / 2))
}

/// Sends watchdog messages for as long as the runtime runs: a runtime that hangs sends none.
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
