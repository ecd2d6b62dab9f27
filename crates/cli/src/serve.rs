//! `tollgate serve` (also `start`): the gateway in front of the providers that are named.
//!
//! Promises: every problem of every file is told before anything listens; what it listens on is
//! printed; SIGTERM and SIGINT end it in good order.
//!
//! Never: keeps a key anywhere but in memory.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use tollgate::Shop;
use tollgate::shop::{Options as ShopOptions, Unknown};
use tollgate_config::config::{Store, UnknownDomain};
use tollgate_config::{Config, Flag, Level, Problems, disk};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Door, Gateway, GatewayOptions, Listening};

use crate::options::Options;

const EXAMPLES: &str = "\
Examples:
  tollgate serve                                   # what ./tollgate.yaml names
  tollgate serve --provider tmdb.yaml --provider-dir providers/
  curl http://127.0.0.1:4290/tmdb/3/movie/550";

/// Run the gateway: applications call it in place of the provider
///
/// They never see a 429 that could have been avoided: calls wait for their turn, pauses are kept, and
/// outages are slept through.
#[derive(Debug, Args)]
#[command(visible_alias = "start", after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where the gateway listens; also a proxy for http:// URLs; default 127.0.0.1:4290
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,

    #[command(flatten)]
    options: Options,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut sources = self.options.sources();
        sources.flags.extend(self.listen.map(|value| Flag {
            name: "--listen",
            path: "listen",
            value,
        }));
        let loaded = match Config::load(&sources, &disk::world()) {
            Ok(loaded) => loaded,
            Err(problems) => {
                tell(&problems)?;
                bail!("the configuration has errors; mend them and start again");
            }
        };
        tell(&loaded.problems)?;
        let _log = tracing_subscriber::fmt()
            .with_env_filter(log_filter())
            .with_writer(io::stderr)
            .try_init();
        let runtime = runtime().context("the runtime could not start")?;
        runtime.block_on(serve(&loaded.config))
    }
}

/// One thread per core. On a single core there is nobody to share work with, and a runtime that
/// does not try spends a tenth less per call.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_all().build()
}

async fn serve(config: &Config) -> anyhow::Result<ExitCode> {
    let ledger = open(&config.store)?;
    let options = ShopOptions {
        unknown: match config.unknown_domain {
            UnknownDomain::Allow => Unknown::Allow,
            UnknownDomain::Refuse => Unknown::Refuse,
        },
        nodes: config.nodes,
        node_lease: config.node_lease,
        ..ShopOptions::default()
    };
    let providers = config.all().map(|provider| (**provider).clone());
    let shop = Shop::build(providers.collect(), ledger, options)?;
    let mut gateway = Gateway::new(shop, GatewayOptions::default());
    let own = config
        .providers
        .iter()
        .filter_map(|provider| Some((provider.listen?, Door::Provider(provider.name.clone()))));
    let mut listening = Vec::new();
    for (address, door) in std::iter::once((config.listen, Door::All)).chain(own) {
        listening.push(listen(&mut gateway, address, door).await?);
    }
    announce(config, &listening)?;
    ended().await?;
    gateway.drain().await;
    Ok(ExitCode::SUCCESS)
}

async fn listen(
    gateway: &mut Gateway,
    address: SocketAddr,
    door: Door,
) -> anyhow::Result<Listening> {
    gateway.listen(address, door).await.with_context(|| {
        format!("could not listen on {address}; is it in use? choose another with --listen")
    })
}

/// The ledger that a store names.
pub(crate) fn open(store: &Store) -> anyhow::Result<Ledger> {
    match store {
        Store::Memory => Ok(Ledger::memory(Clock::System)),
        Store::Sqlite(folder) => {
            let (ledger, why) = Ledger::sqlite_or_lost(folder, Clock::System)
                .with_context(|| format!("could not open the ledger in {folder}"))?;
            if let Some(why) = why {
                // Each provider obeys its on_store_loss until the folder can be opened.
                let mut out = io::stderr().lock();
                writeln!(out, "error: {}", why.in_full())?;
                writeln!(out, "  calls follow on_store_loss until it is mended")?;
            }
            Ok(ledger)
        }
        Store::Postgres(_) | Store::Redis(_) => {
            bail!("this store is not built yet; use --store sqlite:DIR or --store memory:")
        }
    }
}

fn tell(problems: &Problems) -> io::Result<()> {
    let mut out = io::stderr().lock();
    for problem in problems
        .iter()
        .filter(|problem| problem.level != Level::Note)
    {
        writeln!(out, "{problem}")?;
    }
    Ok(())
}

/// What to put in place of the provider's address.
fn announce(config: &Config, listening: &[Listening]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for Listening { address, door } in listening {
        match door {
            Door::All => {
                writeln!(out, "tollgate listens on http://{address}")?;
                for provider in &config.providers {
                    let name = &provider.name;
                    writeln!(out, "  {name:<16} http://{address}/{name}")?;
                }
            }
            Door::Provider(name) => writeln!(out, "  {name:<16} http://{address}")?,
        }
    }
    out.flush()
}

/// Waits for the order to end.
#[cfg(unix)]
async fn ended() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn ended() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// `TOLLGATE_LOG`, such as `debug`; by default what an operator wants to know.
fn log_filter() -> tracing_subscriber::EnvFilter {
    let wanted = std::env::var("TOLLGATE_LOG").unwrap_or_else(|_| "info".to_owned());
    tracing_subscriber::EnvFilter::new(wanted)
}
