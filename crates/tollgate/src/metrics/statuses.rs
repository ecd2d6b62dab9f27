//! Responses by status and class: the one count of responses, for `/metrics` and for the page.
//!
//! Promises: a response is one addition. Its class follows from its status, unless its headers or body say otherwise:
//! those are counted apart, in memory that is taken with the first of them.
//!
//! Never: decides which class a response has.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use tollgate_core::health::Class;

use super::{add, read};

/// The first and the last status of HTTP.
const STATUSES: std::ops::RangeInclusive<u16> = 100..=599;

/// How many statuses there are, and one place for all others.
const STATUS_SLOTS: usize = 501;

type Slots = Box<[AtomicU64; STATUS_SLOTS]>;

/// The responses of a provider.
#[derive(Debug)]
pub(super) struct StatusCounters {
    /// Those that are what their status says.
    plain: Slots,
    /// Those that say that a limit is used up.
    limited: OnceLock<Slots>,
    /// Those that say that the provider is overloaded, with a status below 500.
    overloaded: OnceLock<Slots>,
}

/// What the provider responded to attempts, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseCounts {
    /// 2xx and 3xx.
    pub success: u64,
    /// 429 and its kin.
    pub limited: u64,
    /// 5xx.
    pub server_error: u64,
    /// No response.
    pub network: u64,
    /// Other 4xx.
    pub other: u64,
}

fn no_responses() -> Slots {
    Box::new([const { AtomicU64::new(0) }; STATUS_SLOTS])
}

impl Default for StatusCounters {
    fn default() -> StatusCounters {
        StatusCounters {
            plain: no_responses(),
            limited: OnceLock::new(),
            overloaded: OnceLock::new(),
        }
    }
}

impl StatusCounters {
    /// A response of this class.
    pub(super) fn add(&self, status: u16, class: Class) {
        let slots = match class {
            Class::Limited => self.limited.get_or_init(no_responses),
            Class::ServerError if status < 500 => self.overloaded.get_or_init(no_responses),
            Class::Success | Class::ServerError | Class::Network | Class::Other => &self.plain,
        };
        let slot = status.wrapping_sub(*STATUSES.start());
        add(&slots[usize::from(slot).min(STATUS_SLOTS - 1)]);
    }

    /// Those that happened, by status; `other` for what is no status of HTTP.
    pub(super) fn by_status(&self) -> impl Iterator<Item = (String, u64)> {
        let all = self.statuses().map(|(slot, status)| {
            let every = [Some(&self.plain), self.limited.get(), self.overloaded.get()];
            let count = every.into_iter().flatten().map(|slots| read(&slots[slot]));
            let name = status.map_or_else(|| "other".to_owned(), |status| status.to_string());
            (name, count.sum::<u64>())
        });
        all.filter(|(_, count)| *count > 0)
    }

    /// By class.
    pub(super) fn by_class(&self) -> ResponseCounts {
        let mut counts = ResponseCounts::default();
        for (slot, status) in self.statuses() {
            let count = read(&self.plain[slot]);
            match Class::of_status(status.unwrap_or(0), Some(false)) {
                Class::Success => counts.success += count,
                Class::ServerError => counts.server_error += count,
                Class::Network => counts.network += count,
                Class::Limited | Class::Other => counts.other += count,
            }
        }
        let sum = |slots: Option<&Slots>| slots.map_or(0, |slots| slots.iter().map(read).sum());
        counts.limited = sum(self.limited.get());
        counts.server_error += sum(self.overloaded.get());
        counts
    }

    /// Every slot and its status; `None`: the slot of all others.
    fn statuses(&self) -> impl Iterator<Item = (usize, Option<u16>)> {
        STATUSES.map(Some).chain([None]).enumerate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A provider may say in a header or body that a 200 is a limit, and that a 403 is an overload.
    #[test]
    fn a_response_counts_once_by_status_and_once_by_class() {
        let counters = StatusCounters::default();
        for (status, class) in [
            (200, Class::Success),
            (304, Class::Success),
            (200, Class::Limited),
            (429, Class::Limited),
            (429, Class::Other),
            (403, Class::ServerError),
            (503, Class::ServerError),
            (503, Class::Limited),
            (408, Class::Network),
            (404, Class::Other),
            (999, Class::Other),
        ] {
            counters.add(status, class);
        }
        let by_class = counters.by_class();
        let expected = ResponseCounts {
            success: 2,
            limited: 3,
            server_error: 2,
            network: 1,
            other: 3,
        };
        assert_eq!(by_class, expected);
        let by_status: Vec<(String, u64)> = counters.by_status().collect();
        let of = |name: &str| by_status.iter().find(|(status, _)| status == name);
        assert_eq!(of("200").map(|(_, count)| *count), Some(2));
        assert_eq!(of("429").map(|(_, count)| *count), Some(2));
        assert_eq!(by_status.iter().map(|(_, count)| count).sum::<u64>(), 11);
    }
}
