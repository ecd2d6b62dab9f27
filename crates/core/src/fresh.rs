//! May an answer that was kept be used again, and may a new one be kept?
//!
//! Two modes: `ttl`, where the configured lifetimes decide, and `rfc9111`, where the answer's own
//! headers do, as for every shared cache on the web.
//!
//! Promises: everything that a later look needs is worked out once, when the answer is kept
//! ([`Freshness`]): a look only compares times. Old answers are not thrown away because they are old:
//! whether they may stand in for a provider that cannot be asked is part of the decision.
//!
//! Never: reads a clock, or knows where answers are kept.

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

/// As late as any time here: 285 years after 1970, and small enough for every store.
pub const FOREVER: Wall = Wall((1 << 53) - 1);

/// Who says how long an answer is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreshnessMode {
    /// The configuration.
    #[default]
    Ttl,
    /// The answer's own headers (RFC 9111).
    Rfc9111,
}

/// How answers of one provider, or one entity of it, are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreshnessRule {
    /// Who says how long.
    pub mode: FreshnessMode,
    /// How long, in `ttl` mode.
    pub lifetime: Lifetime,
    /// How long after that an answer may stand in for a provider that cannot be asked.
    pub stale: Span,
    /// How long "there is no such thing" is kept, in `ttl` mode; zero = not at all.
    pub negative: Span,
    /// Request headers that make another answer, whatever the answer says. In lower case.
    pub vary: Vec<String>,
    /// What keeps other answers from being kept, but not these.
    pub ignore: Ignore,
}

impl FreshnessRule {
    /// Is anything kept at all?
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
    /// What was kept under an earlier rule, as far as this one lets it last.
    #[must_use]
    pub fn limit_lifetime(&self, kept: Freshness, status: u16, stored: Wall) -> Freshness {
        let most = match self.mode {
            FreshnessMode::Rfc9111 => return kept,
            FreshnessMode::Ttl if storable::is_not_found(status) => self.negative,
            FreshnessMode::Ttl => match self.lifetime {
                Lifetime::Off => Span::ZERO,
                Lifetime::For(most) | Lifetime::Between(_, most) => most,
                Lifetime::Forever => return kept,
            },
        };
        if kept.lifetime <= most {
            return kept;
        }
        let stale = if storable::is_not_found(status) {
            Span::ZERO
        } else {
            self.stale
        };
        kept.with_lifetime(stored, most, stale)
    }
}

/// What is known about an answer that was kept. All times are on the calendar, because they
/// outlive the process and are shared by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// When its age was zero.
    pub generated_at: Wall,
    /// Until when it is as good as a new one.
    pub fresh_until: Wall,
    /// Until when it may be used while a new one is fetched beside it.
    pub revalidate_until: Wall,
    /// Until when it may stand in for a provider that cannot be asked.
    pub stale_until: Wall,
    /// The provider must be asked before each use.
    pub always_revalidate: bool,
    /// It must not be used when it is old, whatever happens.
    pub must_revalidate: bool,
    /// The lifetime that was chosen for it, which adapts.
    pub lifetime: Span,
}

/// What a request says about answers that are not new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Ask the provider first.
    pub no_cache: bool,
    /// Keep nothing of it.
    pub no_store: bool,
    /// Do not ask the provider at all.
    pub only_if_cached: bool,
    /// No older than this.
    pub max_age: Option<Span>,
    /// Good for at least so much longer.
    pub min_fresh: Option<Span>,
    /// Old by at most this.
    pub max_stale: Option<Span>,
}

/// What to do with an answer that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshnessDecision {
    /// Use it.
    Fresh,
    /// Use it and say that it is old.
    Stale {
        /// Fetch a new one beside it.
        refresh: bool,
    },
    /// Ask the provider first.
    Fetch {
        /// If the provider cannot be asked now, or fails, it may be used.
        fallback: bool,
    },
}

impl Demand {
    /// What a request's headers say. In `ttl` mode only that nothing may be kept: clients send
    /// `no-cache` by habit, and a call that must not be answered from the cache has a switch.
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
        let ask = FreshnessDecision::Fetch { fallback };
        if demand.no_cache {
            return FreshnessDecision::Fetch { fallback: false };
        }
        if self.always_revalidate {
            return ask;
        }
        let left = self.fresh_until.since(now);
        let is_too_old = demand.max_age.is_some_and(|most| self.age(now) > most);
        if is_too_old || demand.min_fresh.is_some_and(|least| left < least) {
            // Whoever asks for a newer one would rather wait.
            return FreshnessDecision::Fetch { fallback: false };
        }
        if now < self.fresh_until {
            return FreshnessDecision::Fresh;
        }
        if self.must_revalidate {
            return ask;
        }
        let old_by = now.since(self.fresh_until);
        if demand.max_stale.is_some_and(|most| old_by <= most) {
            return FreshnessDecision::Stale { refresh: false };
        }
        if now < self.revalidate_until {
            return FreshnessDecision::Stale { refresh: true };
        }
        ask
    }

    /// The same answer with another lifetime, from when it came.
    #[must_use]
    pub fn with_lifetime(self, got: Wall, lifetime: Span, stale: Span) -> Freshness {
        let fresh_until = (got + lifetime).min(FOREVER);
        Freshness {
            fresh_until,
            revalidate_until: fresh_until,
            stale_until: (fresh_until + stale).min(FOREVER),
            lifetime,
            ..self
        }
    }

    /// May it stand in for a provider that cannot be asked?
    #[must_use]
    pub fn may_serve_stale(&self, now: Wall) -> bool {
        !self.must_revalidate
            && !self.always_revalidate
            && now < self.stale_until.max(self.fresh_until)
    }
}

#[cfg(test)]
mod tests;
