//! `tollgate serve` (also `start`): the gateway in front of the providers that are named.
//!
//! Promises: every problem of every file is told before anything listens; what it listens on is
//! printed; SIGTERM and SIGINT end it in good order.
//!
//! Never: keeps a key anywhere but in memory.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use tollgate::Shop;
use tollgate::shop::{Options, Unknown};
use tollgate_config::{Draft, KeyFile, Level, Problems, Provider, World};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Door, Gateway, GatewayOptions, Listening};

/// Provider files in one folder; more than this is a folder given by mistake.
const FILES_MAX: usize = 1_000;

/// Run the gateway: applications call it in place of the provider, and never see a 429 that could
/// have been avoided.
///
/// Example: tollgate serve --provider tmdb.yaml --provider-dir providers/
#[derive(Debug, Args)]
#[command(visible_alias = "start")]
pub(crate) struct Serve {
    /// Where the gateway listens; also a proxy for http:// URLs.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4290")]
    listen: SocketAddr,
    /// A provider file; may be given more than once.
    #[arg(long = "provider", value_name = "FILE")]
    providers: Vec<PathBuf>,
    /// A folder of provider files (*.yaml, *.yml); may be given more than once.
    #[arg(long = "provider-dir", value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Where permits are counted: `memory:` is gone with this process.
    #[arg(long, value_name = "URL", default_value = "memory:")]
    store: String,
    /// Change a setting of a provider file: PROVIDER.KEY=VALUE, such as tmdb.queue.max=50.
    #[arg(long = "set", value_name = "P.K=V")]
    set: Vec<String>,
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let _log = tracing_subscriber::fmt()
            .with_env_filter(log_filter())
            .with_writer(io::stderr)
            .try_init();
        let providers = self.load()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        runtime.block_on(self.serve(providers))
    }

    async fn serve(self, providers: Vec<Provider>) -> anyhow::Result<ExitCode> {
        let ledger = open(&self.store)?;
        let unknown = if self.listen.ip().is_loopback() {
            Unknown::Allow
        } else {
            Unknown::Refuse
        };
        let own: Vec<(SocketAddr, Door)> = providers
            .iter()
            .filter_map(|provider| Some((provider.listen?, Door::Provider(provider.name.clone()))))
            .collect();
        let options = Options {
            unknown,
            ..Options::default()
        };
        let shop = Shop::build(providers, ledger, options)?;
        let mut gateway = Gateway::new(shop.clone(), GatewayOptions::default());
        let mut listening = Vec::new();
        for (address, door) in std::iter::once((self.listen, Door::All)).chain(own) {
            let served = gateway.listen(address, door).await;
            listening.push(served.with_context(|| {
                format!("could not listen on {address}; is it in use? choose another with --listen")
            })?);
        }
        announce(&shop, &listening)?;
        ended().await?;
        gateway.drain().await;
        Ok(ExitCode::SUCCESS)
    }

    /// Every provider, or every problem of all of them.
    fn load(&self) -> anyhow::Result<Vec<Provider>> {
        let mut files = self.providers.clone();
        for folder in &self.folders {
            files.extend(files_in(folder)?);
        }
        let mut drafts = Vec::new();
        let mut problems = Problems::default();
        for file in &files {
            let name = file.display().to_string();
            let text = fs::read_to_string(file)
                .with_context(|| format!("could not read the provider file {name}"))?;
            match Draft::read(&name, &text) {
                Ok(draft) => drafts.push(draft),
                Err(found) => problems.extend(found),
            }
        }
        let world = World {
            env: &|name| std::env::var(name).ok(),
            key_file: &key_file,
        };
        self.apply(&mut drafts, &world)?;
        let mut providers = Vec::new();
        for draft in &drafts {
            let checked = draft.check(&world);
            providers.extend(checked.provider);
            problems.extend(checked.problems);
        }
        tell(&problems)?;
        if problems.has_errors() {
            bail!("the configuration has errors; mend them and start again");
        }
        Ok(providers)
    }

    /// `--set PROVIDER.KEY=VALUE`.
    fn apply(&self, drafts: &mut [Draft], world: &World<'_>) -> anyhow::Result<()> {
        for setting in &self.set {
            let parts = setting
                .split_once('=')
                .and_then(|(path, value)| Some((path.split_once('.')?, value)));
            let Some(((name, key), value)) = parts else {
                bail!("--set {setting}: write PROVIDER.KEY=VALUE, such as tmdb.queue.max=50");
            };
            let is_named = |draft: &&mut Draft| {
                let provider = draft.check(world).provider;
                provider.is_some_and(|provider| provider.name == name)
            };
            let Some(draft) = drafts.iter_mut().find(is_named) else {
                bail!("--set {setting}: there is no provider `{name}` among the files given");
            };
            if let Err(problems) = draft.set(key, value, "--set") {
                tell(&problems)?;
                bail!("--set {setting} cannot be read");
            }
        }
        Ok(())
    }
}

/// The ledger that a store names.
pub(crate) fn open(store: &str) -> anyhow::Result<Ledger> {
    match store.split_once(':') {
        Some(("memory", "")) => Ok(Ledger::memory(Clock::System)),
        Some(("sqlite", _)) => {
            bail!("--store {store}: SQLite is not built into this version yet; use memory:")
        }
        Some(("postgres" | "postgresql" | "redis" | "rediss", _)) => {
            bail!("this store is not supported yet; use memory:")
        }
        Some(_) | None => bail!("--store {store}: write memory: or sqlite:DIR"),
    }
}

fn files_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let name = folder.display();
    let entries =
        fs::read_dir(folder).with_context(|| format!("could not read the folder {name}"))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("could not read the folder {name}"))?
            .path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if matches!(ending, Some("yaml" | "yml")) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            bail!("{name} has more than {FILES_MAX} provider files; name a smaller folder");
        }
    }
    files.sort();
    Ok(files)
}

fn key_file(path: &str) -> Result<KeyFile, String> {
    let text = fs::read_to_string(path).map_err(|error| error.kind().to_string())?;
    let text = text.trim_end_matches(['\r', '\n']).to_owned();
    Ok(KeyFile {
        text,
        open_to_others: is_open_to_others(path),
    })
}

#[cfg(unix)]
fn is_open_to_others(path: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &str) -> bool {
    false
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
fn announce(shop: &Shop, listening: &[Listening]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for served in listening {
        match &served.door {
            Door::All => {
                writeln!(out, "tollgate listens on http://{}", served.address)?;
                for live in shop.all() {
                    writeln!(
                        out,
                        "  {:<16} http://{}/{}",
                        live.name(),
                        served.address,
                        live.name()
                    )?;
                }
            }
            Door::Provider(name) => writeln!(out, "  {name:<16} http://{}", served.address)?,
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
