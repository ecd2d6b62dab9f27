//! A checked provider.
//!
//! Promises: everything here is checked. Limits are rules of `core`, names have one spelling,
//! secrets are never shown.
//!
//! Never: knows how it was written.

use std::net::SocketAddr;
use std::sync::LazyLock;

use jiff::tz::TimeZone;
use tollgate_core::alert::AlertSettings;
use tollgate_core::cooldown::CooldownSettings;
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::domain::{Domain, Host, HostError};
use tollgate_core::entity::{Entities, Entity};
use tollgate_core::feedback::{Dialects, LearnedWindow};
use tollgate_core::health::HealthSettings;
use tollgate_core::limit::Rule;
use tollgate_core::retry::RetrySettings;
use tollgate_core::time::Span;

use crate::amount::Lifetime;
use crate::secret::Secret;
use crate::setting::words;
use crate::settings::{
    Cache, Confined, Cookies, Dedup, Merge, OnStoreLoss, Queue, Timeouts, Upload,
};

/// A checked provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// Its name in addresses, messages and metrics.
    pub name: String,
    /// The preset it started from.
    pub preset: Option<&'static str>,
    /// The dialect in which it reports limits; `generic` if nothing is known.
    pub dialect: String,
    /// The hosts that belong to it.
    pub domains: Vec<Domain>,
    /// The domains that its own file names, not its preset: they may be private addresses.
    pub own_domains: Vec<Domain>,
    /// An address of the gateway for this provider only.
    pub listen: Option<SocketAddr>,
    /// Where calls go, if not to the host they name.
    pub upstream: Option<Upstream>,
    /// Off: no limiting for this provider.
    pub enabled: bool,
    /// Limits that its responses state are learned from them.
    pub learn: bool,
    /// Streams ask for usage, and their clients do not see it unless they asked.
    pub inject_usage: bool,
    /// Its keys; several are a pool.
    pub keys: Vec<Secret>,
    /// Headers that are sent if the caller sends none of that name.
    pub headers: Vec<(String, Secret)>,
    /// How a key is attached.
    pub auth: Auth,
    /// Where calls or logins go was changed at run time: the secrets belong to the former host and
    /// are not sent.
    pub withholds_keys: bool,
    /// Every limit, in the order of the file.
    pub limits: Vec<Limit>,
    /// What calls cost in units other than calls.
    pub costs: Vec<Cost>,
    /// Calls at a time.
    pub concurrency: Option<Concurrency>,
    /// Connections to the upstream.
    pub connections: u64,
    /// Nobody has written that number: it may grow while calls wait for nothing else.
    pub connections_may_grow: bool,
    /// How long a request takes from its last byte to the provider's limiter, at least.
    pub arrive_within: Span,
    /// How long an abandoned call may still arrive, at least.
    pub late_arrival: Span,
    /// Statuses that the provider does not count.
    pub free_status: Vec<u16>,
    /// How the entity of a call is found.
    pub entities: Entities,
    /// Lifetimes of entities.
    pub entity_ttl: Vec<(Entity, Lifetime)>,
    /// `dedup` by entity.
    pub entity_dedup: Vec<(Entity, Dedup)>,
    /// Caching of responses.
    pub cache: Cache,
    /// Whether identical calls in flight share one upstream call.
    pub dedup: Dedup,
    /// Merging of waiting calls.
    pub merge: Merge,
    /// Waiting for a permit.
    pub queue: Queue,
    /// When background work may run.
    pub off_peak: Option<OffPeak>,
    /// Retries of failed calls.
    pub retry: RetrySettings,
    /// Cool-down after a 429.
    pub cooldown: CooldownSettings,
    /// Serving from cache only when few calls remain.
    pub degrade: Option<DegradeSettings>,
    /// When to raise an alert.
    pub alerts: AlertSettings,
    /// How long each stage of a call may take.
    pub timeouts: Timeouts,
    /// What becomes of its cookies.
    pub cookies: Cookies,
    /// Reading of request bodies before the permit is asked for.
    pub upload: Upload,
    /// The methods that calls may have; `None` = all but TRACE and CONNECT.
    pub methods: Option<Vec<String>>,
    /// Links in responses lead back through the gateway.
    pub rewrite_links: bool,
    /// Guards on callers, when the upstream is the user's own service.
    pub guards: Vec<String>,
    /// What happens while the ledger cannot be reached.
    pub on_store_loss: OnStoreLoss,
    /// The health state machine.
    pub health: HealthSettings,
}

