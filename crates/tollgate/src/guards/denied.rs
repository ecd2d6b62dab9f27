//! The words of a guard's rejection, for every endpoint alike.
//!
//! Promises: the texts of the inbound document, and what a caller can do.
//!
//! Never: writes a response.

use super::GuardDenied;
use crate::error::Reason;

impl GuardDenied {
    /// Why, in the words of every rejection.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.retry_in {
            _ if self.is_store_lost => Reason::StoreLost.as_str(),
            Some(_) => Reason::Limit.as_str(),
            None => Reason::TooCostly.as_str(),
        }
    }

    /// The error, by its name.
    #[must_use]
    pub fn code(&self) -> &'static str {
        if self.is_store_lost {
            "StoreLost"
        } else {
            "RateLimitExceeded"
        }
    }

    /// The texts of the inbound document.
    #[must_use]
    pub fn message(&self) -> &'static str {
        if self.is_store_lost {
            "The store that counts callers cannot be reached. Please try again later."
        } else if self.class.is_global() {
            "API rate limit exceeded. Please try again later."
        } else {
            "Rate limit exceeded. Please try again later."
        }
    }

    /// What a caller can do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self.retry_in {
            _ if self.is_store_lost => {
                "the log of tollgate says why; on_store_loss of the guard sets what happens meanwhile"
            }
            Some(_) => "come back after Retry-After, or send fewer requests",
            None => "the request costs more than the guard's burst; split it or raise `burst`",
        }
    }
}
