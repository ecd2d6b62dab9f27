//! `tollgate serve` (also `start`): the gateway in front of the configured providers, and the admin
//! address.
//!
//! Promises: every problem of every file is printed before the gateway listens; every listen
//! address is printed. SIGHUP, a changed file and the API trigger a reload; SIGTERM and SIGINT shut
//! the gateway down gracefully; a second one, more than a second later, ends it at once.
//!
//! Never: stores a key anywhere but in memory.

mod decision_listeners;
mod hardening;
mod memory;
mod ndjson;
mod open_permits;
mod page_hint;
mod snapshot;
mod systemd;
mod watch;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tokio::net::TcpListener;
use tollgate::ProviderRegistry;
use tollgate::cache::{Cache, Sizes};
use tollgate::event::Events;
use tollgate::providers::Options as RegistryOptions;
use tollgate_config::amount;
use tollgate_config::config::Store;
use tollgate_config::{Config, Flag, Level, Loaded, Origin, Problems, Secret, Sources, disk};
use tollgate_ledger::Ledger;
use tollgate_ledger::redis::RedisAddress;
use tollgate_server::admin::TokenFile;
use tollgate_server::{
    Admin, AdminOptions, AlertOptions, Alerts, Daemon, Gateway, GatewayOptions, ListenAddress,
    ListenerKind, Scheduler, SchedulerOptions,
};

use crate::open_ledger::{flush, open_ledger};
use crate::options::Options;
use decision_listeners::DecisionListeners;
use snapshot::Snapshots;
use systemd::Sockets;

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                   # with the providers of ./tollgate.yaml
  tollgate serve --provider tmdb.yaml --provider-dir providers/
  tollgate serve --offline                         # sends no calls until `tollgate resume NAME`
  curl http://127.0.0.1:4290/tmdb/3/movie/550";

/// How long a pending file read may delay the end of the process: a disk responds sooner, or not at
/// all.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Run the gateway that applications call instead of the provider
///
/// Calls wait until the limits of the provider allow them. Tollgate honours cool-downs and holds
/// calls during outages, so that applications see no avoidable 429.
#[derive(Debug, Args)]
#[command(visible_alias = "start", after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where the gateway listens; also a proxy for http:// URLs; default 127.0.0.1:4290
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,

    /// Start with every provider offline, until `tollgate resume PROVIDER`
    #[arg(long)]
    offline: bool,

    /// How often a cache-only provider tries to recover (bare number = minutes)
    #[arg(long, value_name = "15m", value_parser = minutes)]
    auto_recover: Option<String>,

    /// An address for the Redis protocol (CL.THROTTLE, TG.*), or unix:PATH; off unless given
    #[arg(long, value_name = "ADDR")]
    resp: Option<String>,

    /// An address for Envoy's rate limit service (gRPC); off unless given
    #[arg(long, value_name = "ADDR", value_parser = address)]
    grpc: Option<SocketAddr>,

    #[command(flatten)]
    options: Options,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        hardening::disable_core_dumps()?;
        let mut sockets = Sockets::take().context("a socket from systemd is not a TCP socket")?;
        let mut sources = self.sources(&sockets)?;
        let mut loaded = load(&sources)?;
        let own = sockets.provider_addresses(|name| loaded.config.provider(name).is_some())?;
        if !own.is_empty() {
            sources.set.extend(own);
            loaded = load(&sources)?;
        }
        print_problems(&loaded.problems)?;
        let _log = crate::log::init(&loaded.config.log)?;
        let runtime = runtime().context("the runtime could not start")?;
        let ledger = runtime.block_on(open_ledger(&loaded.config))?;
        let serving = serve(&self, loaded, sources, sockets, ledger.clone());
        let ended = runtime.block_on(serving);
        runtime.block_on(flush(&ledger));
        // Permits in use are returned; a pending file read does not block the process.
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        // The drop of the last handle waits until every settle is written.
        drop(ledger);
        ended
    }

    /// Inherited sockets take precedence over flags: checks of an address, such as whether it needs
    /// a token, must use the real address.
    fn sources(&self, sockets: &Sockets) -> io::Result<Sources> {
        let mut sources = self.options.sources();
        let mut lay = |name, path, value: Option<String>| {
            let flag = value.map(|value| Flag { name, path, value });
            sources.flags.extend(flag);
        };
        lay("--listen", "listen", self.listen.clone());
        lay("--resp", "resp", self.resp.clone());
        lay(
            "--listen",
            "listen",
            systemd::address(sockets.gateway.as_ref())?,
        );
        lay(
            "--admin",
            "admin.listen",
            systemd::address(sockets.admin.as_ref())?,
        );
        let every = self.auto_recover.clone();
        sources
            .for_all_providers
            .extend(every.map(|every| ("auto_recover", every)));
        Ok(sources)
    }
}

