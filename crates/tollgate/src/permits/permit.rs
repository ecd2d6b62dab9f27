//! A permit: the right to make one attempt, and the duty to report its result.
//!
//! Promises: the ledger learns of its end exactly once. Dropped before a byte left, it is returned;
//! dropped after that, the call counts as sent and may still arrive.
//!
//! Never: is cloned.

use tollgate_core::ask::{
    Ask, Evidence, LimitReading, Marks, Outcome, Readings, ScopeId, Settle, Term, Terms,
};
use tollgate_core::gate::Blocker;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::ProviderLedger;

use crate::failpoint;

/// The right to make one attempt.
#[derive(Debug)]
#[must_use = "a permit that is dropped unused is returned"]
pub struct Permit {
    /// On the heap: it is passed from stage to stage, and half a kilobyte would be copied each
    /// time.
    inner: Box<PermitInner>,
}

#[derive(Debug)]
struct PermitInner {
    ledger: ProviderLedger,
    ask: Ask,
    marks: Marks,
    granted: Micros,
    waited: Span,
    waited_for: Option<Blocker>,
    state: PermitState,
    /// The number of leading terms that are limits of the provider.
    limits: usize,
    /// The number of trailing terms that are local to this process: they end with the attempt.
    local: usize,
}

/// The progress of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitState {
    Unsent,
    Sent,
    Arrived,
    Settled,
}

/// What a response reports about the limits of a permit, one entry per reported term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitReport {
    /// The provider limited the call.
    pub limited: bool,
    /// The reported values, by the index of the term. `arrived` fills in the marks.
    pub readings: Readings,
}

impl Permit {
    pub(crate) fn new(
        ledger: ProviderLedger,
        ask: Ask,
        marks: Marks,
        (granted, waited): (Micros, Span),
        waited_for: Option<Blocker>,
    ) -> Permit {
        debug_assert_eq!(marks.len(), ask.terms.len(), "one mark per term");
        Permit {
            inner: Box::new(PermitInner {
                ledger,
                ask,
                marks,
                granted,
                waited,
                waited_for,
                state: PermitState::Unsent,
                limits: usize::MAX,
                local: 0,
            }),
        }
    }

    /// Marks the leading terms as limits of the provider, about which responses report, and the
    /// trailing ones as local to this process: its connections and throttle. Local ones are free as
    /// soon as the attempt ends here, whatever may still happen at the provider.
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

    /// Its ask, its marks, and how many of its terms other processes share.
    pub(crate) fn parts(&self) -> (&Ask, &Marks, usize) {
        let inner = &self.inner;
        let shared = inner.ask.terms.len().saturating_sub(inner.local);
        (&inner.ask, &inner.marks, shared)
    }

    /// How long the call waited for it.
    #[must_use]
    pub fn waited(&self) -> Span {
        self.inner.waited
    }

