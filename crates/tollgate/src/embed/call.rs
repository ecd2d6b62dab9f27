//! A call, as the program describes it.
//!
//! Promises: a mistake (no URL, an unknown unit) is reported when the call is made, with the
//! remedy, and nothing is counted.
//!
//! Never: sends anything.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tollgate_config::Secret;
use tollgate_config::provider::Cost;
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use crate::Error;
use crate::path::{CallOptions, Target, UseCache, is_caller_name};

/// The largest cost: the largest number that every reader of JSON has exactly.
const COST_MAX: u64 = 1 << 53;

/// A unit by any of its names, and an amount of it that can be counted.
///
/// # Errors
/// The unit is not known, or the amount is too large.
pub(super) fn checked_cost(unit: &str, amount: u64) -> Result<(&'static str, u64), &'static str> {
    let Some(unit) = Cost::unit_of(&unit.to_ascii_lowercase()) else {
        return Err("the unit of a cost is not known; use calls, tokens, points or bytes");
    };
    if amount > COST_MAX {
        return Err("a cost is a number up to 2^53");
    }
    Ok((unit, amount))
}

/// A call to a URL or to a provider, and how it wants to be treated.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Call, Priority};
///
/// let click = Call::url("https://api.example.org/items/1")
///     .priority(Priority::High)
///     .caller("web")
///     .timeout(Duration::from_secs(2));
/// let batch = Call::provider("llm").cost("tokens", 1_200).priority(Priority::Low);
/// # let _both = (click, batch);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is passed to `Tollgate::acquire` or sent"]
pub struct Call {
    target: Option<Target>,
    key: Option<Secret>,
    options: CallOptions,
    mistake: Option<&'static str>,
}

impl Call {
    /// A call to this URL; its host decides which provider's limits apply.
    pub fn url(url: impl AsRef<str>) -> Call {
        let target = url.as_ref().parse::<Uri>().ok();
        let target = target.and_then(|url| Target::from_url(&url));
        let mistake = target.is_none().then_some(
            "the URL is not valid; write an absolute one, such as https://api.example.org/items",
        );
        Call {
            target,
            mistake,
            ..Call::unaddressed()
        }
    }

    /// A call to the provider of this name.
    pub fn provider(name: impl AsRef<str>) -> Call {
        Call {
            target: Some(Target::from(name.as_ref())),
            ..Call::unaddressed()
        }
    }

    /// Options without an address, for requests that carry their own: insert it into the extensions
    /// of a request that passes `tollgate::tower::GovernLayer`.
    pub fn unaddressed() -> Call {
        Call {
            target: None,
            key: None,
            options: CallOptions {
                uses_default_priority: true,
                ..CallOptions::default()
            },
            mistake: None,
        }
    }

    /// How urgent it is; without it, normal, or what the configuration says about its caller.
    pub fn priority(mut self, priority: Priority) -> Call {
        self.options.priority = priority;
        self.options.uses_default_priority = false;
        self
    }

    /// The entity, where the path does not determine it.
    pub fn entity(mut self, entity: impl Into<String>) -> Call {
        self.options.entity = Some(entity.into());
        self
    }

    /// Who calls: callers share a provider fairly. 1 to 64 letters, digits and `-_.:`.
    pub fn caller(mut self, caller: impl Into<String>) -> Call {
        let caller = caller.into();
        if !is_caller_name(&caller) {
            self.mistake = Some("the caller is not a name; use 1 to 64 letters, digits and `-_.:`");
        }
        self.options.caller = Some(caller);
        self
    }

    /// What it costs, by unit: `calls`, `tokens`, `points` or `bytes`. Once per unit.
    pub fn cost(mut self, unit: &str, amount: u64) -> Call {
        match checked_cost(unit, amount) {
            Err(mistake) => self.mistake = Some(mistake),
            Ok((_, 0)) => self.mistake = Some("a call costs something; give a number from 1"),
            Ok((unit, amount)) => {
                self.options.costs.retain(|(named, _)| named != unit);
                self.options.costs.push((unit.to_owned(), amount));
            }
        }
        self
    }

    /// How long it may wait, and run if Tollgate sends it.
    pub fn timeout(mut self, timeout: Duration) -> Call {
        self.options.timeout = Some(Span::from(timeout));
        self
    }

    /// This timeout, unless the call has one.
    #[cfg(feature = "reqwest")]
    pub(crate) fn or_timeout(self, timeout: Option<Duration>) -> Call {
        match timeout {
            Some(timeout) if self.options.timeout.is_none() => self.timeout(timeout),
            Some(_) | None => self,
        }
    }

    /// The timeout, if the call has one.
    #[cfg(feature = "reqwest")]
    pub(crate) fn timeout_span(&self) -> Option<Span> {
        self.options.timeout
    }

    /// Its response is for this call alone.
    #[cfg(feature = "reqwest")]
    pub(crate) fn unshared(mut self) -> Call {
        self.options.no_dedup = true;
        if self.options.cache != UseCache::Only {
            self.options.cache = UseCache::No;
        }
        self
    }

    /// Do not wait: a permit now, or an error that says when to come back. For permits alone; a call
    /// that Tollgate sends has a [`Call::timeout`], and is rejected at once if its wait would be longer.
    pub fn no_wait(self) -> Call {
        self.timeout(Duration::ZERO)
    }

    /// The credential that it carries, for limits per key. Without it the provider's own key counts.
    /// For permits and capacity; a call that Tollgate sends has its credential in a header.
    pub fn key(mut self, key: impl Into<String>) -> Call {
        self.key = Some(Secret::new(key.into()));
        self
    }

    /// The address that it is made for, for limits per address.
    pub fn ip(mut self, ip: IpAddr) -> Call {
        self.options.ip = Some(ip);
        self
    }

    /// How it uses the cache (S11). Means nothing for a permit alone.
    pub fn cache(mut self, cache: UseCache) -> Call {
        self.options.cache = cache;
        self
    }

    /// `false`: it wants its own response even if an identical call is in flight (S11). Means nothing
    /// for a permit alone.
    pub fn dedup(mut self, dedup: bool) -> Call {
        self.options.no_dedup = !dedup;
        self
    }

    /// Its id in logs and events.
    pub fn id(mut self, id: impl Into<Arc<str>>) -> Call {
        self.options.id = id.into();
        self
    }

    /// Target, key and options of a call that has an address.
    pub(super) fn into_parts(self) -> Result<(Target, Option<String>, CallOptions), Error> {
        if let Some(mistake) = self.mistake {
            return Err(Error::Malformed(mistake));
        }
        let target = self.target.ok_or(Error::Malformed(
            "the call has no address; begin with Call::url or Call::provider",
        ))?;
        let key = self.key.map(|key| key.expose().to_owned());
        Ok((target, key, self.options))
    }

    /// The options of a request that has an address of its own.
    #[cfg(any(feature = "reqwest", feature = "tower"))]
    pub(crate) fn into_options(self) -> Result<CallOptions, Error> {
        if let Some(mistake) = self.mistake {
            return Err(Error::Malformed(mistake));
        }
        if self.key.is_some() {
            return Err(Error::Malformed(
                "`key` is for permits: a call that is sent carries its credential; put it into a header",
            ));
        }
        if self.options.timeout == Some(Span::ZERO) {
            return Err(Error::Malformed(
                "a call that is sent needs time: `no_wait` is for permits; give it a timeout",
            ));
        }
        Ok(self.options)
    }
}

impl From<&str> for Call {
    /// A URL, or the name of a provider.
    fn from(url_or_name: &str) -> Call {
        if url_or_name.contains("://") {
            Call::url(url_or_name)
        } else {
            Call::provider(url_or_name)
        }
    }
}