/// The methods that `Allow` names where no file lists them. Others pass too, except TRACE and
/// CONNECT.
pub const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The dialects that `core` knows, made once: that takes nine million instructions.
pub(crate) static DIALECTS: LazyLock<Dialects> = LazyLock::new(Dialects::built_in);

/// The limits that responses in this dialect state.
pub(crate) fn learned_limits(dialect: &str) -> Vec<LearnedWindow> {
    let known = DIALECTS.get(dialect);
    known.map_or_else(Vec::new, |known| known.learned().to_vec())
}

impl Provider {
    /// The limits that are learned from its responses, if `learn` is on.
    #[must_use]
    pub fn learned_limits(&self) -> Vec<LearnedWindow> {
        match self.learn {
            true => learned_limits(&self.dialect),
            false => Vec::new(),
        }
    }

    /// Whether calls may have this method.
    #[must_use]
    pub fn allows_method(&self, method: &str) -> bool {
        match &self.methods {
            Some(methods) => methods.iter().any(|allowed| allowed == method),
            None => !matches!(method, "TRACE" | "CONNECT"),
        }
    }

    /// The methods that calls may have, as in the header `Allow`.
    #[must_use]
    pub fn allowed_methods(&self) -> String {
        match &self.methods {
            Some(methods) => methods.join(", "),
            None => METHODS.to_owned(),
        }
    }

    /// Whether the provider's own file names this host.
    #[must_use]
    pub fn names_host(&self, host: &Host) -> bool {
        self.own_domains.iter().any(|domain| domain.matches(host))
    }

    /// The wildcard domain (`*.example.org`) of a provider with no exact domain and no upstream.
    #[must_use]
    pub fn wildcard_only_domain(&self) -> Option<&Domain> {
        let is_somewhere =
            self.upstream.is_some() || self.domains.iter().any(|domain| !domain.is_wildcard());
        self.domains.first().filter(|_| !is_somewhere)
    }

    /// Whether its key may be sent to this host. A host that only `*.example.org` matches may be
    /// somebody else's.
    #[must_use]
    pub fn may_receive_key(&self, host: &Host) -> bool {
        let mut domains = self.domains.iter();
        domains.any(|domain| !domain.is_wildcard() && domain.matches(host))
    }
}

impl Upstream {
    /// The address of a URL, from its parts.
    pub fn new(tls: bool, authority: &str, base: &str) -> Result<Upstream, HostError> {
        let port = authority
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        Ok(Upstream {
            tls,
            host: Host::parse(authority)?,
            port: port.unwrap_or(if tls { 443 } else { 80 }),
            base: base.to_owned(),
        })
    }

    /// The part of a URL's path below the base; `None` if the path is not below it. A URL on the
    /// upstream's own host already contains the base.
    #[must_use]
    pub fn path_below_base<'a>(&self, host: &Host, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(&self.base)?;
        (self.host == *host && rest.starts_with('/')).then_some(rest)
    }

    /// Rewrites an address of the provider's domains to this upstream.
    #[must_use]
    pub fn rewrite(&self, to: &Upstream) -> Upstream {
        let below = self.path_below_base(&to.host, &to.base).unwrap_or(&to.base);
        Upstream {
            base: format!("{}{below}", self.base),
            ..self.clone()
        }
    }
}

