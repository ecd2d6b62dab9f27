//! Decides whether a response may be stored, and whether a stored one may be used.
//!
//! Two modes: `ttl`, where the configured lifetimes decide, and `rfc9111`, where the response's own
//! headers decide, as for every shared cache on the web.
//!
//! Promises: everything that a lookup needs is computed once, when the response is stored
//! ([`Freshness`]): a lookup only compares times. A stale response is not evicted because it is
//! stale: the decision says whether it may be served while the provider is unavailable.
//!
//! Never: reads a clock, or knows where responses are stored.

mod adapt;
mod control;
mod fields;
mod storable;
mod range;
mod validate;
mod vary;

pub use adapt::{ContentChange, adapted, lengthened, spread};
pub use control::CacheControl;
pub use fields::{Headers, http_date, is_connection_only, is_hop_by_hop};
pub use range::{ByteRange, requested_range};
pub use storable::{Ignore, Lifetime, NotStored, ResponseTimes, StoreCandidate, check_storable};
pub use validate::{is_not_modified, is_other_representation, is_replaced_by_304};
pub use vary::{Varies, variant_text, varies};

use crate::time::{Span, Wall};

/// The latest time used here: 285 years after 1970, and small enough for every store.
pub const FOREVER: Wall = Wall((1 << 53) - 1);

/// What decides how long a response is fresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreshnessMode {
    /// The configuration.
    #[default]
    Ttl,
    /// The response's own headers (RFC 9111).
    Rfc9111,
}

/// How responses of one provider, or of one of its entities, are cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreshnessRule {
    /// What decides how long.
    pub mode: FreshnessMode,
    /// How long, in `ttl` mode.
    pub lifetime: Lifetime,
    /// How long after that a response may be served while the provider is unavailable.
    pub stale: Span,
    /// How long a 404 or 410 is stored, in `ttl` mode; zero = not at all.
    pub negative: Span,
    /// Request headers that select a variant, in addition to the response's `Vary`. In lower case.
    pub vary: Vec<String>,
    /// Reasons not to store a response that this rule ignores.
    pub ignore: Ignore,
}

impl FreshnessRule {
    /// Is anything stored at all?
    #[must_use]
    pub fn is_on(&self) -> bool {
        match (self.mode, self.lifetime) {
            (FreshnessMode::Rfc9111, _) => true,
            (FreshnessMode::Ttl, Lifetime::Off) => false,
            (FreshnessMode::Ttl, Lifetime::For(_) | Lifetime::Between(..) | Lifetime::Forever) => {
                true
            }
        }
    }
}

impl FreshnessRule {
    /// The freshness of a response stored under an earlier rule, capped to what this rule allows.
    #[must_use]
    pub fn limit_lifetime(&self, freshness: Freshness, status: u16, stored: Wall) -> Freshness {
        let most = match self.mode {
            FreshnessMode::Rfc9111 => return freshness,
            FreshnessMode::Ttl if storable::is_not_found(status) => self.negative,
            FreshnessMode::Ttl => match self.lifetime {
                Lifetime::Off => Span::ZERO,
                Lifetime::For(most) | Lifetime::Between(_, most) => most,
                Lifetime::Forever => return freshness,
            },
        };
        if freshness.lifetime <= most {
            return freshness;
        }
        let stale = if storable::is_not_found(status) {
            Span::ZERO
        } else {
            self.stale
        };
        freshness.with_lifetime(stored, most, stale)
    }
}

/// The freshness of a stored response. All times are wall-clock times, because they outlive the
/// process and other processes read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When its age was zero.
    pub generated_at: Wall,
    /// Until when it is fresh.
    pub fresh_until: Wall,
    /// Until when it may be served while a refresh runs in the background.
    pub revalidate_until: Wall,
    /// Until when it may be served while the provider is unavailable.
    pub stale_until: Wall,
    /// It must be revalidated before each use.
    pub always_revalidate: bool,
    /// It must never be served stale.
    pub must_revalidate: bool,
    /// Its chosen lifetime, which adapts.
    pub lifetime: Span,
}

