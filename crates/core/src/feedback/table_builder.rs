//! Builder functions for the tables of the built-in dialects.
//!
//! Promises: each call adds one row; rows are tried in the order they are written.
//!
//! Never: used outside the built-in tables; a provider file fills [`DialectRows`] itself.

use super::classify::LimitVerdict;
use super::dialect::{
    BodyFields, Condition, DefaultWait, DialectRows, FieldPlace, LearnedWindow, ScopeNaming,
    ScopeRule, Signature, Test, WaitRule, WindowRule,
};
use super::wait_time::TimeUnit;
use super::window::WindowUnit;
use crate::time::Span;

pub(super) fn header(name: &str) -> FieldPlace {
    FieldPlace::Header(name.to_owned())
}

pub(super) fn body(path: &str) -> FieldPlace {
    FieldPlace::Body(path.to_owned())
}

pub(super) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl FieldPlace {
    pub(super) fn is(self, any_of: &[&str]) -> Condition {
        Condition {
            place: self,
            test: Test::Is(texts(any_of)),
        }
    }

    pub(super) fn has(self, any_of: &[&str]) -> Condition {
        Condition {
            place: self,
            test: Test::Has(texts(any_of)),
        }
    }

    pub(super) fn starts(self, any_of: &[&str]) -> Condition {
        Condition {
            place: self,
            test: Test::Starts(texts(any_of)),
        }
    }

    pub(super) fn code(self, any_of: &[&str]) -> Condition {
        Condition {
            place: self,
            test: Test::Code(texts(any_of)),
        }
    }

    pub(super) fn zero(self) -> Condition {
        Condition {
            place: self,
            test: Test::Zero,
        }
    }

    pub(super) fn absent(self) -> Condition {
        Condition {
            place: self,
            test: Test::Absent,
        }
    }
}

/// A signature under construction: statuses (none = all), conditions, and the scope.
#[derive(Default)]
pub(super) struct SignatureBuilder {
    status: Vec<u16>,
    conditions: Vec<Condition>,
    scope: Option<String>,
    scope_at: Option<FieldPlace>,
}

/// With any status.
pub(super) fn when(condition: Condition) -> SignatureBuilder {
    SignatureBuilder::default().and(condition)
}

/// With one of these statuses.
pub(super) fn on(status: &[u16]) -> SignatureBuilder {
    SignatureBuilder {
        status: status.to_vec(),
        ..SignatureBuilder::default()
    }
}

impl SignatureBuilder {
    pub(super) fn and(mut self, condition: Condition) -> SignatureBuilder {
        self.conditions.push(condition);
        self
    }

    pub(super) fn scope(mut self, name: &str) -> SignatureBuilder {
        self.scope = Some(name.to_owned());
        self
    }

    pub(super) fn scope_at(mut self, place: FieldPlace) -> SignatureBuilder {
        self.scope_at = Some(place);
        self
    }
}

impl DialectRows {
    /// Responses state a limit of this name and unit in windows of these names.
    pub(super) fn learns(
        mut self,
        name: &str,
        unit: &str,
        windows: &[&str],
        period: Span,
    ) -> DialectRows {
        self.learned.push(LearnedWindow {
            name: name.to_owned(),
            unit: unit.to_owned(),
            windows: texts(windows),
            period,
        });
        self
    }

    fn signature(mut self, when: SignatureBuilder, verdict: LimitVerdict) -> DialectRows {
        let SignatureBuilder {
            status,
            conditions,
            scope,
            scope_at,
        } = when;
        self.signatures.push(Signature {
            status,
            conditions,
            verdict,
            scope,
            scope_at,
        });
        self
    }

    pub(super) fn limited(self, when: SignatureBuilder) -> DialectRows {
        self.signature(when, LimitVerdict::Limited)
    }

    pub(super) fn spent(self, when: SignatureBuilder) -> DialectRows {
        self.signature(when, LimitVerdict::Spent)
    }

    pub(super) fn overloaded(self, when: SignatureBuilder) -> DialectRows {
        self.signature(when, LimitVerdict::Overloaded)
    }

