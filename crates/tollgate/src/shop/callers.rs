//! Callers that the configuration knows: how urgent they may be, what share they get, who proves it.
//!
//! Promises: a caller with a token is that caller only if it shows the token. Where callers are
//! configured at all, one that is not named there may not be more urgent than normal. Shares of all
//! gates follow a reload.
//!
//! Never: keeps anybody out who claims no name.

use std::collections::HashMap;

use tollgate_config::Secret;
use tollgate_config::config::Caller;
use tollgate_core::ask::Priority;
use tollgate_core::gate::{CallerId, Share};
use tollgate_core::ratio::Ppm;

use super::live::Live;
use crate::Error;

/// The callers of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    share: Share,
    at_most_permille: Option<u16>,
    token: Option<Secret>,
}

/// What a call may do, being of this caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) priority: Priority,
    /// The part of every limit that it may use.
    pub(crate) at_most_permille: Option<u16>,
}

/// What a caller claims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) token: Option<&'a Secret>,
    /// `None`: it claims none.
    pub(crate) priority: Option<Priority>,
}

impl Callers {
    pub(crate) fn new(callers: &[Caller]) -> Callers {
        let known = callers.iter().map(|caller| {
            let known = Known {
                share: Share {
                    at_least_permille: caller.at_least.map_or(0, permille),
                    highest: caller.priority,
                },
                at_most_permille: caller.at_most.map(permille),
                token: caller.token.clone(),
            };
            (caller.name.clone(), known)
        });
        Callers {
            known: known.collect(),
        }
    }

    /// What a call of this caller may do.
    pub(crate) fn standing(&self, claim: Claim<'_>) -> Result<Standing, Error> {
        let known = claim
            .name
            .and_then(|name| Some((name, self.known.get(name)?)));
        let Some((name, known)) = known else {
            let highest = if self.known.is_empty() {
                Priority::High
            } else {
                Priority::Normal
            };
            let wanted = claim.priority.unwrap_or_default();
            return Ok(Standing {
                priority: less_urgent(wanted, highest),
                at_most_permille: None,
            });
        };
        // The same answer to a wrong token and to none: nothing to learn from it.
        if known.token.is_some() && known.token.as_ref() != claim.token {
            let caller = name.to_owned();
            return Err(Error::NotThisCaller { caller });
        }
        let wanted = claim.priority.unwrap_or(known.share.highest);
        Ok(Standing {
            priority: less_urgent(wanted, known.share.highest),
            at_most_permille: known.at_most_permille,
        })
    }

    /// Tells a gate what callers are promised, and that former ones are promised nothing.
    pub(crate) fn tell(&self, live: &Live, former: &Callers) {
        for permits in [&live.permits, &live.spare.permits] {
            for name in former.known.keys() {
                permits.set_share(account(name), Share::default());
            }
            for (name, known) in &self.known {
                permits.set_share(account(name), known.share);
            }
        }
    }
}

/// A caller's account in fair sharing. Numbers are fingerprints of names: two of some thousand
/// callers would share an account once in a thousand set-ups.
pub(crate) fn account(name: &str) -> CallerId {
    let [a, b, c, d, ..] = *blake3::hash(name.as_bytes()).as_bytes();
    CallerId(u32::from_le_bytes([a, b, c, d]))
}

fn permille(share: Ppm) -> u16 {
    let permille = (share.0 / 1_000).clamp(1, 1_000);
    u16::try_from(permille).unwrap_or(1_000)
}

fn less_urgent(one: Priority, other: Priority) -> Priority {
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
        };
        Callers::new(&[
            caller("web", Priority::High, None),
            caller("backfill", Priority::Low, Some("t")),
        ])
    }

    fn standing(name: Option<&str>, token: &str, priority: Option<Priority>) -> Option<Standing> {
        let token = Secret::new(token.to_owned());
        let claim = Claim {
            name,
            token: Some(&token),
            priority,
        };
        callers().standing(claim).ok()
    }

    fn priority(name: Option<&str>, claimed: Option<Priority>) -> Priority {
        standing(name, "t", claimed).unwrap().priority
    }

    /// R-C2: urgency is granted by the configuration, not by a header alone.
    #[test]
    fn r_c2_a_caller_is_as_urgent_as_it_may_be() {
        let high = Some(Priority::High);
        assert_eq!(priority(Some("web"), None), Priority::High);
        assert_eq!(priority(Some("web"), Some(Priority::Low)), Priority::Low);
        assert_eq!(priority(Some("backfill"), high), Priority::Low);
        assert_eq!(priority(Some("stranger"), high), Priority::Normal);
        assert_eq!(priority(None, high), Priority::Normal);
        assert_eq!(priority(None, None), Priority::Normal);
        let nobody = Callers::default().standing(Claim {
            name: None,
            token: None,
            priority: high,
        });
        assert_eq!(nobody.unwrap().priority, Priority::High);
    }

    #[test]
    fn a_caller_with_a_token_must_show_it() {
        assert!(standing(Some("backfill"), "t", None).is_some());
        assert!(standing(Some("backfill"), "x", None).is_none());
        let none = callers().standing(Claim {
            name: Some("backfill"),
            token: None,
            priority: None,
        });
        assert!(none.is_err());
    }

    #[test]
    fn a_share_goes_with_its_caller() {
        let most = |name| standing(Some(name), "t", None).unwrap().at_most_permille;
        assert_eq!(
            (most("backfill"), most("web"), most("other")),
            (Some(300), None, None)
        );
    }
}