fn load(sources: &Sources) -> anyhow::Result<Loaded> {
    Config::load(sources, &disk::environment()).or_else(|problems| {
        print_problems(&problems)?;
        bail!("the configuration has errors; fix them and start again")
    })
}

/// An address with a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let address = tollgate_config::parse_address(text);
    address.ok_or_else(|| "write `127.0.0.1:4292`, or `:4292` for this machine only".to_owned())
}

/// Parses a duration; a bare number means minutes here, although it means seconds elsewhere.
fn minutes(text: &str) -> Result<String, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = if is_number {
        format!("{text}m")
    } else {
        text.to_owned()
    };
    match amount::span(&text) {
        Some(_) => Ok(text),
        None => Err("write `15m`, or a number of minutes".to_owned()),
    }
}

/// One thread per core. On a single core, the single-threaded runtime costs a tenth less per call.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder
        .on_thread_park(memory::on_thread_park)
        .enable_all()
        .build()
}

/// What is written when nothing runs any more.
async fn finish(
    (daemon, config): (&Daemon, &Config),
    response_cache: Cache,
    snapshots: Option<Snapshots>,
) {
    open_permits::store(daemon, config);
    response_cache.close().await;
    if let Some(snapshots) = snapshots {
        snapshots.finish().await;
    }
}

async fn serve(
    flags: &Serve,
    loaded: Loaded,
    sources: Sources,
    mut sockets: Sockets,
    ledger: Ledger,
) -> anyhow::Result<ExitCode> {
    let mut events = watch::DaemonEvents::listen(loaded.config.log.file.clone())?;
    let config = loaded.config.clone();
    let wants_admin = wants_admin(&loaded);
    let bus = Events::new();
    let options = RegistryOptions {
        unknown: tollgate_server::unknown_domains(&config),
        nodes: config.nodes,
        node_lease: config.node_lease,
        offline: flags.offline,
        cache: cache(&config, &ledger, &bus)?,
        events: bus,
        ..RegistryOptions::default()
    };
    let providers = config.all_providers().map(|provider| (**provider).clone());
    let registry = ProviderRegistry::build(providers.collect(), ledger, options)?;
    let response_cache = registry.cache().clone();
    let snapshots = Snapshots::start(&config, &registry).await?;
    registry.set_callers(&config.callers);
    tollgate::body::set_body_memory(config.body_memory.0);
    let daemon = Daemon::new(registry.clone(), sources, loaded, disk::environment);
    open_permits::take_up(&daemon, &config).await;
    let connections_max = usize::try_from(config.connections_max).unwrap_or(usize::MAX);
    let gateway_options = GatewayOptions {
        connections_max,
        connections_per_address_max: (connections_max / 4).max(1),
        decisions: Some(daemon.decisions().clone()),
        ..GatewayOptions::default()
    };
    let mut gateway = Gateway::new(registry, gateway_options);
    let socket = sockets.gateway.take();
    let mut listening = vec![listen(&mut gateway, socket, config.listen, ListenerKind::All).await?];
    for provider in config.all_providers() {
        if let Some(address) = provider.listen {
            let kind = ListenerKind::Provider(provider.name.clone());
            let socket = sockets.by_provider.remove(&provider.name);
            listening.push(listen(&mut gateway, socket, address, kind).await?);
        }
    }
    daemon.set_listeners(gateway.listeners());
    let (admin, operator) = admin(&daemon, &config, sockets.admin, wants_admin).await?;
    let service = DecisionListeners::open(&daemon, &config, flags.grpc, operator.as_ref()).await?;
    let _alerts = Alerts::start(&daemon, AlertOptions::default()).await;
    let scheduler = Scheduler::start(&daemon, SchedulerOptions::default());
    ndjson::start(&daemon, &config)?;
    events.watch(&daemon).await;
    {
        // Not for longer: results and metrics are written to standard output by other threads.
        let out = &mut crate::out::out();
        announce(out, &config, &listening, &service, admin.as_ref())?;
        if let Some(admin) = &admin {
            page_hint::announce(out, admin.address())?;
        }
    }
    systemd::ready();
    tokio::spawn(memory::return_freed());
    if let Some(every) = systemd::watchdog() {
        tokio::spawn(systemd::send_watchdog(every));
    }
    events.run(&daemon).await;
    systemd::notify("STOPPING=1");
    let drained = async {
        let others = async {
            tokio::join!(gateway.drain(), service.drain(), scheduler.drain());
        };
        drain_beside(admin, others).await;
        finish((&daemon, &config), response_cache, snapshots).await;
    };
    tokio::select! {
        () = drained => Ok(ExitCode::SUCCESS),
        () = events.wait_for_second_stop() => bail!("stopped at once by a second signal; calls in flight were dropped"),
    }
}

