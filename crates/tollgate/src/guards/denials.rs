//! Denials of guards among the last decisions, so that "why was this rejected?" has a response.
//!
//! Promises: a denial that is kept has an id, which the reply carries; at most [`KEPT_PER_SECOND`] a second are kept,
//! so a flood of them does not push calls out of the last decisions. For whom a guard counts is shown so that nobody
//! can be recognised: an address as its network, everything else as a hash.
//!
//! Never: costs a granted request anything, or decides.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::time::{Micros, Span, Wall};

use super::identifier::Identifier;
use super::{GuardAsk, GuardDenied};
use crate::error::{Error, Reason};
use crate::event::{CallDecision, CallEnd, CallResult, DecisionVerdict, Events, Step, StepKind};

/// As many as a person reads. The last decisions have room for a thousand calls.
const KEPT_PER_SECOND: u32 = 20;

/// How many denials were kept.
#[derive(Debug)]
pub(super) struct Denials {
    /// Tells the ids of two runs apart.
    run: u64,
    state: Mutex<DenialState>,
}

#[derive(Debug, Default)]
struct DenialState {
    /// The next id.
    number: u64,
    second: u64,
    in_second: u32,
}

impl Denials {
    pub(super) fn new(started: Wall) -> Denials {
        Denials {
            run: started.0 / 1_000,
            state: Mutex::default(),
        }
    }

    /// Keeps a denial; returns its id. `None`: nobody reads decisions, or there were too many in this second.
    pub(super) fn keep(
        &self,
        (ask, denied): (&GuardAsk, &GuardDenied),
        waited: Span,
        (now, wall): (Micros, Wall),
        events: &Events,
    ) -> Option<Arc<str>> {
        if !events.keeps_ends() {
            return None;
        }
        let number = self.state.lock().next(now.0 / 1_000_000)?;
        let id: Arc<str> = format!("{:x}-g{number}", self.run).into();
        events.keep_end(end(id.clone(), (ask, denied), waited, wall));
        Some(id)
    }
}

impl DenialState {
    fn next(&mut self, second: u64) -> Option<u64> {
        if self.second != second {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += 1;
        (self.in_second <= KEPT_PER_SECOND).then(|| {
            self.number += 1;
            self.number
        })
    }
}

fn end(id: Arc<str>, (ask, denied): (&GuardAsk, &GuardDenied), waited: Span, at: Wall) -> CallEnd {
    let (name, limit) = (denied.class.name(), denied.class.limit_name());
    let shown: Arc<str> = format!("{limit} of guard {name}").into();
    let reason = match denied.retry_in {
        _ if denied.is_store_lost => Reason::StoreLost,
        Some(_) => Reason::Limit,
        None => Reason::TooCostly,
    };
    let verdict = DecisionVerdict::Rejected {
        limit: Some(shown.clone()),
        reason: Some(reason),
    };
    let error = Error::Guarded {
        provider: String::new(),
        guard: name.to_owned(),
        limit,
        message: denied.message(),
        retry_in: denied.retry_in,
        is_store_lost: denied.is_store_lost,
    };
    CallEnd {
        id,
        at,
        request: None,
        provider: None,
        entity: None,
        caller: masked(ask.identifier),
        priority: None,
        decision: CallDecision::Reject,
        source: "tollgate",
        result: CallResult::Rejected(Box::new(error)),
        limit: Some(shown),
        waited,
        attempts: 0,
        steps: Step {
            at,
            kind: StepKind::Decided(verdict, waited),
        }
        .into(),
    }
}

/// For whom it was, without saying who that is.
fn masked(identifier: Identifier) -> Option<Arc<str>> {
    let text = match identifier {
        Identifier::Global => return None,
        Identifier::Ip(std::net::IpAddr::V4(ip)) => {
            let [one, two, three, _] = ip.octets();
            format!("{one}.{two}.{three}.0/24")
        }
        Identifier::Ip(std::net::IpAddr::V6(ip)) => {
            let [one, two, three, ..] = ip.segments();
            format!("{one:x}:{two:x}:{three:x}::/48")
        }
        Identifier::Text(shown, length) => {
            let text = shown.get(..usize::from(length)).unwrap_or(&shown);
            let ip = std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok());
            match ip {
                Some(ip) => return masked(Identifier::Ip(ip)),
                None => format!("#{:.8}", blake3::hash(text).to_hex()),
            }
        }
    };
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_denials_does_not_push_calls_out() {
        let mut state = DenialState::default();
        let kept = |state: &mut DenialState, second| {
            (0..100).filter(|_| state.next(second).is_some()).count()
        };
        assert_eq!((kept(&mut state, 7), kept(&mut state, 8)), (20, 20));
        assert_eq!(state.next(9), Some(41));
    }

    #[test]
    fn nobody_is_recognised_in_the_last_decisions() {
        let of = |text: &str| masked(Identifier::of_text(text.as_bytes())).unwrap();
        assert_eq!(&*of("203.0.113.7"), "203.0.113.0/24");
        assert_eq!(&*of("2001:db8:1:2::9"), "2001:db8:1::/48");
        let user = of("user-canary");
        assert_eq!(user, of("user-canary"));
        assert!(user.len() == 9 && !user.contains("canary"), "{user}");
        assert_eq!(masked(Identifier::Global), None);
    }
}
