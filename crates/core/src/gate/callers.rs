//! Callers and their shares: a fair part of the permits, a guaranteed minimum, and a highest
//! priority.
//!
//! Fair means by the largest part of any limit that a call takes (its dominant share), so a few
//! large calls of one caller weigh as much as many small ones of another.
//!
//! Promises: a waiting caller gets its `at_least` even under a flood of urgent calls. A caller that
//! returns from a pause gets no arrears. Integers only.
//!
//! Never: caps a caller. `at_most` is a limit like any other ([`crate::limit::Rule::fraction`]), so
//! it holds across processes.

use std::collections::BTreeMap;

use crate::ask::{Priority, Terms};

/// A caller. Whoever knows the names assigns the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallerId(pub u32);

/// A caller's guaranteed share and highest priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerShare {
    /// The guaranteed part of the permits while it waits, in thousandths; 0 = only its fair part.
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

/// How many accounts are stored beside those with a configured share. The account of a caller that
/// is not waiting has no effect, so the table is swept past this; 1 024 are 64 KiB.
pub const CALLERS_MAX: usize = 1_024;

/// A whole limit, in the unit of accounts.
const WHOLE: u64 = 1 << 20;

/// A caller's credit is at most one whole limit (in thousandths, as credit is).
const CREDIT_MAX: i64 = 1_000 << 20;

/// The accounts of all callers.
#[derive(Debug, Default)]
pub(super) struct CallerAccounts {
    accounts: BTreeMap<CallerId, Account>,
    /// The `served` value of the caller served last: callers that return start from here.
    level: u64,
}

#[derive(Debug, Default)]
struct Account {
    share: CallerShare,
    waiting: usize,
    served: u64,
    /// Offered to the ledger and not decided yet. It counts as served, so one caller does not fill
    /// a whole batch.
    offered: u64,
    /// Guaranteed but not received, in thousandths of the unit of `served`.
    credit: i64,
}

impl CallerAccounts {
    pub(super) fn set(&mut self, caller: CallerId, share: CallerShare) {
        self.accounts.entry(caller).or_default().share = share;
    }

    pub(super) fn at_least_permille(&self, caller: CallerId) -> u16 {
        let account = self.accounts.get(&caller);
        account.map_or(0, |account| account.share.at_least_permille)
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

    /// A call of this caller is offered to the ledger.
    pub(super) fn offered(&mut self, caller: CallerId, terms: &Terms) {
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.offered = account.offered.saturating_add(dominant_share(terms));
        }
    }

    /// The ledger has decided the call; if it goes, [`CallerAccounts::served`] follows.
    pub(super) fn offer_decided(&mut self, caller: CallerId, terms: &Terms) {
        if let Some(account) = self.accounts.get_mut(&caller) {
            account.offered = account.offered.saturating_sub(dominant_share(terms));
        }
    }

    /// A call of this caller goes. Its debt is at most that call afterwards: permits it got while
    /// nobody else waited are no debt.
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

    /// Is this caller below its guaranteed share?
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