/// The admin address responds until the others are drained, and those who wait on it have no more time
/// than theirs.
async fn drain_beside(admin: Option<Admin>, others: impl Future<Output = ()>) {
    match admin {
        Some(admin) => admin.drain_beside(others).await,
        None => others.await,
    }
}

/// Listens on an inherited socket, or on a new one.
async fn listen(
    gateway: &mut Gateway,
    socket: Option<std::net::TcpListener>,
    address: SocketAddr,
    kind: ListenerKind,
) -> anyhow::Result<ListenAddress> {
    if let Some(socket) = socket {
        return Ok(gateway.listen_on(TcpListener::from_std(socket)?, kind)?);
    }
    let remedy = match &kind {
        ListenerKind::All => "choose another with --listen".to_owned(),
        ListenerKind::Provider(name) => format!("choose another `listen` for the provider {name}"),
    };
    let opened = gateway.listen(address, kind).await;
    opened.with_context(|| format!("could not listen on {address}; is it in use? {remedy}"))
}

/// Whether the admin address is configured. If the default address is in use, the daemon starts
/// without an admin address.
fn wants_admin(loaded: &Loaded) -> bool {
    let named = loaded
        .values
        .iter()
        .find(|value| value.path == "admin.listen");
    named.is_some_and(|value| value.origin != Origin::Default)
}

/// The admin address, and the operator's token if there is one.
async fn admin(
    daemon: &Daemon,
    config: &Config,
    socket: Option<std::net::TcpListener>,
    is_named: bool,
) -> anyhow::Result<(Option<Admin>, Option<Secret>)> {
    let wanted = config.admin.listen;
    let listener = match socket {
        Some(socket) => TcpListener::from_std(socket),
        None => TcpListener::bind(wanted).await,
    };
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !is_named => {
            writeln!(
                crate::out::err(),
                "warning: {wanted} is in use, perhaps by another daemon, so this one has no admin \
                 address; choose one with --admin"
            )?;
            return Ok((None, None));
        }
        Err(error) => {
            let text = format!("could not listen on {wanted}; choose another with --admin");
            return Err(error).context(text);
        }
    };
    let is_local = listener.local_addr()?.ip().is_loopback();
    let token = operator_token(config, is_local)?;
    let options = AdminOptions {
        token: token.clone(),
        ..AdminOptions::default()
    };
    Ok((Some(Admin::serve(daemon, listener, options)?), token))
}

