//! Building a Tollgate: providers, store, clock, dice.
//!
//! Promises: every mistake is reported with its place and a remedy, before the first call. Files are
//! read as the daemon reads them, with the same variables.
//!
//! Never: reads `tollgate.yaml`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_config::config::Store;
use tollgate_config::preset;
use tollgate_config::problem::nearest;
use tollgate_config::{Config, Problems, Sources, disk};
use tollgate_ledger::Clock;

use super::{Provider, Tollgate, store};
use crate::event::Events;
use crate::pool::Roots;
use crate::providers::{BuildError, Options, ProviderRegistry, Unknown};

/// What Tollgate is made of.
///
/// ```
/// use tollgate::{Provider, Tollgate};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tollgate = Tollgate::builder()
///     .provider(Provider::new("shop").limit_with("40/10s"))?
///     .preset("musicbrainz")?
///     .store("memory:") // `sqlite:state` is shared by all processes that open it
///     .build()
///     .await?;
/// println!("{:?} calls remain", tollgate.capacity("shop").await?.remaining);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "`build` makes a Tollgate of it"]
pub struct TollgateBuilder {
    providers: Vec<tollgate_config::Provider>,
    store: String,
    state_dir: Option<PathBuf>,
    clock: Clock,
    options: Options,
}

/// Why no Tollgate could be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A provider is wrong: each problem with its place and a remedy.
    #[error(transparent)]
    Provider(#[from] Problems),
    /// There is no such built-in provider.
    #[error("there is no built-in provider `{name}`{}; `tollgate provider list` shows all", or_nearest(.nearest.as_deref()))]
    Preset {
        /// The name.
        name: String,
        /// The nearest one that exists.
        nearest: Option<String>,
    },
    /// The store cannot be opened.
    #[error("the store `{store}` cannot be used: {why}")]
    Store {
        /// Which, without a password.
        store: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The providers do not fit together.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// reqwest cannot build the client.
    #[cfg(feature = "reqwest")]
    #[error("reqwest cannot build the client")]
    Client(#[from] ::reqwest::Error),
    /// Tollgate runs tasks, and there is no runtime for them.
    #[error("there is no tokio runtime; call `build` inside one, for example in #[tokio::main]")]
    NoRuntime,
}

impl Default for TollgateBuilder {
    fn default() -> TollgateBuilder {
        TollgateBuilder {
            providers: Vec::new(),
            store: "memory:".to_owned(),
            state_dir: None,
            clock: Clock::System,
            options: Options {
                // The program chooses its URLs itself, also those of its own network.
                private: true,
                ..Options::default()
            },
        }
    }
}

impl TollgateBuilder {
    /// Adds the provider of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong: every problem with line, column and remedy.
    pub fn provider_file(self, path: impl AsRef<Path>) -> Result<TollgateBuilder, SetupError> {
        let path = path.as_ref().to_string_lossy().into_owned();
        self.load(Sources {
            providers: vec![path],
            ..Sources::default()
        })
    }

    /// Adds the providers of all `*.yaml` and `*.yml` files of a folder.
    ///
    /// # Errors
    /// As [`TollgateBuilder::provider_file`].
    pub fn provider_dir(self, folder: impl AsRef<Path>) -> Result<TollgateBuilder, SetupError> {
        let folder = folder.as_ref().to_string_lossy().into_owned();
        self.load(Sources {
            provider_dirs: vec![folder],
            ..Sources::default()
        })
    }

    fn load(mut self, sources: Sources) -> Result<TollgateBuilder, SetupError> {
        let sources = Sources {
            only_named: true,
            ..sources
        };
        let loaded = Config::load(&sources, &disk::environment())?;
        let providers = loaded.config.providers.iter();
        self.providers
            .extend(providers.map(|provider| Arc::unwrap_or_clone(provider.clone())));
        Ok(self)
    }

    /// Adds a built-in provider. Its key comes from the usual environment variable, if it needs one.
    ///
    /// # Errors
    /// There is no such provider, or its key is missing.
    pub fn preset(mut self, name: &str) -> Result<TollgateBuilder, SetupError> {
        let found = preset::find(name).ok_or_else(|| {
            let names: Vec<&str> = preset::all().iter().map(|preset| preset.name).collect();
            SetupError::Preset {
                name: name.chars().take(64).collect(),
                nearest: nearest(name, &names).map(str::to_owned),
            }
        })?;
        let checked = found.provider(None, &disk::environment());
        let provider = checked.provider.ok_or(checked.problems)?;
        self.providers.push(provider);
        Ok(self)
    }

    /// Adds a provider that is written in code.
    ///
    /// # Errors
    /// A field is wrong: as for a provider file.
    #[expect(clippy::needless_pass_by_value, reason = "it is built in place")]
    pub fn provider(mut self, provider: Provider) -> Result<TollgateBuilder, SetupError> {
        self.providers.push(provider.checked()?);
        Ok(self)
    }

    /// Where permits are counted and responses are cached: `sqlite:DIR`, a folder that several
    /// processes and a gateway may share, or `memory:` (the default). With the features `redis` and
    /// `postgres` also `redis://HOST` and `postgres://HOST/DATABASE`, for many hosts; responses are
    /// then cached in the memory of this process.
    pub fn store(mut self, store: impl Into<String>) -> TollgateBuilder {
        self.store = store.into();
        self
    }

    /// A folder of this host that remembers what a store of many hosts has held, so that a store that
    /// was wiped does not pass for a new one. Without it that of the daemon: `TOLLGATE_STATE_DIR`, else
    /// the user's state folder. `sqlite:` and `memory:` do not use it.
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> TollgateBuilder {
        self.state_dir = Some(folder.into());
        self
    }

    /// Another clock, so that tests run in virtual time: `Clock::tokio(..)` in a runtime whose time
    /// is paused.
    pub fn clock(mut self, clock: Clock) -> TollgateBuilder {
        self.clock = clock;
        self
    }

    /// The seed of all random delays (jitter of retries, cool-downs and sleeps), so that tests repeat
    /// them.
    pub fn dice(mut self, seed: u64) -> TollgateBuilder {
        self.options.dice = Some(seed);
        self
    }

    /// How calls to domains that no provider has are treated; they are allowed unless this says so.
    pub fn unknown_domains(mut self, unknown: Unknown) -> TollgateBuilder {
        self.options.unknown = unknown;
        self
    }

    /// The root certificates of Tollgate's own connections (logins, [`crate::path::call`]).
    pub fn roots(mut self, roots: Roots) -> TollgateBuilder {
        self.options.roots = roots;
        self
    }

    /// Where facts are emitted, for programs that listen.
    pub fn events(mut self, events: Events) -> TollgateBuilder {
        self.options.events = events;
        self
    }

    /// Opens the store and starts.
    ///
    /// # Errors
    /// The store cannot be opened, or two providers have one name or domain.
    pub async fn build(self) -> Result<Tollgate, SetupError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(SetupError::NoRuntime);
        }
        let address = Store::parse(&self.store).map_err(|error| SetupError::Store {
            // It may hold a password.
            store: self.store.split(':').next().unwrap_or_default().to_owned(),
            why: error.to_string(),
        })?;
        let (ledger, cache) =
            store::open(&address, self.state_dir, self.clock, &self.options.events).await?;
        let options = Options {
            cache,
            ..self.options
        };
        let names = self.providers.iter().map(|one| one.name.clone()).collect();
        let registry = ProviderRegistry::build(self.providers, ledger, options)?;
        Ok(Tollgate { registry, names })
    }
}

fn or_nearest(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; do you mean `{name}`?"))
}
