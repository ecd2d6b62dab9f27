//! A permit: the right to make one attempt, and the duty to say what became of it.
//!
//! Promises: whatever happens to it, the ledger hears of it once. Dropped before a byte left, it is
//! given back; dropped after that, the call counts as sent and may still arrive.
//!
//! Never: clones.

use tollgate_core::ask::{
    Ask, Evidence, LimitReading, Marks, Outcome, Readings, Settle, Term, Terms,
};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::Ledger;

use crate::failpoint;

/// The right to make one attempt.
#[derive(Debug)]
#[must_use = "a permit that is dropped unused goes back"]
pub struct Permit {
    /// On the heap: it is handed from stage to stage, and half a kilobyte would be copied each time.
    inner: Box<PermitInner>,
}

#[derive(Debug)]
struct PermitInner {
    ledger: Ledger,
    ask: Ask,
    marks: Marks,
    granted: Micros,
    waited: Span,
    state: PermitState,
    /// So many of the first terms are limits of the provider.
    limits: usize,
    /// So many of the last terms are this process's own affair: they end with the attempt.
    local: usize,
}

/// How far the attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitState {
    Unsent,
    Sent,
    Arrived,
    Settled,
}

/// What one answer said about the limits of a permit, one entry per term that it spoke of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitReport {
    /// The provider refused the call for a limit.
    pub limited: bool,
    /// What it said, by the index of the term. The marks are filled in.
    pub readings: Readings,
}

impl Permit {
    pub(crate) fn new(
        ledger: Ledger,
        ask: Ask,
        marks: Marks,
        (granted, waited): (Micros, Span),
    ) -> Permit {
        Permit {
            inner: Box::new(PermitInner {
                ledger,
                ask,
                marks,
                granted,
                waited,
                state: PermitState::Unsent,
                limits: usize::MAX,
                local: 0,
            }),
        }
    }

    /// Marks the first terms as limits of the provider, of which its answers speak, and the last as
    /// this process's own: its connections, its pace. Those are free as soon as the attempt is over
    /// here, whatever may still happen at the provider.
    pub(crate) fn with_parts(mut self, limits: usize, local: usize) -> Permit {
        self.inner.limits = limits.min(self.inner.ask.terms.len());
        self.inner.local = local.min(self.inner.ask.terms.len());
        self
    }

    /// The provider's own limits among its terms.
    pub(crate) fn limits(&self) -> &[Term] {
        self.inner
            .ask
            .terms
            .get(..self.inner.limits)
            .unwrap_or(&self.inner.ask.terms)
    }

    /// How long the call waited for it.
    #[must_use]
    pub fn waited(&self) -> Span {
        self.inner.waited
    }

    /// When it was granted, on the ledger's clock.
    #[must_use]
    pub fn granted(&self) -> Micros {
        self.inner.granted
    }

    /// The ledger's clock.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.inner.ledger.at()
    }

    /// How long ago it was handed out. A sender checks this right before the write: a process that
    /// was stopped in between must not send late.
    #[must_use]
    pub fn age(&self) -> Span {
        self.inner.ledger.at().since(self.inner.granted)
    }

    /// How long after its grant it is held if the ledger never hears of it.
    #[must_use]
    pub fn held_for(&self) -> Span {
        self.inner.ask.evidence.latest_arrival()
    }

    /// The counts at its grant, one per limit.
    pub(crate) fn marks(&self) -> &Marks {
        &self.inner.marks
    }

    /// Bytes are about to leave: from now on it counts as sent.
    pub fn sent(&mut self) {
        self.inner.state = PermitState::Sent;
    }

    /// No byte has left after all: the connection was closed before it took the first one.
    pub fn unsent(&mut self) {
        self.inner.state = PermitState::Unsent;
    }

    /// The provider does not count this answer: as if it had never been asked for.
    pub fn refund(mut self) {
        self.settle(Outcome::Unsent);
        self.inner.state = PermitState::Settled;
    }

    /// The head of an answer is here that does not prove that the call was counted, such as a 5xx
    /// of a proxy in front of the limiter. It counts as if it had been.
    pub fn failed(&mut self) {
        self.settle(Outcome::Failed { age: Span::ZERO });
        self.inner.state = PermitState::Arrived;
    }

    /// The head of the answer is here.
    pub fn arrived(&mut self, answer: LimitReport) {
        let LimitReport {
            limited: refused,
            mut readings,
        } = answer;
        readings.retain(|reading| reading.term < self.inner.marks.len());
        for LimitReading { term, mark, .. } in &mut readings {
            *mark = self.inner.marks[*term];
        }
        self.settle(Outcome::Arrived {
            age: Span::ZERO,
            limited: refused,
            readings,
        });
        self.inner.state = PermitState::Arrived;
    }

    /// The answer says nothing of whether the provider is well: no scope hears of it.
    pub(crate) fn skip_health(&mut self) {
        self.inner.ask.scopes.clear();
    }

    /// The body still flows: keep its place for this much longer.
    pub fn keep_alive(&mut self, by: Span) {
        self.settle(Outcome::Alive { extend_by: by });
    }

    /// The end of the body is here. `true_cost` corrects the cost of a term, by its index, where it
    /// was only estimated before.
    pub fn finished(mut self, true_cost: impl Fn(usize) -> Option<u64>) {
        for (index, term) in self.inner.ask.terms.iter_mut().enumerate() {
            term.cost = true_cost(index).unwrap_or(term.cost);
        }
        let age = Span::ZERO;
        self.settle(match self.inner.state {
            PermitState::Unsent | PermitState::Sent => Outcome::Complete { age },
            PermitState::Arrived | PermitState::Settled => Outcome::Finished { age },
        });
        self.inner.state = PermitState::Settled;
    }

    /// Tells the ledger of all terms. They are lent to the settle and taken back: most ledgers only
    /// look at them.
    fn settle(&mut self, outcome: Outcome) {
        let PermitInner { ledger, ask, .. } = &mut *self.inner;
        let Ask {
            id, terms, scopes, ..
        } = ask;
        let mut settle = Settle::Permit {
            id: *id,
            terms: std::mem::take(terms),
            scopes: std::mem::take(scopes),
            outcome,
        };
        failpoint::reached("settling");
        ledger.settle_ref(&settle);
        failpoint::reached("settled");
        if let Settle::Permit {
            terms: lent,
            scopes: lent_scopes,
            ..
        } = &mut settle
        {
            std::mem::swap(terms, lent);
            std::mem::swap(scopes, lent_scopes);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let outcome = match (self.inner.state, self.inner.ask.evidence) {
            (PermitState::Settled, _) => return,
            (PermitState::Unsent, _) => Outcome::Unsent,
            (PermitState::Sent | PermitState::Arrived, Evidence::Report { late, .. }) => {
                Outcome::Unknown {
                    age: Span::ZERO,
                    late,
                }
            }
            // Nobody reports: it comes back at the time that was agreed.
            (PermitState::Sent | PermitState::Arrived, Evidence::None { .. }) => return,
        };
        if self.inner.state != PermitState::Unsent && self.inner.local > 0 {
            let split = self.inner.ask.terms.len() - self.inner.local;
            let local: Terms = self.inner.ask.terms.drain(split..).collect();
            let shared = std::mem::replace(&mut self.inner.ask.terms, local);
            self.settle(Outcome::Finished { age: Span::ZERO });
            self.inner.ask.terms = shared;
        }
        self.settle(outcome);
    }
}
