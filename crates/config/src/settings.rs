//! The blocks of a provider file that only set values: names, types and defaults in one place.
//!
//! Promises: a field that a file leaves out has the default that is set here, with its reason.
//!
//! Never: decides anything. The state machines that use these settings are in `core`.

mod health;
pub(crate) use health::Health;

use tollgate_core::alert::AlertSettings;
use tollgate_core::backoff::Jitter;
use tollgate_core::cooldown::{CooldownSettings, JitterOn};
use tollgate_core::degrade::DegradeSettings;
use tollgate_core::ratio::Ppm;
use tollgate_core::retry::{BudgetSettings, Retries, RetrySettings};
use tollgate_core::time::Span;

use crate::amount::{ByteRate, Lifetime, Size};
use crate::field::At;
use crate::problem::Problems;
use crate::setting::{Setting, block, not_a_word, words};
use crate::shape::{Field, Shape, no_default};

words! {
    /// How a limit counts.
    Algorithm {
        /// N in any period.
        Sliding = "sliding-window",
        /// N per period on average, `burst` at once.
        Bucket = "token-bucket",
        /// N per window that opens with the first call.
        Fixed = "fixed-window",
        /// N per minute, hour, day, week or month of a time zone.
        Calendar = "calendar",
        /// N per period, evenly spaced.
        Paced = "paced",
    }
}

words! {
    /// When a slot starts to become free again.
    Hold {
        /// When the response proves that the call arrived, or `arrive_within` after its last byte
        /// has left.
        Arrived = "arrived",
        /// When the response proves that the call arrived.
        Response = "response",
        /// When the call is sent.
        Send = "send",
    }
}

words! {
    /// What happens while the ledger cannot be reached.
    OnStoreLoss {
        /// Calls are rejected: exactness before availability.
        Closed = "closed",
        /// Each node continues with its share of the limit.
        LocalShare = "local-share",
        /// Calls continue uncounted, and each is reported.
        Open = "open",
    }
}

words! {
    /// Whether identical calls in flight share one upstream call.
    Dedup {
        /// If the response may be cached.
        Cacheable = "cacheable",
        /// Always.
        On = "true",
        /// Never.
        Off = "off",
    }
}

words! {
    /// What becomes of a provider's cookies, which all have the gateway's address.
    Cookies {
        /// Their paths fit the address, and their names say whose they are.
        Rewrite = "rewrite",
        /// Nothing.
        Pass = "pass",
        /// They are removed, in both directions.
        Drop = "drop",
    }
}

words! {
    /// Merging waiting calls into one.
    Merge {
        /// No.
        Off = "off",
        /// TMDB's `append_to_response`.
        TmdbAppend = "tmdb-append",
        /// TheTVDB's `/extended`.
        TvdbExtended = "tvdb-extended",
    }
}

words! {
    /// Which waiting call goes first.
    Order {
        /// The highest priority, then the oldest.
        Priority = "priority",
        /// The oldest: for providers that allow no overtaking.
        Fifo = "fifo",
    }
}

words! {
    /// The rules by which a response is cached.
    CacheMode {
        /// By the configured lifetimes.
        Ttl = "ttl",
        /// By the response's own headers.
        Rfc9111 = "rfc9111",
    }
}

words! { for JitterOn { Backoff = "backoff", All = "all", } }

words! {
    /// The highest priority that off-peak hours apply to.
    Confined {
        /// Background calls.
        Low = "low",
        /// All but high-priority calls.
        Normal = "normal",
        /// Everything.
        High = "high",
    }
}

/// How a delay is randomised.
impl Setting for Jitter {
    const SHAPE: Shape = Shape::Either(&[
        Shape::Words(&["none", "full"]),
        Shape::Decimal,
        Shape::Block(&[Field::new(
            "additive",
            "adds a random time of up to this share of the delay",
            Shape::Decimal,
            no_default,
        )]),
    ]);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Jitter> {
        if let Some(share) = at.node.get("additive") {
            return Ppm::read(&at.below("additive", share), problems).map(Jitter::Additive);
        }
        match at.text(problems)?.trim() {
            "none" | "0" => Some(Jitter::None),
            "full" => Some(Jitter::Full),
            text => match crate::amount::share(text) {
                Some(share) => u32::try_from(share.0)
                    .ok()
                    .map(|share| Jitter::Additive(Ppm(share))),
                None => {
                    problems.push(not_a_word(at, text, &["none", "full", "{additive: 0.3}"]));
                    None
                }
            },
        }
    }

    fn written(&self) -> String {
        match self {
            Jitter::None => "none".to_owned(),
            Jitter::Full => "full".to_owned(),
            Jitter::Additive(share) => format!("{{additive: {share}}}"),
        }
    }
}

block! {
    for Retries {
        /// for high-priority calls; few, because a person waits
        high(high): u32,
        /// for normal-priority calls
        normal(normal): u32,
        /// for low-priority calls; more, because they can wait
        low(low): u32,
    }
}

block! {
    for BudgetSettings {
        /// how many retries are allowed, as a share of calls
        ratio(ratio): Ppm,
        /// retries a second that are always allowed
        min_per_second(min_per_second): u32,
    }
}

block! {
    for RetrySettings {
        /// the first delay
        base(backoff.base): Span,
        /// factor by which each further delay is longer
        factor(backoff.factor): Ppm,
        /// the longest delay that Tollgate computes; a delay that the provider asks for is not capped
        max(backoff.max): Span,
        /// how delays are randomised, so that calls that failed together are not retried together
        jitter(backoff.jitter): Jitter,
        /// retries after the first attempt, by priority
        retries(retries): Retries,
        /// retries after a response timeout, whatever the priority: each repeats the whole work at the provider
        timeouts(timeouts): u32,
        /// limits the number of retries
        budget(budget): BudgetSettings,
    }
}