    /// The last cell, scope or time that the call waited for; `None`: it did not have to wait.
    pub(crate) fn waited_for(&self) -> Option<Blocker> {
        self.inner.waited_for
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

    /// How long ago it was granted. A sender checks this right before the write: a process that was
    /// stopped in between must not send late.
    #[must_use]
    pub fn age(&self) -> Span {
        self.inner.ledger.at().since(self.inner.granted)
    }

    /// How long after its grant it is held if the ledger never learns of its end.
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

    /// Somebody else holds it and may still send under it: it stays counted until the latest time at
    /// which that call can arrive. Only what is local to this process comes free.
    pub(crate) fn abandon_as_used(mut self) {
        self.inner.state = PermitState::Settled;
        self.finish_local();
    }

    /// No byte has left after all: the connection was closed before it took the first one.
    pub fn unsent(&mut self) {
        debug_assert_ne!(self.inner.state, PermitState::Arrived, "it was sent");
        self.inner.state = PermitState::Unsent;
    }

    /// The provider does not count this response: as if the permit had never been requested.
    pub fn refund(mut self) {
        self.settle(Outcome::Unsent);
        self.inner.state = PermitState::Settled;
    }

    /// The provider does not count the call, but its limits let it pass: it is refunded, and the scope that
    /// a 429 closes learns that a call was accepted.
    pub(crate) fn refund_accepted(mut self, cooldown: ScopeId) {
        let scopes = std::mem::take(&mut self.inner.ask.scopes);
        let (of_limits, others) = scopes.into_iter().partition(|scope| *scope == cooldown);
        let terms = std::mem::take(&mut self.inner.ask.terms);
        self.inner.ask.scopes = of_limits;
        self.settle(Outcome::Arrived {
            age: Span::ZERO,
            limited: false,
            readings: Readings::new(),
        });
        (self.inner.ask.terms, self.inner.ask.scopes) = (terms, others);
        self.refund();
    }

    /// The head of a response has arrived that does not prove that the call was counted, such as a
    /// 5xx of a proxy in front of the limiter. It is treated as counted.
    pub fn failed(&mut self) {
        self.settle(Outcome::Failed { age: Span::ZERO });
        self.inner.state = PermitState::Arrived;
    }

    /// The head of the response has arrived.
    pub fn arrived(&mut self, report: LimitReport) {
        let LimitReport {
            limited,
            mut readings,
        } = report;
        readings.retain(|reading| reading.term < self.inner.marks.len());
        for LimitReading { term, mark, .. } in &mut readings {
            *mark = self.inner.marks[*term];
        }
        self.settle(Outcome::Arrived {
            age: Span::ZERO,
            limited,
            readings,
        });
        self.inner.state = PermitState::Arrived;
    }

    /// Does any of its limits count a call as arrived before its response?
    pub(crate) fn presumes_arrival(&self) -> bool {
        let mut terms = self.inner.ask.terms.iter();
        terms.any(|term| term.rule.presumes_arrival())
    }

    /// There is no response, but the whole request left so long ago that it must have arrived this
    /// long ago.
    pub(crate) fn presume_arrived(&mut self, age: Span) {
        self.settle(Outcome::Presumed { age });
    }

    /// The response says nothing about the provider's health, but the provider's limits accepted it: only
    /// the scope that a 429 closes is updated.
    pub(crate) fn skip_health(&mut self, cooldown: ScopeId) {
        self.inner.ask.scopes.retain(|scope| *scope == cooldown);
    }

    /// The body is still arriving: extends the hold by this much.
    pub fn keep_alive(&mut self, by: Span) {
        self.settle(Outcome::Alive { extend_by: by });
    }

    /// As [`Permit::keep_alive`], to be settled by whoever holds no lock.
    pub(crate) fn alive(&self, by: Span) -> (ProviderLedger, Settle) {
        let Ask {
            id, terms, scopes, ..
        } = &self.inner.ask;
        let settle = Settle::Permit {
            id: *id,
            terms: terms.clone(),
            scopes: scopes.clone(),
            outcome: Outcome::Alive { extend_by: by },
        };
        (self.inner.ledger.clone(), settle)
    }

    /// The end of the body has arrived. `true_cost` corrects the cost of a term, by its index,
    /// where it was estimated before.
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

    /// The terms of this process end with the attempt.
    fn finish_local(&mut self) {
        if self.inner.local > 0 {
            let split = self.inner.ask.terms.len() - self.inner.local;
            let local: Terms = self.inner.ask.terms.drain(split..).collect();
            let shared = std::mem::replace(&mut self.inner.ask.terms, local);
            self.settle(Outcome::Finished { age: Span::ZERO });
            self.inner.ask.terms = shared;
        }
    }

    /// Reports all terms to the ledger. They are moved into the settle and back: most ledgers only
    /// read them.
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
            // No report will follow: it comes back at the agreed time.
            (PermitState::Sent | PermitState::Arrived, Evidence::None { .. }) => return,
        };
        if self.inner.state != PermitState::Unsent {
            self.finish_local();
        }
        self.settle(outcome);
    }
}