/// What a request demands of cached responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Revalidate first.
    pub no_cache: bool,
    /// Do not store the response.
    pub no_store: bool,
    /// Do not call the provider.
    pub only_if_cached: bool,
    /// No older than this.
    pub max_age: Option<Span>,
    /// Fresh for at least this much longer.
    pub min_fresh: Option<Span>,
    /// Stale by at most this.
    pub max_stale: Option<Span>,
}

/// What to do with a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshnessDecision {
    /// Serve it.
    Fresh,
    /// Serve it and mark it as stale.
    Stale {
        /// Refresh it in the background.
        refresh: bool,
    },
    /// Call the provider first.
    Fetch {
        /// If the provider is unavailable or fails, the stored response may be served.
        fallback: bool,
    },
}

impl Demand {
    /// What a request's headers demand. In `ttl` mode only `no-store` counts: clients send
    /// `no-cache` by habit, and a call that must bypass the cache has its own option.
    #[must_use]
    pub fn read(mode: FreshnessMode, headers: &impl Headers) -> Demand {
        let control = CacheControl::read("cache-control", headers);
        if mode == FreshnessMode::Ttl {
            return Demand {
                no_store: control.no_store,
                ..Demand::default()
            };
        }
        let old_style = !control.is_present && fields::has_token(headers, "pragma", "no-cache");
        Demand {
            no_cache: control.no_cache || old_style,
            no_store: control.no_store,
            only_if_cached: control.only_if_cached,
            max_age: control.max_age,
            min_fresh: control.min_fresh,
            max_stale: control.max_stale,
        }
    }
}

impl Freshness {
    /// How old it is.
    #[must_use]
    pub fn age(&self, now: Wall) -> Span {
        now.since(self.generated_at)
    }

    /// May it be used?
    #[must_use]
    pub fn decide(&self, demand: &Demand, now: Wall) -> FreshnessDecision {
        let fallback = !self.must_revalidate && !self.always_revalidate && now < self.stale_until;
        let fetch = FreshnessDecision::Fetch { fallback };
        if demand.no_cache {
            return FreshnessDecision::Fetch { fallback: false };
        }
        if self.always_revalidate {
            return fetch;
        }
        let remaining = self.fresh_until.since(now);
        let is_too_old = demand.max_age.is_some_and(|most| self.age(now) > most);
        if is_too_old || demand.min_fresh.is_some_and(|least| remaining < least) {
            // A client that demands a newer response prefers to wait.
            return FreshnessDecision::Fetch { fallback: false };
        }
        if now < self.fresh_until {
            return FreshnessDecision::Fresh;
        }
        if self.must_revalidate {
            return fetch;
        }
        let old_by = now.since(self.fresh_until);
        if demand.max_stale.is_some_and(|most| old_by <= most) {
            return FreshnessDecision::Stale { refresh: false };
        }
        if now < self.revalidate_until {
            return FreshnessDecision::Stale { refresh: true };
        }
        fetch
    }

    /// The same response with another lifetime, counted from when it was received.
    #[must_use]
    pub fn with_lifetime(self, received: Wall, lifetime: Span, stale: Span) -> Freshness {
        let fresh_until = (received + lifetime).min(FOREVER);
        Freshness {
            fresh_until,
            revalidate_until: fresh_until,
            stale_until: (fresh_until + stale).min(FOREVER),
            lifetime,
            ..self
        }
    }

    /// May it be served while the provider is unavailable?
    #[must_use]
    pub fn may_serve_stale(&self, now: Wall) -> bool {
        !self.must_revalidate
            && !self.always_revalidate
            && now < self.stale_until.max(self.fresh_until)
    }
}

#[cfg(test)]
mod tests;
