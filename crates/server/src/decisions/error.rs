//! Requests that cannot be decided: the caller's mistakes.
//!
//! Promises: each names the thing and the remedy; nothing was counted.
//!
//! Never: repeats what was sent; it may be a key.

use tollgate::Error;

use crate::guards::GuardError;

/// Why a request cannot be decided.
#[derive(Debug, thiserror::Error)]
pub enum DecisionError {
    /// The call is wrong: an unknown provider, a wrong token, an invalid path.
    #[error(transparent)]
    Call(#[from] Error),
    /// A guard cannot be asked.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The caller may not take tokens of this guard.
    #[error("the caller `{caller}` may not take tokens of the guard `{guard}`")]
    GuardNotAllowed {
        /// Who asks.
        caller: String,
        /// The guard.
        guard: String,
    },
    /// The permit is not known.
    #[error("there is no such permit: it expired and counts as sent, or it never was")]
    UnknownPermit,
    /// A report for a permit that was given back.
    #[error("the permit was released, so its call must not be made")]
    AlreadyReleased,
    /// A release of a permit that was used.
    #[error("the permit was reported as used, so it can be neither released nor renewed")]
    AlreadyReported,
}

impl DecisionError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let fixed = match self {
            // Nobody wrote a path whose first part is the provider.
            DecisionError::Call(Error::UnknownProvider { nearest, .. }) => match nearest {
                Some(near) => return format!("did you mean `{near}`?"),
                None => {
                    "`tollgate provider list` shows the names; `providers:` of tollgate.yaml adds one, and a reload applies it"
                }
            },
            DecisionError::Call(error) => return crate::rejection::hint(error),
            DecisionError::Guard(GuardError::Unknown {
                nearest: Some(nearest),
                ..
            }) => return format!("did you mean `{nearest}`?"),
            DecisionError::Guard(GuardError::Unknown { nearest: None, .. }) => {
                "write it under `guards:` in tollgate.yaml, then reload"
            }
            DecisionError::Guard(GuardError::NoIdentifier(_)) => {
                "send for example \"identifier\": \"203.0.113.7\""
            }
            DecisionError::Guard(GuardError::TooMany(_)) => "ask for fewer guards at once",
            DecisionError::Guard(GuardError::Limit(_)) => {
                "write the limit as a guard, or send fewer different limits"
            }
            DecisionError::GuardNotAllowed { caller, guard } => {
                return format!(
                    "add it to `callers.{caller}.guards` in tollgate.yaml (`guards: [{guard}]`), or ask with the admin token"
                );
            }
            DecisionError::UnknownPermit => {
                "report or release a permit within use_within and the provider's timeout, with the `permit` of its acquire; one that was open when a daemon was killed counts as sent"
            }
            DecisionError::AlreadyReleased => "acquire another permit before the next call",
            DecisionError::AlreadyReported => "release a permit before its call is made",
        };
        fixed.to_owned()
    }
}