    pub(super) fn passed(self, when: SignatureBuilder) -> DialectRows {
        self.signature(when, LimitVerdict::Passed)
    }

    pub(super) fn wait_in(mut self, place: FieldPlace, unit: TimeUnit) -> DialectRows {
        self.waits.push(WaitRule::Field { place, unit });
        self
    }

    pub(super) fn wait_after(mut self, place: FieldPlace, words: &str) -> DialectRows {
        self.waits.push(WaitRule::AfterWords {
            place,
            words: words.to_owned(),
        });
        self
    }

    pub(super) fn refill(mut self, cost: &str, available: &str, per_second: &str) -> DialectRows {
        let [cost, available, per_second] = [cost, available, per_second].map(str::to_owned);
        self.waits.push(WaitRule::Refill {
            cost,
            available,
            per_second,
        });
        self
    }

    pub(super) fn window(mut self, rule: WindowRule) -> DialectRows {
        self.windows.push(rule);
        self
    }

    fn scope_rule(
        mut self,
        place: FieldPlace,
        test: Option<Test>,
        naming: ScopeNaming,
    ) -> DialectRows {
        self.scopes.push(ScopeRule {
            place,
            test,
            naming,
        });
        self
    }

    pub(super) fn scope_in(self, place: FieldPlace) -> DialectRows {
        self.scope_rule(place, None, ScopeNaming::AsWritten)
    }

    pub(super) fn scope_lower(self, place: FieldPlace) -> DialectRows {
        self.scope_rule(place, None, ScopeNaming::Lower)
    }

    pub(super) fn scope_prefixed(self, prefix: &str, place: FieldPlace) -> DialectRows {
        self.scope_rule(place, None, ScopeNaming::Prefixed(prefix.to_owned()))
    }

    pub(super) fn scope_if(self, condition: Condition, name: &str) -> DialectRows {
        let Condition { place, test } = condition;
        self.scope_rule(place, Some(test), ScopeNaming::Fixed(name.to_owned()))
    }

    pub(super) fn default_wait(mut self, seconds: u64) -> DialectRows {
        self.default_waits.push(DefaultWait {
            scope: None,
            wait: Span::from_secs(seconds),
        });
        self
    }

    pub(super) fn default_wait_for(mut self, scope: &str, seconds: u64) -> DialectRows {
        let scope = Some(scope.to_owned());
        self.default_waits.push(DefaultWait {
            scope,
            wait: Span::from_secs(seconds),
        });
        self
    }

    pub(super) fn named_by(mut self, header: &str) -> DialectRows {
        self.window_name = Some(header.to_owned());
        self
    }
}

impl BodyFields {
    pub(super) fn at(root: &str) -> BodyFields {
        BodyFields {
            root: root.to_owned(),
            ..BodyFields::default()
        }
    }

    pub(super) fn named(mut self, name: &str) -> BodyFields {
        self.name = Some(name.to_owned());
        self
    }

    pub(super) fn name_at(mut self, path: &str) -> BodyFields {
        self.name_at = Some(path.to_owned());
        self
    }

    pub(super) fn counts(mut self, unit: WindowUnit) -> BodyFields {
        self.unit = Some(unit);
        self
    }

    pub(super) fn limit(mut self, path: &str) -> BodyFields {
        self.limit = Some(path.to_owned());
        self
    }

    pub(super) fn remaining(mut self, path: &str) -> BodyFields {
        self.remaining = Some(path.to_owned());
        self
    }

    pub(super) fn used(mut self, path: &str) -> BodyFields {
        self.used = Some(path.to_owned());
        self
    }

    pub(super) fn reset(mut self, path: &str, unit: TimeUnit) -> BodyFields {
        self.reset.push((path.to_owned(), unit));
        self
    }

    pub(super) fn exhausted(mut self) -> BodyFields {
        self.is_exhausted = true;
        self
    }

    pub(super) fn only_when_limited(mut self) -> BodyFields {
        self.only_when_limited = true;
        self
    }
}
