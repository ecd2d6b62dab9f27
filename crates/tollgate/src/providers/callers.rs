//! Configured callers: their highest priority, their share, and their token.
//!
//! Promises: a caller with a token is that caller only if it shows the token. Where any callers are
//! configured, an unnamed one gets at most normal priority. The shares of all gates follow a
//! reload.
//!
//! Never: rejects a call that claims no name.

use std::collections::HashMap;

use tollgate_config::Secret;
use tollgate_config::config::Caller;
use tollgate_core::ask::Priority;
use tollgate_core::gate::{CallerId, CallerShare};
use tollgate_core::ratio::Ppm;

use super::active::ActiveProvider;
use crate::Error;

/// The callers of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    by_name: HashMap<String, KnownCaller>,
}

#[derive(Debug)]
struct KnownCaller {
    share: CallerShare,
    at_most_permille: Option<u16>,
    token: Option<Secret>,
}

/// What a call of this caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallerRights {
    pub(crate) priority: Priority,
    /// The fraction of every limit that it may use.
    pub(crate) at_most_permille: Option<u16>,
}

/// What a caller claims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) token: Option<&'a Secret>,
    /// `None`: it claims no priority.
    pub(crate) priority: Option<Priority>,
    /// The operator asks in the name of a caller: no token is compared, and the priority is as asked.
    pub(crate) is_operator: bool,
}

impl Callers {
    pub(crate) fn new(callers: &[Caller]) -> Callers {
        let known = callers.iter().map(|caller| {
            let known = KnownCaller {
                share: CallerShare {
                    at_least_permille: caller.at_least.map_or(0, permille),
                    max_priority: caller.priority,
                },
                at_most_permille: caller.at_most.map(permille),
                token: caller.token.clone(),
            };
            (caller.name.clone(), known)
        });
        Callers {
            by_name: known.collect(),
        }
    }

    /// What a call of this caller may do.
    pub(crate) fn rights(&self, claim: Claim<'_>) -> Result<CallerRights, Error> {
        let known = claim
            .name
            .and_then(|name| Some((name, self.by_name.get(name)?)));
        let Some((name, known)) = known else {
            let highest = if self.by_name.is_empty() || claim.is_operator {
                Priority::High
            } else {
                Priority::Normal
            };
            let wanted = claim.priority.unwrap_or_default();
            return Ok(CallerRights {
                priority: lower_priority(wanted, highest),
                at_most_permille: None,
            });
        };
        // A wrong token and a missing one get the same error, so it reveals nothing.
        let is_proved = claim.is_operator || known.token.is_none();
        if !is_proved && known.token.as_ref() != claim.token {
            let caller = name.to_owned();
            return Err(Error::WrongCallerToken { caller });
        }
        let own = known.share.max_priority;
        Ok(CallerRights {
            priority: match claim.priority {
                Some(wanted) if claim.is_operator => wanted,
                Some(wanted) => lower_priority(wanted, own),
                None => own,
            },
            at_most_permille: known.at_most_permille,
        })
    }

    /// Sets the callers' shares at a provider's gates, and clears those of the former callers.
    pub(crate) fn apply_shares(&self, active: &ActiveProvider, former: &Callers) {
        for permits in [&active.permits, &active.local_share.permits] {
            for name in former.by_name.keys() {
                permits.set_share(caller_id(name), CallerShare::default());
            }
            for (name, known) in &self.by_name {
                permits.set_share(caller_id(name), known.share);
            }
        }
    }
}

/// A caller's id in fair sharing. Ids are fingerprints of names: among some thousand callers, two
/// share an id in one of a thousand installations.
pub(crate) fn caller_id(name: &str) -> CallerId {
    let [a, b, c, d, ..] = *blake3::hash(name.as_bytes()).as_bytes();
    CallerId(u32::from_le_bytes([a, b, c, d]))
}

fn permille(share: Ppm) -> u16 {
    let permille = (share.0 / 1_000).clamp(1, 1_000);
    u16::try_from(permille).unwrap_or(1_000)
}

fn lower_priority(one: Priority, other: Priority) -> Priority {
    let rank = |priority| match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    };
    if rank(one) >= rank(other) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers() -> Callers {
        let caller = |name: &str, priority, token: Option<&str>| Caller {
            name: name.to_owned(),
            priority,
            at_least: None,
            at_most: (name == "backfill").then_some(Ppm::percent(30)),
            token: token.map(|token| Secret::new(token.to_owned())),
            guards: None,
        };
        Callers::new(&[
            caller("web", Priority::High, None),
            caller("backfill", Priority::Low, Some("t")),
        ])
    }

    fn rights(name: Option<&str>, token: &str, priority: Option<Priority>) -> Option<CallerRights> {
        let token = Secret::new(token.to_owned());
        let claim = Claim {
            name,
            token: Some(&token),
            priority,
            is_operator: false,
        };
        callers().rights(claim).ok()
    }

    fn priority(name: Option<&str>, claimed: Option<Priority>) -> Priority {
        rights(name, "t", claimed).unwrap().priority
    }

    /// R-C2: the configuration grants the priority, not a header alone.
    #[test]
    fn r_c2_configuration_caps_the_priority_a_caller_claims() {
        let high = Some(Priority::High);
        assert_eq!(priority(Some("web"), None), Priority::High);
        assert_eq!(priority(Some("web"), Some(Priority::Low)), Priority::Low);
        assert_eq!(priority(Some("backfill"), high), Priority::Low);
        assert_eq!(priority(Some("stranger"), high), Priority::Normal);
        assert_eq!(priority(None, high), Priority::Normal);
        assert_eq!(priority(None, None), Priority::Normal);
        let nobody = Callers::default().rights(Claim {
            name: None,
            token: None,
            priority: high,
            is_operator: false,
        });
        assert_eq!(nobody.unwrap().priority, Priority::High);
    }

    /// An operator's `priority: high` was lowered as soon as any caller was configured.
    #[test]
    fn the_operator_asks_for_any_caller_with_any_priority() {
        let priority = |name, priority| {
            let claim = Claim {
                name,
                token: None,
                priority,
                is_operator: true,
            };
            callers().rights(claim).unwrap().priority
        };
        let high = Some(Priority::High);
        assert_eq!(priority(None, high), Priority::High);
        assert_eq!(priority(Some("backfill"), high), Priority::High);
        assert_eq!(priority(Some("backfill"), None), Priority::Low, "its own");
        assert_eq!(priority(None, None), Priority::Normal);
    }

    #[test]
    fn a_caller_with_a_token_must_send_it() {
        assert!(rights(Some("backfill"), "t", None).is_some());
        assert!(rights(Some("backfill"), "x", None).is_none());
        let none = callers().rights(Claim {
            name: Some("backfill"),
            token: None,
            priority: None,
            is_operator: false,
        });
        assert!(none.is_err());
    }

    #[test]
    fn each_caller_gets_its_configured_share() {
        let most = |name| rights(Some(name), "t", None).unwrap().at_most_permille;
        assert_eq!(
            (most("backfill"), most("web"), most("other")),
            (Some(300), None, None)
        );
    }
}
