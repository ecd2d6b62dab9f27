//! May an answer that was kept be used again, and may a new one be kept?
//!
//! Two modes: `ttl`, where the configured lifetimes decide, and `rfc9111`, where the answer's own
//! headers do, as for every shared cache on the web.
//!
//! Promises: everything that a later look needs is worked out once, when the answer is kept
//! ([`Kept`]): a look only compares times. Old answers are not thrown away because they are old:
//! whether they may stand in for a provider that cannot be asked is part of the decision.
//!
//! Never: reads a clock, or knows where answers are kept.

mod adapt;
mod control;
mod fields;
mod keep;
mod range;
mod validate;
mod vary;

pub use adapt::{Change, adapted, lengthened, spread};
pub use control::Control;
pub use fields::{Headers, http_date, is_connection_only, is_hop_by_hop};
pub use keep::{Answered, Ignore, Lifetime, NotKept, Times, keep};
pub use range::{Part, part};
pub use validate::{is_another, is_not_modified, is_replaced_by_304};
pub use vary::{Varies, variant_text, varies};

use crate::time::{Span, Wall};

/// As late as any time here: 285 years after 1970, and small enough for every store.
pub const FOREVER: Wall = Wall((1 << 53) - 1);

/// Who says how long an answer is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The configuration.
    #[default]
    Ttl,
    /// The answer's own headers (RFC 9111).
    Rfc9111,
}

/// How answers of one provider, or one entity of it, are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Who says how long.
    pub mode: Mode,
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

impl Rule {
    /// Is anything kept at all?
    #[must_use]
    pub fn is_on(&self) -> bool {
        match (self.mode, self.lifetime) {
            (Mode::Rfc9111, _) => true,
            (Mode::Ttl, Lifetime::Off) => false,
            (Mode::Ttl, Lifetime::For(_) | Lifetime::Between(..) | Lifetime::Forever) => true,
        }
    }
}

impl Rule {
    /// What was kept under an earlier rule, as far as this one lets it last.
    #[must_use]
    pub fn bound(&self, kept: Kept, status: u16, stored: Wall) -> Kept {
        let most = match self.mode {
            Mode::Rfc9111 => return kept,
            Mode::Ttl if keep::is_absence(status) => self.negative,
            Mode::Ttl => match self.lifetime {
                Lifetime::Off => Span::ZERO,
                Lifetime::For(most) | Lifetime::Between(_, most) => most,
                Lifetime::Forever => return kept,
            },
        };
        if kept.lifetime <= most {
            return kept;
        }
        let stale = if keep::is_absence(status) {
            Span::ZERO
        } else {
            self.stale
        };
        kept.lasting(stored, most, stale)
    }
}

/// What is known about an answer that was kept. All times are on the calendar, because they
/// outlive the process and are shared by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// When its age was zero.
    pub born: Wall,
    /// Until when it is as good as a new one.
    pub fresh_until: Wall,
    /// Until when it may be used while a new one is fetched beside it.
    pub beside_until: Wall,
    /// Until when it may stand in for a provider that cannot be asked.
    pub stale_until: Wall,
    /// The provider must be asked before each use.
    pub ask_always: bool,
    /// It must not be used when it is old, whatever happens.
    pub strict: bool,
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
pub enum Look {
    /// Use it.
    Fresh,
    /// Use it and say that it is old.
    Stale {
        /// Fetch a new one beside it.
        refresh: bool,
    },
    /// Ask the provider first.
    Ask {
        /// If the provider cannot be asked now, or fails, it may be used.
        fallback: bool,
    },
}

impl Demand {
    /// What a request's headers say. In `ttl` mode only that nothing may be kept: clients send
    /// `no-cache` by habit, and a call that must not be answered from the cache has a switch.
    #[must_use]
    pub fn read(mode: Mode, headers: &impl Headers) -> Demand {
        let control = Control::read("cache-control", headers);
        if mode == Mode::Ttl {
            return Demand {
                no_store: control.no_store,
                ..Demand::default()
            };
        }
        let old_style = !control.is_there && fields::has_token(headers, "pragma", "no-cache");
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

impl Kept {
    /// How old it is.
    #[must_use]
    pub fn age(&self, now: Wall) -> Span {
        now.since(self.born)
    }

    /// May it be used?
    #[must_use]
    pub fn look(&self, demand: &Demand, now: Wall) -> Look {
        let fallback = !self.strict && !self.ask_always && now < self.stale_until;
        let ask = Look::Ask { fallback };
        if demand.no_cache {
            return Look::Ask { fallback: false };
        }
        if self.ask_always {
            return ask;
        }
        let left = self.fresh_until.since(now);
        let is_too_old = demand.max_age.is_some_and(|most| self.age(now) > most);
        if is_too_old || demand.min_fresh.is_some_and(|least| left < least) {
            // Whoever asks for a newer one would rather wait.
            return Look::Ask { fallback: false };
        }
        if now < self.fresh_until {
            return Look::Fresh;
        }
        if self.strict {
            return ask;
        }
        let old_by = now.since(self.fresh_until);
        if demand.max_stale.is_some_and(|most| old_by <= most) {
            return Look::Stale { refresh: false };
        }
        if now < self.beside_until {
            return Look::Stale { refresh: true };
        }
        ask
    }

    /// The same answer with another lifetime, from when it came.
    #[must_use]
    pub fn lasting(self, got: Wall, lifetime: Span, stale: Span) -> Kept {
        let fresh_until = (got + lifetime).min(FOREVER);
        Kept {
            fresh_until,
            beside_until: fresh_until,
            stale_until: (fresh_until + stale).min(FOREVER),
            lifetime,
            ..self
        }
    }

    /// May it stand in for a provider that cannot be asked?
    #[must_use]
    pub fn may_stand_in(&self, now: Wall) -> bool {
        !self.strict && !self.ask_always && now < self.stale_until.max(self.fresh_until)
    }
}

#[cfg(test)]
mod tests;
