//! The whole checked configuration: tollgate.yaml, flags, environment and every provider.
//!
//! Promises: everything here is checked. What a file leaves out has the default of the
//! documentation.
//!
//! Never: knows how it was written. [`crate::load`] does, and reports who set which value.

pub(crate) mod check;
pub(crate) mod guard;
pub(crate) mod store;
pub(crate) mod table;

pub use check::state_dir;
pub use guard::{Guard, GuardKey, Match, Task};
pub use store::Store;
pub use table::CONFIG;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tollgate_core::ask::Priority;
use tollgate_core::domain::{Domain, DomainTable};
use tollgate_core::ratio::Ppm;
use tollgate_core::time::Span;

use crate::amount::Size;
use crate::field::At;
use crate::load::{Loaded, Sources};
use crate::problem::Problems;
use crate::provider::{Provider, Upstream};
use crate::secret::{Environment, Secret};
use crate::setting::{Setting, block, parse_address, read_text, words};
use crate::shape::Shape;

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the gateway and the proxy listen.
    pub listen: SocketAddr,
    /// The admin address.
    pub admin: Admin,
    /// Where the Redis protocol is spoken; `None` = nowhere.
    pub resp: Option<ListenOn>,
    /// The folder for everything that survives a restart.
    pub state_dir: String,
    /// Where permits are counted.
    pub store: Store,
    /// How Postgres is used.
    pub postgres: Postgres,
    /// Where responses are cached; `None` = in the folder of the ledger, or in memory with it.
    pub cache_store: Option<Store>,
    /// Size of the response cache.
    pub cache_size: CacheSize,
    /// Where guards count.
    pub guard_store: Store,
    /// Processes or hosts that share the limits, for `memory:` and `on_store_loss: local-share`.
    pub nodes: u32,
    /// How long a node's registration is valid.
    pub node_lease: Span,
    /// Connections of callers.
    pub connections_max: u64,
    /// Memory for all bodies under way.
    pub body_memory: Size,
    /// The providers of the files, in their order.
    pub providers: Vec<Arc<Provider>>,
    /// Built-in providers of domains that no file claims (`presets: auto`).
    pub built_in: Vec<Arc<Provider>>,
    /// What is done with `CONNECT`.
    pub intercept: Intercept,
    /// Callers that are known by name.
    pub callers: Vec<Caller>,
    /// Prefix of the variables that set thresholds.
    pub env_prefix: String,
    /// What happens to calls to hosts of no provider.
    pub unknown_domain: UnknownDomain,
    /// Whether guards reject.
    pub limiting: Limiting,
    /// Limits on callers.
    pub guards: Vec<Guard>,
    /// Path prefixes that guards do not check.
    pub exempt_paths: Vec<String>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<Network>,
    /// Scheduled fetches of sources.
    pub scheduler: Scheduler,
    /// Where alerts are sent.
    pub webhooks: Vec<Webhook>,
    /// The log.
    pub log: Log,
    /// Metrics.
    pub metrics: Metrics,
}

impl Config {
    /// Reads and checks everything. Warnings and notes come with what is loaded; errors come alone.
    pub fn load(sources: &Sources, environment: &Environment<'_>) -> Result<Loaded, Problems> {
        crate::load::load(sources, environment)
    }

    /// The valid settings of tollgate.yaml, variables and flags, with no provider. Clients find the
    /// daemon by them although one of its files is broken.
    #[must_use]
    pub fn without_providers(sources: &Sources, environment: &Environment<'_>) -> Config {
        crate::load::without_providers(sources, environment)
    }

    /// The provider of a name, the files' before the built-in ones.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Arc<Provider>> {
        self.all_providers().find(|provider| provider.name == name)
    }

    /// Every provider, the files' before the built-in ones.
    pub fn all_providers(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.providers.iter().chain(&self.built_in)
    }

    /// Which provider a host belongs to; the most specific domain wins (H4).
    #[must_use]
    pub fn by_domain(&self) -> DomainTable<Arc<Provider>> {
        let mut table = DomainTable::default();
        let own = |provider: &Arc<Provider>| -> Vec<(Domain, Arc<Provider>)> {
            let each = provider.domains.iter().cloned();
            each.map(|domain| (domain, provider.clone())).collect()
        };
        for (domain, provider) in self.all_providers().flat_map(own) {
            // A domain of a file stays the file's: built-in providers come second.
            table.insert(&domain, provider).ok();
        }
        table
    }
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenOn {
    /// An address.
    Address(SocketAddr),
    /// A socket at this path.
    Unix(String),
}

impl Setting for ListenOn {
    const SHAPE: Shape = Shape::Text;

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<ListenOn> {
        let what = "is neither an address with a port nor `unix:PATH`";
        let remedy = "write `127.0.0.1:6380` or `unix:/run/tollgate/resp.sock`";
        read_text(at, problems, ListenOn::parse, what, remedy)
    }

    fn written(&self) -> String {
        self.to_string()
    }
}

