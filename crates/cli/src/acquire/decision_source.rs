//! Who decides: a running daemon, or this process with the store itself.
//!
//! Promises: a daemon on the admin address decides if no `--store` is given; otherwise the ledger is
//! opened directly, so that several processes share one quota either way.
//!
//! A permit that was acquired without a daemon is settled without one, by any process.
//!
//! Never: opens a store for a permit of a daemon that is named.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use hyper::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tollgate::ProviderRegistry;
use tollgate::providers::Options as RegistryOptions;
use tollgate_config::config::Store;
use tollgate_config::{Config, disk};
use tollgate_ledger::Ledger;
use tollgate_server::{DecisionError, Decisions, unknown_domains};

use super::into_reply;
use super::permit_files::{Ending, PermitFile, PermitFiles};
use crate::admin_client::{AdminClient, NoDaemon};
use crate::open_ledger::{flush, try_open_ledger};
use crate::options::Options;

const OWN_PROVIDERS: &str = "note: a daemon decides, with the providers that it was started with; --provider and --provider-dir say nothing to it (--store decides here instead)";

/// Who decides.
#[derive(Debug)]
pub(super) enum DecisionSource {
    /// A running daemon.
    Daemon(AdminClient),
    /// This process.
    Local(Box<LocalDecisions>),
}

/// The decision service in this process.
#[derive(Debug)]
pub(super) struct LocalDecisions {
    // Dropped before the runtime that its tasks run on.
    decisions: Decisions,
    ledger: Ledger,
    runtime: Runtime,
    /// Permits that other processes settle; a store in memory has none.
    files: Option<PermitFiles>,
}

impl Drop for LocalDecisions {
    fn drop(&mut self) {
        self.runtime.block_on(flush(&self.ledger));
    }
}

impl DecisionSource {
    /// The daemon if one responds, else the store.
    pub(super) fn find(options: &Options) -> anyhow::Result<DecisionSource> {
        if options.store.is_some() {
            return LocalDecisions::open(options);
        }
        let client = AdminClient::find(options)?;
        match client.request(Method::GET, "/health", None) {
            Ok(_) => {
                if !options.provider.is_empty() || !options.provider_dir.is_empty() {
                    writeln!(crate::out::err(), "{OWN_PROVIDERS}")?;
                }
                Ok(DecisionSource::Daemon(client))
            }
            Err(error) if error.is::<NoDaemon>() => {
                if options.admin.is_some() {
                    writeln!(
                        crate::out::err(),
                        "note: {error:#}; this process decides itself"
                    )?;
                }
                LocalDecisions::open(options)
            }
            Err(error) => Err(error),
        }
    }

    /// Who settles this permit: the store's folder if `acquire` without a daemon wrote it there, else
    /// the daemon.
    pub(super) fn of_permit(options: &Options, permit: &str) -> anyhow::Result<DecisionSource> {
        let daemon = || AdminClient::find(options).map(DecisionSource::Daemon);
        let Ok(loaded) = Config::load(&options.sources(), &disk::environment()) else {
            // The daemon may run with an older version of it.
            return if options.store.is_some() {
                LocalDecisions::open(options)
            } else {
                daemon()
            };
        };
        let Some(files) = permit_files(&loaded.config) else {
            if options.store.is_some() {
                bail!(IN_MEMORY);
            }
            return daemon();
        };
        if files.find(permit)?.is_some() || options.store.is_some() {
            return LocalDecisions::open(options);
        }
        daemon()
    }

    /// Lets another process settle a permit that this one prints. A daemon keeps it anyway.
    pub(super) fn keep(&self, permit: &str) -> anyhow::Result<()> {
        let DecisionSource::Local(local) = self else {
            return Ok(());
        };
        let Some(files) = &local.files else {
            bail!("the permit counts as used: {IN_MEMORY}");
        };
        let Some(detached) = local.decisions.detach(permit) else {
            return Ok(());
        };
        files
            .write(permit, &detached, local.decisions.now())
            .context("the permit cannot be reported later, so it counts as used")
    }

    /// Reports or releases a permit.
    pub(super) fn settle(&self, ending: Ending, body: &Value) -> anyhow::Result<Value> {
        let path = match ending {
            Ending::Reported => "/v1/report",
            Ending::Released => "/v1/release",
        };
        let ask = || self.ask(Method::POST, path, Some(body), super::MARGIN);
        let permit = body["permit"].as_str().unwrap_or_default();
        match self {
            DecisionSource::Daemon(_) => ask().map_err(|error| match error.is::<NoDaemon>() {
                true => error.context(format!("{} is not in the store's folder", named(permit))),
                false => error,
            }),
            DecisionSource::Local(local) => local.settle(permit, ending, ask),
        }
    }

    /// One request and its reply; an error of the service is an error here, a denial is not.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let (status, reply) = match self {
            DecisionSource::Daemon(client) => {
                let (status, reply) = client.exchange_within(method, path, body, patience)?;
                (status.as_u16(), reply)
            }
            DecisionSource::Local(local) => {
                let asked = local.decisions.ask_over_http(method, path, body);
                local.runtime.block_on(asked)
            }
        };
        into_reply(status, reply)
    }
}