block! {
    for CooldownSettings {
        /// the first cool-down
        base(backoff.base): Span,
        /// factor by which each further cool-down is longer
        factor(backoff.factor): Ppm,
        /// the longest cool-down that Tollgate computes
        max(backoff.max): Span,
        /// random time that is added
        jitter(backoff.jitter): Jitter,
        /// `backoff` = jitter only if the provider sent no time; `all` = always
        on(on): JitterOn,
    }
}

/// Serving from cache only because few calls remain. `recover` has no fixed default: it is twice
/// `below`, within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Degrade {
    pub(crate) below: u64,
    pub(crate) recover: Option<u64>,
}

impl Setting for Degrade {
    const SHAPE: Shape = Shape::Block(&[
        Field::new(
            "below",
            "degrade mode begins when fewer calls than this remain",
            Shape::Integer,
            no_default,
        ),
        Field::new(
            "recover",
            "degrade mode ends when this many calls remain; default: twice `below`",
            Shape::Integer,
            no_default,
        ),
    ]);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Degrade> {
        let fields = crate::field::Fields::open(at, &["below", "recover"], problems)?;
        if fields.get("below").is_none() {
            problems.push(at.error("`below` is missing", "write `below: 200`, or `off`"));
        }
        let recover = fields.read("recover", problems);
        Some(Degrade {
            below: fields.read("below", problems)?,
            recover,
        })
    }
}

impl Degrade {
    /// Sets `recover`: twice `below`, but never above the smallest limit.
    pub(crate) fn settings(self, smallest: Option<u64>) -> DegradeSettings {
        let twice = self.below.saturating_mul(2);
        let within = smallest.map_or(twice, |most| twice.min(most.max(self.below)));
        DegradeSettings {
            below: self.below,
            recover: self.recover.unwrap_or(within),
        }
    }
}

block! {
    for AlertSettings {
        /// alert if fewer calls than this remain; off by default, because the right number depends on the limit
        critical(critical): Option<u64>,
        /// alert if fewer calls than this remain
        warning(warning): Option<u64>,
        /// alert if there are more 429s than this in a minute
        rate_429_per_minute(rate_429_per_minute): Option<u64>,
        /// alert if the share of cache hits is lower than this
        cache_hit_rate(cache_hit_rate): Option<Ppm>,
    }
}

block! {
    /// Waiting for a permit.
    Queue {
        /// how many calls may wait; 1000 calls with a request head of 2 KiB each need 2 MiB
        max: u64 = 1_000,
        /// how long a call may wait, if it has no timeout of its own
        timeout: Span = Span::from_secs(60),
        /// `priority` = the highest priority first, then the oldest call; `fifo` = the oldest call first
        order: Order = Order::Priority,
    }
}

block! {
    /// Caching of responses.
    Cache {
        /// `ttl` = by the configured lifetimes; `rfc9111` = by the response's own headers
        mode: CacheMode = CacheMode::Ttl,
        /// how long responses are cached; off by default, because only you know how old the data may be
        ttl: Lifetime = Lifetime::Off,
        /// how long an expired response stays in the cache, for degrade mode and outages
        stale: Span = Span::from_secs(7 * 86_400),
        /// lifetimes adapt to how often responses change
        adaptive: bool = false,
        /// request headers that are part of the cache key
        vary: Vec<String> = Vec::new(),
        /// how long a 404 or 410 is cached in ttl mode; off by default, because the item may appear at any moment
        negative: Span = Span::ZERO,
        /// conditions that normally prevent caching, and that Tollgate ignores; the credential is always part of the cache key
        ignore: Vec<CacheIgnore> = Vec::new(),
        /// the largest body that is cached; at most 8MiB
        max_object: Size = Size(8 << 20),
    }
}

words! {
    /// A condition that prevents caching of a response, unless it is ignored.
    CacheIgnore {
        /// `Cache-Control: private`.
        Private = "private",
        /// `Cache-Control: no-store`.
        NoStore = "no-store",
        /// `Set-Cookie`; the cookie itself is never cached.
        SetCookie = "set-cookie",
        /// The caller's own `Authorization`.
        Authorization = "authorization",
    }
}

block! {
    /// How long each stage of a call may take. A flowing body is never cut.
    Timeouts {
        /// to connect
        connect: Span = Span::from_secs(5),
        /// until the response head arrives; also how long a permit is valid if its result is not reported
        first_byte: Span = Span::from_secs(30),
        /// between two chunks of the body; also between two server-sent events, so a provider that sends none for longer needs more
        idle: Span = Span::from_secs(60),
        /// how long a WebSocket or other upgraded connection may be silent in both directions
        tunnel: Span = Span::from_secs(3_600),
    }
}

block! {
    /// Reading of request bodies before the permit is asked for.
    Upload {
        /// how much of a body is read before the permit is asked for: the first 256KiB to memory, more to a temporary file; a larger body is streamed from there on
        spool: Size = Size(64 << 20),
        /// an upload may take ten seconds, and one more for every so many bytes; a slower one gets 408; `0B/s` = no minimum
        min_rate: ByteRate = ByteRate(1 << 10),
    }
}

/// `timeout: 30s` is short for `timeout: {first_byte: 30s}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeout(pub Timeouts);

impl Setting for Timeout {
    const SHAPE: Shape = Shape::Either(&[Shape::Duration, Timeouts::SHAPE]);

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Timeout> {
        if at.node.text().is_none() {
            return Timeouts::read(at, problems).map(Timeout);
        }
        let first_byte = Span::read(at, problems)?;
        Some(Timeout(Timeouts {
            first_byte,
            ..Timeouts::default()
        }))
    }
}