words! {
    /// What a limit is counted per.
    Per {
        /// All calls together.
        Provider = "provider",
        /// Each key.
        ApiKey = "api_key",
        /// Each entity.
        Entity = "entity",
        /// Each caller.
        Caller = "caller",
        /// Each address of a caller.
        Ip = "ip",
        /// Each host that is called.
        Host = "host",
    }
}

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Its name in every error.
    pub name: String,
    /// How it counts.
    pub rule: Rule,
    /// What it is counted per.
    pub per: Per,
    /// The part that only high-priority calls may use.
    pub reserve: u64,
    /// What it counts, in the provider's word: `calls`, `input_tokens`, `points`.
    pub unit: String,
}

/// What a call costs in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The unit: `tokens`.
    pub unit: String,
    /// Request fields that hold the expected cost; the first that is present counts.
    pub before: Vec<String>,
    /// The size of the prompt is added, and what completions used stands for a bound that the
    /// request does not state.
    pub prompt: bool,
    /// The cost that is held if none is present.
    pub otherwise: u64,
    /// The response fields whose sum is the actual cost; empty: it is not reported.
    pub after: Vec<String>,
}

/// Calls at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// For all calls together.
    pub rule: Rule,
    /// How many of them may be background work.
    pub low: u64,
}

/// Where calls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Over TLS.
    pub tls: bool,
    /// To this host.
    pub host: Host,
    /// At this port.
    pub port: u16,
    /// Below this path; empty or without a slash at the end.
    pub base: String,
}

/// When background work may run.
#[derive(Clone, Debug, PartialEq)]
pub struct OffPeak {
    /// From this minute of the day.
    pub from_minute: u16,
    /// To this one; before `from_minute` if it runs over midnight.
    pub to_minute: u16,
    /// The time zone of both.
    pub zone: TimeZone,
    /// The calls it applies to: this priority and below.
    pub applies_to: Confined,
}

/// How a key is attached to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Auth {
    /// How the key is attached.
    pub style: AuthStyle,
    /// Tollgate's key replaces the client's; otherwise the client's own wins.
    pub replace: bool,
    /// Further keys, sent the same way under their own names.
    pub also: Vec<(String, Secret)>,
}

/// A way to attach a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AuthStyle {
    /// Not at all: no way is known, or the client signs its calls.
    #[default]
    None,
    /// As a query parameter.
    Query {
        /// Its name.
        name: String,
    },
    /// As a header.
    Header {
        /// Its name.
        name: String,
        /// Text before the key, such as `Bot `.
        prefix: String,
    },
    /// As `Authorization: Bearer`.
    Bearer,
    /// As `Authorization: Basic`; the key is `user:password`.
    Basic,
    /// By an OAuth 2 token.
    OAuth2(OAuth2),
    /// By a token from the provider's own login.
    Login(Login),
}

/// OAuth 2: a token for an id and a secret.
#[derive(Clone, Debug, PartialEq)]
pub struct OAuth2 {
    /// The token endpoint.
    pub token_url: Upstream,
    /// The client id.
    pub client_id: Secret,
    /// The client secret.
    pub client_secret: Secret,
    /// The scope to request.
    pub scope: Option<String>,
    /// The refresh token.
    pub refresh_token: Option<Secret>,
    /// How id and secret are sent.
    pub client_auth: ClientAuth,
}

words! {
    /// How the id and the secret of OAuth 2 are sent (RFC 6749, 2.3.1).
    ClientAuth {
        /// As `basic`; where that is rejected, as `body` from then on.
        Auto = "auto",
        /// As `Authorization: Basic`.
        Basic = "basic",
        /// In the form that is posted.
        Body = "body",
    }
}

/// A login of the provider's own: a body is posted, a token comes back.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    /// The login endpoint.
    pub url: Upstream,
    /// The JSON or form that is posted; `{api_key}` stands for the key in use.
    pub body: Secret,
    /// The response field that holds the token.
    pub token: String,
    /// How long a token is valid.
    pub lifetime: Span,
    /// How long before it expires a new token is fetched.
    pub refresh_before: Span,
}