impl LocalDecisions {
    fn open(options: &Options) -> anyhow::Result<DecisionSource> {
        let loaded = match Config::load(&options.sources(), &disk::environment()) {
            Ok(loaded) => loaded,
            Err(problems) => bail!("the configuration has errors:\n{problems}"),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        let config = loaded.config;
        let (ledger, why) = runtime.block_on(try_open_ledger(&config))?;
        if let Some(why) = why {
            writeln!(crate::out::err(), "error: {why}")?;
        }
        let providers = config.all_providers().map(|provider| (**provider).clone());
        let registry_options = RegistryOptions {
            unknown: unknown_domains(&config),
            nodes: config.nodes,
            has_share: false,
            node_lease: config.node_lease,
            ..RegistryOptions::default()
        };
        let registry = {
            let _runtime = runtime.enter();
            ProviderRegistry::build(providers.collect(), ledger.clone(), registry_options)?
        };
        registry.set_callers(&config.callers);
        let random = RandomState::new().hash_one(std::process::id());
        tollgate::permits::begin_numbers_at(random);
        Ok(DecisionSource::Local(Box::new(LocalDecisions {
            decisions: Decisions::new(registry, &config),
            ledger,
            runtime,
            files: permit_files(&config),
        })))
    }

    /// An error while the store cannot be reached: nothing that is settled now would be stored.
    fn check_store(&self, permit: &str) -> anyhow::Result<()> {
        match self.ledger.loss_reason() {
            None => Ok(()),
            Some(why) => bail!(
                "{} could not be settled, because the store cannot be reached: {why}; repeat the command when it is back",
                named(permit)
            ),
        }
    }

    /// Settles a permit of another process, unless that is done.
    fn settle(
        &self,
        permit: &str,
        ending: Ending,
        ask: impl Fn() -> anyhow::Result<Value>,
    ) -> anyhow::Result<Value> {
        let unknown = || with_hint(&DecisionError::UnknownPermit);
        let files = self.files.as_ref().ok_or_else(unknown)?;
        if let Some(PermitFile::Open(detached)) = files.find(permit)? {
            let attached = self.decisions.attach(permit, &detached);
            let attached = self.runtime.block_on(attached);
            let attached = attached.map_err(|error| with_hint(&error));
            // Whatever it says, it would be lost with this process.
            self.check_store(permit)?;
            attached?;
            if files.take(permit, ending)? {
                let settled = ask();
                if settled.is_err() {
                    // A mistake in the report: it can be sent again.
                    files.put_back(permit, ending)?;
                    return settled;
                }
                self.runtime.block_on(flush(&self.ledger));
                if let Some(why) = self.ledger.loss_reason() {
                    // It may be stored. A second settle could give the permit back twice.
                    let permit = named(permit);
                    bail!("{permit} counts as used, because the store was lost meanwhile: {why}");
                }
                return settled;
            }
        }
        let found = files.find(permit)?;
        if found.is_none() {
            self.check_store(permit)?;
        }
        match found {
            Some(PermitFile::Settled(before)) if before == ending => {
                Ok(json!({ "first": false, "permit": permit }))
            }
            Some(PermitFile::Settled(Ending::Released)) => {
                Err(with_hint(&DecisionError::AlreadyReleased))
            }
            Some(PermitFile::Settled(Ending::Reported)) => {
                Err(with_hint(&DecisionError::AlreadyReported))
            }
            Some(PermitFile::Open(_)) | None => Err(unknown()),
        }
    }
}

/// The permit in an error. Only what looks like one: anything else may be a key.
fn named(permit: &str) -> String {
    match permit.len() == 32 && permit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => format!("the permit {permit}"),
        false => "this permit".to_owned(),
    }
}

/// Permits of a store on this host are in its folder; those of one that is far away in the state folder
/// of this user, apart from those of other stores.
pub(crate) fn permit_files(config: &Config) -> Option<PermitFiles> {
    match &config.store {
        Store::Sqlite(folder) => Some(PermitFiles::new(Path::new(folder))),
        Store::Postgres(url) | Store::Redis(url) => {
            // Without user and password: their hash would be a way to guess them.
            let url = url.expose();
            let place = url.rsplit_once('@').map_or(url, |(_, place)| place);
            let mut hasher = DefaultHasher::new();
            hasher.write(place.as_bytes());
            let folder = format!("remote-{:016x}", hasher.finish());
            Some(PermitFiles::new(&Path::new(&config.state_dir).join(folder)))
        }
        Store::Memory => None,
    }
}

const IN_MEMORY: &str = "a store in memory ends with its process, so no other process can report or release its permits; use `--store sqlite:DIR`, or ask a daemon";

fn with_hint(error: &DecisionError) -> anyhow::Error {
    anyhow::anyhow!("{error}; {}", error.hint())
}
