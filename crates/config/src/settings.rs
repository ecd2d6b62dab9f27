//! The blocks of a provider file that only set values: names, types and defaults in one place.
//!
//! Promises: what a file leaves out has the default that stands here, and here is the reason.
//!
//! Never: decides anything. The machines that obey these settings live in `core`.

mod health;
pub use health::{After, Health, Mode, Ramp, WhenBlocked};

use tollgate_core::time::Span;

use crate::amount::{Lifetime, Millionths};
use crate::field::{At, Setting, block, not_a_word, words};
use crate::problem::Problems;

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
    /// When a slot starts to come back.
    Hold {
        /// When the answer proves that the call arrived.
        Response = "response",
        /// When the call is sent.
        Send = "send",
    }
}

words! {
    /// What happens while the ledger cannot be reached.
    OnStoreLoss {
        /// Calls are refused: exactness before availability.
        Closed = "closed",
        /// Each node goes on with its share of the limit.
        LocalShare = "local-share",
        /// Calls go on uncounted, and each is reported.
        Open = "open",
    }
}

words! {
    /// Whether identical calls in flight share one upstream call.
    Dedup {
        /// If the answer may be cached.
        Cacheable = "cacheable",
        /// Always.
        On = "true",
        /// Never.
        Off = "off",
    }
}

words! {
    /// Joining waiting calls into one.
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
    /// Who goes first among those that wait.
    Order {
        /// The most urgent, then the oldest.
        Priority = "priority",
        /// The oldest: for providers that allow no overtaking.
        Fifo = "fifo",
    }
}

words! {
    /// By what rules an answer is kept.
    CacheMode {
        /// By the configured lifetimes.
        Ttl = "ttl",
        /// By the answer's own headers.
        Rfc9111 = "rfc9111",
    }
}

words! {
    /// Which waits add jitter to a cool-down.
    JitterOn {
        /// Those that we computed.
        Backoff = "backoff",
        /// Also those that the provider told.
        All = "all",
    }
}

words! {
    /// How urgent a call must be at most to be confined.
    Confined {
        /// Background calls.
        Low = "low",
        /// Everything but urgent calls.
        Normal = "normal",
        /// Everything.
        High = "high",
    }
}

/// How much chance is mixed into a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// None.
    None,
    /// Anything from nothing to the whole delay.
    Full,
    /// Up to this share on top.
    Additive(Millionths),
}

impl Setting for Jitter {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Jitter> {
        if let Some(share) = at.node.get("additive") {
            return Millionths::read(&at.below("additive", share), problems).map(Jitter::Additive);
        }
        match at.text(problems)?.trim() {
            "none" | "0" => Some(Jitter::None),
            "full" => Some(Jitter::Full),
            text => match crate::amount::share(text) {
                Some(share) => Some(Jitter::Additive(share)),
                None => {
                    problems.push(not_a_word(at, text, &["none", "full", "{additive: 0.3}"]));
                    None
                }
            },
        }
    }
}

block! {
    /// How often a call is tried again, by priority.
    Retries {
        /// A person waits: better a quick error.
        high: u64 = 2,
        /// Everything that says nothing.
        normal: u64 = 3,
        /// Background work has time.
        low: u64 = 5,
    }
}

block! {
    /// How many retries there may be beside first tries, so that they cannot storm.
    Budget {
        /// One retry for every five calls.
        ratio: Millionths = Millionths(200_000),
        /// And this many a second in any case, so that a quiet client can retry at all.
        min_per_second: u64 = 10,
    }
}

block! {
    /// How a failed call is tried again.
    Retry {
        /// The first delay.
        base: Span = Span::from_millis(1_500),
        /// How much longer each further delay is.
        factor: Millionths = Millionths(2_000_000),
        /// The longest delay that we compute; the provider's own is not capped.
        max: Span = Span::from_secs(30),
        /// Full: clients that failed together do not come back together.
        jitter: Jitter = Jitter::Full,
        /// Tries after the first.
        retries: Retries = Retries::default(),
        /// The share of all calls.
        budget: Budget = Budget::default(),
    }
}

block! {
    /// How long a scope rests after a refusal.
    Cooldown {
        /// The first rest.
        base: Span = Span::from_secs(1),
        /// How much longer each further rest is.
        factor: Millionths = Millionths(2_000_000),
        /// The longest rest that we compute.
        max: Span = Span::from_secs(300),
        /// Up to 30 % on top.
        jitter: Jitter = Jitter::Additive(Millionths(300_000)),
        /// Jitter only where the provider told no time of its own.
        on: JitterOn = JitterOn::Backoff,
    }
}

block! {
    /// When to serve from cache only because little is left.
    Degrade {
        /// It begins below this many.
        below: u64 = 0,
        /// It ends at this many.
        recover: u64 = 0,
    }
}

block! {
    /// When to raise an alert.
    Alerts {
        /// Below this many left. Off: what is little depends on the limit.
        critical: Option<u64> = None,
        /// Below this many left.
        warning: Option<u64> = None,
        /// Above this many refusals a minute.
        rate_429_per_minute: Option<u64> = Some(10),
        /// Below this share of answers from cache.
        cache_hit_rate: Option<Millionths> = Some(Millionths(500_000)),
    }
}

block! {
    /// Waiting for a permit.
    Queue {
        /// 1 000 calls with 2 KiB of head each are 2 MiB.
        max: u64 = 1_000,
        /// Longer than most clients wait.
        timeout: Span = Span::from_secs(60),
        /// Who goes first.
        order: Order = Order::Priority,
    }
}

block! {
    /// Keeping answers.
    Cache {
        /// By what rules.
        mode: CacheMode = CacheMode::Ttl,
        /// How long. Off: a provider's data is not ours to call old.
        ttl: Lifetime = Lifetime::Off,
        /// How long an old answer is kept for degrade mode and outages.
        stale: Span = Span::from_secs(7 * 86_400),
        /// Lifetimes follow what changes.
        adaptive: bool = false,
        /// Request headers that make another answer.
        vary: Vec<String> = Vec::new(),
    }
}

block! {
    /// How long each stage of a call may take. A flowing body is never cut.
    Timeouts {
        /// To connect.
        connect: Span = Span::from_secs(5),
        /// Until the head of the answer; also the life of an unreported permit.
        first_byte: Span = Span::from_secs(30),
        /// Between two pieces of the body.
        idle: Span = Span::from_secs(60),
    }
}

/// `timeout: 30s` is short for `timeout: {first_byte: 30s}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeout(pub Timeouts);

impl Setting for Timeout {
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
