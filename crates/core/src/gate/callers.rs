//! Callers and what they are promised: a fair part of the permits, at least a share of them, and a
//! highest priority.
//!
//! Fair means by the largest part of any limit that a call takes (its dominant share), so that one
//! caller's few large calls weigh as much as another's many small ones.
//!
//! Promises: a caller that waits gets its `at_least` even under a flood of urgent calls; a caller
//! that comes back from a pause gets no arrears. Integers only.
//!
//! Never: caps anybody. `at_most` is a limit like any other ([`crate::limit::Rule::share`]), so
//! that it holds among many processes.

use std::collections::BTreeMap;

use crate::ask::{Priority, Terms};

/// Who calls. Numbers are given out by whoever knows the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u32);

/// What a caller is promised and allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerShare {
    /// The part of the permits it gets while it waits, in thousandths; 0 = only its fair part.
    pub at_least_permille: u16,
    /// The highest priority its calls may have.
    pub max_priority: Priority,
}

impl Default for CallerShare {
    fn default() -> CallerShare {
        CallerShare {
            at_least_permille: 0,
            max_priority: Priority::High,
        }
    }
}

/// Callers whose account is kept beside those with a configured share. The account of one that is
/// not waiting says nothing, so the table is swept past this; 1 024 are 64 KiB.
pub const CALLERS_MAX: usize = 1_024;

/// A whole limit, in the unit of accounts.
const WHOLE: u64 = 1 << 20;

/// No caller is owed more than one whole limit (in thousandths, as credit is).
const CREDIT_MAX: i64 = 1_000 << 20;

/// The accounts of all callers.
#[derive(Debug, Default)]
pub(super) struct CallerAccounts {
    accounts: BTreeMap<CallerId, Account>,
    /// What the caller served last had been served: those who come back start from here.
    level: u64,
}

#[derive(Debug, Default)]
struct Account {
    share: CallerShare,
    waiting: usize,
    served: u64,
    /// What the ledger has been asked for and has not answered yet: counts as served, so that one
    /// caller does not fill a whole batch.
    offered: u64,
    /// Promised but not got, in thousandths of the unit of `served`.
    credit: i64,
}

impl CallerAccounts {
    pub(super) fn set(&mut self, caller: CallerId, share: CallerShare) {
        self.accounts.entry(caller).or_default().share = share;
    }

    pub(super) fn max_priority(&self, caller: CallerId) -> Priority {
        self.accounts
            .get(&caller)
            .map_or(Priority::High, |account| account.share.max_priority)
    }

    pub(super) fn arrived(&mut self, caller: CallerId) {
        if self.accounts.len() >= CALLERS_MAX && !self.accounts.contains_key(&caller) {
            self.accounts
                .retain(|_, known| known.waiting > 0 || known.share != CallerShare::default());
        }
        let level = self.level;
        let account = self.accounts.entry(caller).or_default();
        if account.waiting == 0 {
            account.served = account.served.max(level);
            account.credit = account.credit.min(0);
        }
        account.waiting += 1;
    }

    pub(super) fn departed(&mut self, caller: CallerId) {
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.waiting = account.waiting.saturating_sub(1);
        }
    }

    /// The ledger is asked for a call of this caller.
    pub(super) fn offered(&mut self, caller: CallerId, terms: &Terms) {
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.offered = account.offered.saturating_add(dominant_share(terms));
        }
    }

    /// The ledger has answered; if the call goes, [`CallerAccounts::served`] follows.
    pub(super) fn offer_decided(&mut self, caller: CallerId, terms: &Terms) {
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.offered = account.offered.saturating_sub(dominant_share(terms));
        }
    }

    /// A call of this caller goes. It owes no more than that call afterwards: what it got beside
    /// while nobody else wanted it is no debt.
    pub(super) fn served(&mut self, caller: CallerId, terms: &Terms) {
        let part = dominant_share(terms);
        let signed = signed(part);
        for account in self.accounts.values_mut() {
            if account.waiting > 0 && account.share.at_least_permille > 0 {
                let promised = signed.saturating_mul(i64::from(account.share.at_least_permille));
                account.credit = account.credit.saturating_add(promised).min(CREDIT_MAX);
            }
        }
        let level = self.level;
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.served = account.served.saturating_add(part);
            let price = signed.saturating_mul(1_000);
            account.credit = account.credit.saturating_sub(price).max(-price);
            self.level = level.max(account.served.saturating_sub(part));
        }
    }

    pub(super) fn served_so_far(&self, caller: CallerId) -> u64 {
        self.accounts
            .get(&caller)
            .map_or(0, |account| account.served.saturating_add(account.offered))
    }

    /// Has this caller got less than it was promised?
    pub(super) fn is_owed(&self, caller: CallerId) -> bool {
        self.accounts
            .get(&caller)
            .is_some_and(|account| account.credit > signed(account.offered).saturating_mul(1_000))
    }
}

fn signed(part: u64) -> i64 {
    i64::try_from(part).unwrap_or(i64::MAX / 2_000)
}

/// The largest part of any limit that a call takes. At least 1, so that every call counts.
fn dominant_share(terms: &Terms) -> u64 {
    let parts = terms.iter().map(|term| {
        let limit = term.rule.limit();
        // Nearly every cost fits, and dividing 64 bits takes a tenth of the time of 128.
        let part = match term.cost.checked_mul(WHOLE) {
            Some(cost) => cost / limit,
            None => wide_part(term.cost, limit),
        };
        part.min(WHOLE)
    });
    parts.max().unwrap_or(1).max(1)
}

fn wide_part(cost: u64, limit: u64) -> u64 {
    let part = u128::from(cost) * u128::from(WHOLE) / u128::from(limit);
    u64::try_from(part).unwrap_or(WHOLE)
}