impl ListenOn {
    /// An address, or `unix:PATH`.
    fn parse(text: &str) -> Option<ListenOn> {
        match text.strip_prefix("unix:") {
            Some(path) => (!path.is_empty()).then(|| ListenOn::Unix(path.to_owned())),
            None => parse_address(text).map(ListenOn::Address),
        }
    }
}

impl fmt::Display for ListenOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenOn::Address(address) => address.fmt(f),
            ListenOn::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// The admin address.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The token that callers must send; `None` = loopback only.
    pub token: Option<Secret>,
}

block! {
    /// Size of the response cache.
    CacheSize {
        /// in memory; at least 1MiB
        memory: Size = Size(64 << 20),
        /// on disk, in `cache.db`, or in Redis; at least 1MiB
        disk: Size = Size(1 << 30),
    }
}

impl CacheSize {
    /// A smaller cache would hold next to nothing, so it is surely a mistake.
    pub const MIN: Size = Size(1 << 20);
}

words! {
    /// How Postgres counts.
    PostgresMode {
        /// Every permit is committed: nothing is lost.
        Strict = "strict",
        /// Counts are written periodically.
        Snapshot = "snapshot",
    }
}

block! {
    /// How Postgres is used.
    Postgres {
        /// `strict` commits every permit; `snapshot` writes counts periodically
        mode: PostgresMode = PostgresMode::Strict,
        /// how often a snapshot is written
        every: Span = Span::from_secs(10),
    }
}

words! {
    /// Whether known domains get their preset with no file.
    Presets {
        /// They do.
        Auto = "auto",
        /// Only files count.
        Off = "off",
    }
}

words! {
    /// What is done with `CONNECT`.
    Intercept {
        /// Configured domains are opened with the local CA, others are tunnelled or rejected.
        Configured = "configured",
        /// Nothing is opened.
        Off = "off",
    }
}

words! {
    /// What happens to calls to hosts of no provider.
    UnknownDomain {
        /// They go on without limits.
        Allow = "allow",
        /// They are rejected.
        Refuse = "refuse",
    }
}

words! {
    /// Whether guards reject.
    Limiting {
        /// They do.
        On = "on",
        /// They are not checked.
        Off = "off",
        /// They count and report, but reject nothing.
        Shadow = "shadow",
    }
}

words! { for Priority { High = "high", Normal = "normal", Low = "low", } }

/// A caller that is known by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    /// Its name.
    pub name: String,
    /// The highest priority it may use, and its priority if a call names none.
    pub priority: Priority,
    /// The share that is guaranteed to it.
    pub at_least: Option<Ppm>,
    /// The share that it never exceeds.
    pub at_most: Option<Ppm>,
    /// The token that authenticates this caller.
    pub token: Option<Secret>,
    /// The guards that it may take tokens of; `None` = all if it is the only caller with a token, else none.
    pub guards: Option<Vec<String>>,
}

/// A network such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address of it.
    pub address: IpAddr,
    /// The length of the network prefix in bits.
    pub bits: u8,
}

impl Network {
    /// Whether it contains an address. An IPv4 address written as IPv6 is the same address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32_u8),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        let ((ours, family), (theirs, other)) = (bits(self.address), bits(address));
        let shift = 128_u32.saturating_sub(u32::from(self.bits));
        let same = |value: u128| value.checked_shr(shift).unwrap_or(0);
        family == other && same(ours) == same(theirs)
    }

    pub(crate) fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u8 = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Network { address, bits })
    }
}

block! {
    /// Scheduled fetches of sources.
    Scheduler {
        /// how often the scheduler checks for due sources
        cycle: Span = Span::from_secs(1),
        /// sources that are fetched concurrently; 0: none, a scheduler of your own fetches them
        workers: u32 = 4,
    }
}

/// A receiver of alerts.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// Where alerts are posted.
    pub url: Upstream,
    /// The key of the HMAC signature.
    pub secret: Option<Secret>,
}

words! {
    /// The format of log lines.
    LogFormat {
        /// `key=value`.
        Logfmt = "logfmt",
        /// JSON.
        Json = "json",
        /// For people.
        Pretty = "pretty",
    }
}

block! {
    /// The log.
    Log {
        /// format of the lines
        format: LogFormat = LogFormat::Logfmt,
        /// the file that lines go to instead of standard error
        file: Option<String> = None,
        /// size at which the file is rotated
        max_size: Size = Size(50 << 20),
        /// rotated files to keep
        keep: u32 = 5,
        /// one line for every call: method, path without query, status, source, wait, attempts, id
        access: bool = false,
    }
}

/// Metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Prefix of metric names.
    pub prefix: String,
    /// Where NDJSON goes: a path, or `-` for standard output.
    pub ndjson: Option<String>,
    /// How often NDJSON is written.
    pub every: Span,
    /// The token that readers must send; `None` = open.
    pub token: Option<Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_own_addresses_only() {
        let holds = |network: &str, address: &str| {
            let network = Network::parse(network).unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.8"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("2001:db8::/32", "10.0.0.1"));
        assert!(holds("0.0.0.0/0", "203.0.113.9") && !holds("0.0.0.0/0", "2001:db8::1"));
        for wrong in ["10.0.0.0/33", "x", "10.0.0.0/-1", "::/129", ""] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }
}
