//! What one key may use of one model: calls and tokens in buckets, counted by the provider.
//!
//! Promises: pure; integers in token-microseconds, so that nothing is rounded. Every rejected call
//! and every token is recorded.
//!
//! Never: shares arithmetic with the code under test.

use tollgate_core::time::{Micros, Span};

/// The window of every limit here.
pub const MINUTE: Span = Span::from_secs(60);

/// The limits of a key and model, per minute; `None`: there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Calls.
    pub requests: Option<u64>,
    /// Tokens, input and output together.
    pub tokens: Option<u64>,
    /// Tokens of prompts.
    pub input: Option<u64>,
    /// Tokens of completions.
    pub output: Option<u64>,
}

impl Tier {
    /// No limit at all.
    pub const UNLIMITED: Tier = Tier {
        requests: None,
        tokens: None,
        input: None,
        output: None,
    };
}

/// What a call uses: known, or a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input: u64,
    /// Tokens of the completion.
    pub output: u64,
}

/// One limit as it is advertised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// The limit.
    pub limit: u64,
    /// Whole units that remain.
    pub remaining: u64,
    /// Time until the bucket is full.
    pub reset: Span,
}

/// The buckets of a key and model, and what they have seen.
#[derive(Clone, Debug)]
pub struct Account {
    requests: Option<Level>,
    tokens: Option<Level>,
    input: Option<Level>,
    output: Option<Level>,
    /// Calls that were accepted.
    pub accepted: u64,
    /// Calls that were rejected.
    pub rejected: u64,
    /// Tokens used by accepted calls so far.
    pub used: Usage,
}

/// A bucket that begins full.
#[derive(Clone, Copy, Debug)]
struct Level {
    limit: u64,
    /// Tokens times microseconds of the window; below zero when calls used more than they held.
    level: i128,
    at: Micros,
}

impl Level {
    fn new(limit: u64, now: Micros) -> Level {
        let level = i128::from(limit) * i128::from(MINUTE.0);
        Level {
            limit,
            level,
            at: now,
        }
    }

    fn refill(&mut self, now: Micros) {
        let passed = i128::from(now.since(self.at).0);
        let full = i128::from(self.limit) * i128::from(MINUTE.0);
        self.level = (self.level + passed * i128::from(self.limit)).min(full);
        self.at = self.at.max(now);
    }

    fn holds(&self, amount: u64) -> bool {
        self.level >= i128::from(amount) * i128::from(MINUTE.0)
    }

    fn add(&mut self, amount: i128) {
        self.level += amount * i128::from(MINUTE.0);
    }

    fn advertised(&self) -> Advertised {
        let full = i128::from(self.limit) * i128::from(MINUTE.0);
        let missing = (full - self.level).max(0) / i128::from(self.limit.max(1));
        Advertised {
            limit: self.limit,
            remaining: u64::try_from(self.level / i128::from(MINUTE.0)).unwrap_or(0),
            reset: Span(u64::try_from(missing).unwrap_or(u64::MAX)),
        }
    }
}

impl Account {
    /// Full buckets.
    #[must_use]
    pub fn new(tier: Tier, now: Micros) -> Account {
        let level = |limit: Option<u64>| limit.map(|limit| Level::new(limit, now));
        Account {
            requests: level(tier.requests),
            tokens: level(tier.tokens),
            input: level(tier.input),
            output: level(tier.output),
            accepted: 0,
            rejected: 0,
            used: Usage::default(),
        }
    }

    /// The limits change; what was used stays used.
    pub fn change_tier(&mut self, tier: Tier, now: Micros) {
        self.refill(now);
        let change = |level: &mut Option<Level>, limit: Option<u64>| {
            *level = limit.map(|limit| match *level {
                None => Level::new(limit, now),
                Some(old) => {
                    let used = i128::from(old.limit) * i128::from(MINUTE.0) - old.level;
                    let level = i128::from(limit) * i128::from(MINUTE.0) - used;
                    Level {
                        limit,
                        level,
                        at: now,
                    }
                }
            });
        };
        change(&mut self.requests, tier.requests);
        change(&mut self.tokens, tier.tokens);
        change(&mut self.input, tier.input);
        change(&mut self.output, tier.output);
    }

    /// A call arrives that uses at most this. `false`: it is rejected, and costs nothing.
    pub fn arrive(&mut self, bound: Usage, now: Micros) -> bool {
        self.refill(now);
        let fits =
            |level: &Option<Level>, amount: u64| level.is_none_or(|level| level.holds(amount));
        let is_accepted = fits(&self.requests, 1)
            && fits(&self.tokens, bound.input + bound.output)
            && fits(&self.input, bound.input)
            && fits(&self.output, bound.output);
        if !is_accepted {
            self.rejected += 1;
            return false;
        }
        self.accepted += 1;
        if let Some(requests) = &mut self.requests {
            requests.add(-1);
        }
        self.charge(bound, 1);
        true
    }

    /// A call that held `bound` has used `used`.
    pub fn finish(&mut self, bound: Usage, used: Usage, now: Micros) {
        self.refill(now);
        self.charge(bound, -1);
        self.charge(used, 1);
        self.used.input += used.input;
        self.used.output += used.output;
    }

    fn charge(&mut self, usage: Usage, times: i128) {
        let charge = |level: &mut Option<Level>, amount: u64| {
            if let Some(level) = level {
                level.add(-times * i128::from(amount));
            }
        };
        charge(&mut self.tokens, usage.input + usage.output);
        charge(&mut self.input, usage.input);
        charge(&mut self.output, usage.output);
    }

    fn refill(&mut self, now: Micros) {
        let all = [
            &mut self.requests,
            &mut self.tokens,
            &mut self.input,
            &mut self.output,
        ];
        for level in all.into_iter().flatten() {
            level.refill(now);
        }
    }

    /// The limits by name, as they are advertised.
    #[must_use]
    pub fn advertised(&self) -> Vec<(&'static str, Advertised)> {
        let named = [
            ("requests", self.requests),
            ("tokens", self.tokens),
            ("input-tokens", self.input),
            ("output-tokens", self.output),
        ];
        let known = named.into_iter();
        known
            .filter_map(|(name, level)| Some((name, level?.advertised())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_bounds_and_settles_what_was_used() {
        let tier = Tier {
            tokens: Some(600),
            ..Tier::UNLIMITED
        };
        let mut account = Account::new(tier, Micros(0));
        let bound = Usage {
            input: 100,
            output: 400,
        };
        assert!(account.arrive(bound, Micros(0)));
        assert!(!account.arrive(bound, Micros(0)), "100 remain");
        account.finish(
            bound,
            Usage {
                input: 100,
                output: 0,
            },
            Micros(0),
        );
        assert!(account.arrive(bound, Micros(0)), "500 remain");
        assert_eq!((account.accepted, account.rejected), (2, 1));
        assert!(
            !account.arrive(
                Usage {
                    input: 10,
                    output: 0
                },
                Micros(999_999)
            ),
            "10 a second"
        );
        assert!(account.arrive(
            Usage {
                input: 10,
                output: 0
            },
            Micros(1_000_000)
        ));
    }

    #[test]
    fn a_lower_tier_keeps_what_was_used() {
        let tier = |requests| Tier {
            requests: Some(requests),
            ..Tier::UNLIMITED
        };
        let mut account = Account::new(tier(10), Micros(0));
        for _ in 0..4 {
            assert!(account.arrive(Usage::default(), Micros(0)));
        }
        account.change_tier(tier(5), Micros(0));
        assert_eq!(account.advertised()[0].1.remaining, 1);
    }
}
