//! Options of every command that reads the configuration: the sources of the configuration.
//!
//! Promises: the same names and the same meaning for every command.
//!
//! Never: reads a file; it only names them.

use clap::Args;
use tollgate_config::{Flag, ProviderSetting, Sources};

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct Options {
    /// tollgate.yaml; default: $TOLLGATE_CONFIG, else ./tollgate.yaml if there is one
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<String>,

    /// A provider file; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) provider: Vec<String>,

    /// A folder of provider files: all *.yaml and *.yml
    #[arg(long, value_name = "DIR")]
    pub(crate) provider_dir: Vec<String>,

    /// Where permits are counted: sqlite:DIR, memory:, redis://HOST or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// The admin address
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<String>,

    /// The admin token; better in $TOLLGATE_ADMIN_TOKEN, where other users cannot read it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<Token>,

    /// Size of the response cache in memory, such as 64MiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_memory: Option<String>,

    /// Size of the response cache on disk, such as 1GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_disk: Option<String>,

    /// A file of variables, KEY=VALUE; they take precedence over the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Option<String>,

    /// One setting of one provider; repeatable
    #[arg(long, value_name = "PROVIDER.KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<ProviderSetting>,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a result; its error would repeat the text, which may be a key"
)]
fn setting(text: &str) -> Result<ProviderSetting, std::convert::Infallible> {
    Ok(ProviderSetting::parse(text))
}

/// A token that debug output does not show.
#[derive(Clone)]
pub(crate) struct Token(String);

impl From<String> for Token {
    fn from(text: String) -> Token {
        Token(text)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(hidden)")
    }
}

impl Options {
    /// The sources for the loader.
    pub(crate) fn sources(&self) -> Sources {
        let token = self.token.as_ref().map(|token| token.0.clone());
        let flags = [
            ("--store", "store", self.store.clone()),
            ("--admin", "admin.listen", self.admin.clone()),
            ("--token", "admin.token", token),
            (
                "--cache-memory",
                "cache_size.memory",
                self.cache_memory.clone(),
            ),
            ("--cache-disk", "cache_size.disk", self.cache_disk.clone()),
        ];
        let given = flags
            .into_iter()
            .filter_map(|(name, path, value)| value.map(|value| Flag { name, path, value }));
        Sources {
            config: self.config.clone(),
            only_named: false,
            providers: self.provider.clone(),
            provider_dirs: self.provider_dir.clone(),
            env_file: self.env_file.clone(),
            flags: given.collect(),
            for_all_providers: Vec::new(),
            set: self.set.clone(),
            patched: Vec::new(),
        }
    }
}