/// The token that the operator's programs send. Beyond this host there is always one.
fn operator_token(config: &Config, is_local: bool) -> anyhow::Result<Option<Secret>> {
    if is_local || config.admin.token.is_some() {
        return Ok(config.admin.token.clone());
    }
    let stored = TokenFile::ensure(Path::new(&config.state_dir))?;
    let path = stored.path.display();
    let mut out = crate::out::out();
    if stored.is_new {
        let token = stored.token.expose();
        writeln!(
            out,
            "the admin token, shown only once and stored in {path}: {token}"
        )?;
    } else {
        writeln!(out, "the admin token is in {path}")?;
    }
    Ok(Some(stored.token))
}

/// The response cache: in the folder of the ledger, unless the configuration names another store. While Redis cannot be
/// reached it is in memory.
fn cache(config: &Config, ledger: &Ledger, events: &Events) -> anyhow::Result<Cache> {
    let sizes = Sizes {
        memory: config.cache_size.memory.0,
        disk: config.cache_size.disk.0,
    };
    if let Some(Store::Redis(url)) = &config.cache_store {
        let address = RedisAddress::parse(url.expose()).context("cache_store")?;
        return Ok(Cache::open_redis(address, sizes, ledger.clone(), events));
    }
    Ok(match crate::cache::cache_dir(config) {
        Some(folder) => Cache::open_within(&folder, sizes, events),
        None => Cache::memory_within(sizes),
    })
}

fn print_problems(problems: &Problems) -> io::Result<()> {
    let mut out = crate::out::err();
    for problem in problems
        .iter()
        .filter(|problem| problem.level != Level::Note)
    {
        writeln!(out, "{problem}")?;
    }
    Ok(())
}

/// Prints the base URLs that applications use instead of the providers' addresses.
fn announce(
    out: &mut impl Write,
    config: &Config,
    listening: &[ListenAddress],
    service: &DecisionListeners,
    admin: Option<&Admin>,
) -> io::Result<()> {
    for ListenAddress { address, kind } in listening {
        // Users copy the printed address, and 0.0.0.0 cannot be called.
        let (open, address) = (address, crate::admin_client::reachable(*address));
        match kind {
            ListenerKind::All if open.ip().is_unspecified() => {
                writeln!(
                    out,
                    "tollgate listens on {open}, every address of this host: http://{address}"
                )?;
            }
            ListenerKind::All => writeln!(out, "tollgate listens on http://{address}")?,
            ListenerKind::Provider(_) => {}
        }
        match kind {
            ListenerKind::All => {
                for provider in &config.providers {
                    let name = &provider.name;
                    match provider.wildcard_only_domain() {
                        None => writeln!(out, "  {name:<16} http://{address}/{name}")?,
                        Some(many) => {
                            let host = many.host();
                            let form = format!("http://{address}/https://YOURS.{host}");
                            writeln!(out, "  {name:<16} {form}")?;
                        }
                    }
                }
            }
            ListenerKind::Provider(name) => writeln!(out, "  {name:<16} http://{address}")?,
        }
    }
    service.announce(out)?;
    if let Some(admin) = admin {
        writeln!(out, "  {:<16} http://{}", "(admin)", admin.address())?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users copy the printed address into programs, and 0.0.0.0 cannot be called.
    #[test]
    fn an_unspecified_address_is_announced_as_loopback() {
        let sources = Sources {
            only_named: true,
            ..Sources::default()
        };
        let loaded = Config::load(&sources, &disk::environment());
        let listening = [
            (ListenerKind::All, 4_290),
            (ListenerKind::Provider("x".to_owned()), 4_300),
        ]
        .map(|(kind, port)| ListenAddress {
            address: SocketAddr::from(([0, 0, 0, 0], port)),
            kind,
        });
        let mut out = Vec::new();
        announce(
            &mut out,
            &loaded.expect("no files").config,
            &listening,
            &DecisionListeners::default(),
            None,
        )
        .expect("a vector");
        let printed = String::from_utf8_lossy(&out);
        assert!(!printed.contains("http://0.0.0.0"), "{printed}");
        assert!(printed.contains("0.0.0.0:4290, every address"), "{printed}");
        for url in ["http://127.0.0.1:4290", "http://127.0.0.1:4300"] {
            assert!(printed.contains(url), "{printed}");
        }
    }
}
