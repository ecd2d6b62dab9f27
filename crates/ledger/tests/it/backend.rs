//! The interface of a backend under test: handles for several owners, and a clock to advance.
//!
//! Promises: a behaviour is written once, against [`Backend`], and runs on every backend.
//!
//! Never: depends on one backend.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tollgate_core::ask::{
    Ask, CellId, Evidence, Marks, Outcome, OwnerId, PermitId, Priority, ScopeId, Scopes, Settle,
    Term, Terms, Verdict, WakeOn,
};
use tollgate_core::limit::{CellView, Rule};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Clock, Event, EventReceiver, Ledger, OfferVerdicts, ProviderLedger};

#[cfg(feature = "sqlite")]
use crate::process_group::{RemoteOwner, WireMessage};

/// Grants that are too old to be used for so long, or a folder that is locked for so long, are not a slow
/// disk any more.
const EXPIRED_FOR_MAX: Span = Span::from_secs(120);

/// How long whoever finds a folder locked waits before it asks again.
const LOCKED_PAUSE: Duration = Duration::from_millis(50);

/// A backend under test: one store, empty at the start.
pub(crate) trait Backend {
    /// A handle like that of another process.
    fn ledger(&self) -> Ledger;
    /// The owner with this number and its own handle.
    fn owner(&self, number: u32) -> Owner {
        Owner::numbered(&self.ledger(), number)
    }
    /// Advances the ledger's clock.
    fn pass(&self, span: Span);
    /// How exact its times are: a store that is far away knows the time only within a round trip.
    fn slack(&self) -> Span {
        Span::ZERO
    }
    /// The time, if it also passes by itself.
    fn now(&self) -> Option<Micros> {
        None
    }
}

/// Does this verdict say to wait, for this reason and for about as long?
pub(crate) fn assert_waits(backend: &impl Backend, verdict: &Verdict, expected: &Verdict) {
    let (
        Verdict::Wait { after, on, by },
        Verdict::Wait {
            after: expected_after,
            on: expected_on,
            by: expected_by,
        },
    ) = (verdict, expected)
    else {
        panic!("{verdict:?} is not {expected:?}");
    };
    assert_eq!((on, by), (expected_on, expected_by));
    let differs = Span(after.0.abs_diff(expected_after.0));
    assert!(
        differs <= backend.slack(),
        "{verdict:?} is not {expected:?}"
    );
}

/// The provider of every test that needs only one.
pub(crate) const TAG: &str = "tmdb";

/// One owner: a handle and a sequence number for its asks.
pub(crate) struct Owner {
    pub ledger: ProviderLedger,
    id: OwnerId,
    seq: u64,
    /// The process that runs this owner, if it is not the test's own.
    #[cfg(feature = "sqlite")]
    process: Option<RemoteOwner>,
}

/// The events that an owner receives.
pub(crate) struct OwnerEvents {
    events: EventReceiver,
    #[cfg(feature = "sqlite")]
    process: Option<RemoteOwner>,
}

/// A permit with the data needed to settle it.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub ask: Ask,
    pub marks: Marks,
}

pub(crate) fn secs(secs: u64) -> Span {
    Span::from_secs(secs)
}

pub(crate) fn sliding(limit: u64, period: Span) -> Arc<Rule> {
    Arc::new(Rule::sliding(limit, period).unwrap().drift_ppm(0))
}

pub(crate) fn term(cell: &str, rule: &Arc<Rule>) -> Term {
    Term {
        cell: CellId::named(&[cell]),
        rule: rule.clone(),
        cost: 1,
        reserve: 0,
    }
}

/// Was this granted and given back, because it came too late to be used?
pub(crate) fn is_expired(verdict: &Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            ..
        }
    )
}

impl Owner {
    pub(crate) fn new(backend: &impl Backend, number: u32) -> Owner {
        backend.owner(number)
    }

    /// The owner with this number on this handle.
    pub(crate) fn numbered(ledger: &Ledger, number: u32) -> Owner {
        Owner {
            ledger: ledger.provider(TAG),
            id: OwnerId(number),
            seq: 0,
            #[cfg(feature = "sqlite")]
            process: None,
        }
    }

    /// An owner that runs in its own process.
    #[cfg(feature = "sqlite")]
    pub(crate) fn in_process(ledger: ProviderLedger, number: u32, remote: RemoteOwner) -> Owner {
        Owner {
            ledger,
            id: OwnerId(number),
            seq: 0,
            process: Some(remote),
        }
    }

    /// The owner with the id that the ledger gave this process.
    pub(crate) fn of(ledger: &Ledger) -> Owner {
        Owner {
            id: ledger.owner(),
            ledger: ledger.provider(TAG),
            seq: 0,
            #[cfg(feature = "sqlite")]
            process: None,
        }
    }

    pub(crate) fn ask(&mut self, terms: Terms) -> Ask {
        self.seq += 1;
        Ask {
            id: PermitId {
                owner: self.id,
                seq: self.seq,
            },
            terms,
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: secs(3_600),
            evidence: Evidence::Report {
                timeout: secs(30),
                late: secs(5),
            },
        }
    }

    /// Offers these asks and returns their verdicts, in order.
    pub(crate) async fn offer(&self, asks: Vec<Ask>) -> Vec<Verdict> {
        self.run(async {
            let offered = self.offer_while_locked(asks).await;
            let verdicts = offered.verdicts.into_iter();
            verdicts.map(|(_, verdict)| verdict).collect()
        })
        .await
    }

    /// Offers these asks. A folder counts as lost while another process keeps its lock for more than a second:
    /// one that a busy machine holds up does, so the same is asked again. A loss that only a restart ends, and
    /// any loss of a server, is an error at once.
    async fn offer_while_locked(&self, asks: Vec<Ask>) -> OfferVerdicts {
        let since = Clock::System.at();
        let is_in_a_folder = self.ledger.takes_time() && !self.ledger.is_far_away();
        loop {
            if let Ok(offered) = self.ledger.offer(asks.clone()).await {
                return offered;
            }
            let is_final = self.ledger.loss().is_some_and(|loss| loss.is_final);
            let is_over = Clock::System.at().since(since) > EXPIRED_FOR_MAX;
            assert!(
                is_in_a_folder && !is_final && !is_over,
                "the store is lost: {:?}",
                self.ledger.loss_reason()
            );
            drop(tokio::time::timeout(LOCKED_PAUSE, std::future::pending::<()>()).await);
        }
    }

    /// Offers these asks and drops the result.
    pub(crate) fn offer_and_drop(&self, asks: Vec<Ask>) {
        self.run_sync(|| drop(self.ledger.offer(asks)));
    }

    /// Offers one ask.
    pub(crate) async fn take(&mut self, terms: Terms) -> Result<Permit, Verdict> {
        let ask = self.ask(terms);
        self.take_ask(ask).await
    }

    /// Asks once. A grant that a slow disk or a busy machine made too old to be used is no rejection:
    /// its permit was given back, so the same is asked again.
    pub(crate) async fn take_ask(&mut self, ask: Ask) -> Result<Permit, Verdict> {
        let since = Clock::System.at();
        loop {
            let other = match self.offer(vec![ask.clone()]).await.remove(0) {
                Verdict::Go { marks } => return Ok(Permit { ask, marks }),
                other => other,
            };
            if !is_expired(&other) || Clock::System.at().since(since) > EXPIRED_FOR_MAX {
                return Err(other);
            }
        }
    }

    /// Takes permits until one is rejected.
    pub(crate) async fn take_all(&mut self, cell: &str, rule: &Arc<Rule>) -> Vec<Permit> {
        let mut permits = Vec::new();
        while let Ok(permit) = self.take(smallvec![term(cell, rule)]).await {
            permits.push(permit);
        }
        permits
    }

    pub(crate) fn settle(&self, permit: &Permit, outcome: Outcome) {
        let Ask {
            id, terms, scopes, ..
        } = permit.ask.clone();
        self.send_settle(Settle::Permit {
            id,
            terms,
            scopes,
            outcome,
        });
    }

    /// Reports what happened to a permit or a scope.
    pub(crate) fn send_settle(&self, settle: Settle) {
        self.run_sync(|| self.ledger.settle(settle));
    }

    /// Waits until everything that this owner has settled is counted.
    pub(crate) async fn wait_settled(&self) {
        self.offer(Vec::new()).await;
    }

    pub(crate) async fn peek(&self, cell: &str, rule: &Arc<Rule>) -> CellView {
        let cells = vec![(CellId::named(&[cell]), rule.clone())];
        self.run(async { self.ledger.peek(cells).await.remove(0) })
            .await
    }

    pub(crate) async fn peek_scope(&self, scope: ScopeId) -> ScopeView {
        self.run(self.ledger.peek_scope(scope)).await
    }

    /// The events from now on.
    pub(crate) fn events(&self) -> OwnerEvents {
        OwnerEvents {
            events: self.ledger.events(),
            #[cfg(feature = "sqlite")]
            process: self.process.clone(),
        }
    }

    #[cfg(feature = "sqlite")]
    async fn run<T: WireMessage>(&self, here: impl Future<Output = T>) -> T {
        match &self.process {
            None => here.await,
            Some(remote) => remote.run(here).await,
        }
    }

    #[cfg(not(feature = "sqlite"))]
    async fn run<T>(&self, here: impl Future<Output = T>) -> T {
        here.await
    }

    fn run_sync(&self, here: impl FnOnce()) {
        #[cfg(feature = "sqlite")]
        if let Some(remote) = &self.process {
            return remote.run_sync(here);
        }
        here();
    }
}

impl OwnerEvents {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        #[cfg(feature = "sqlite")]
        if let Some(remote) = &self.process {
            return remote.run(self.events.next()).await;
        }
        self.events.next().await
    }

    pub(crate) async fn try_next(&mut self) -> Option<Event> {
        #[cfg(feature = "sqlite")]
        if let Some(remote) = &self.process {
            return remote.run(async { self.events.try_next() }).await;
        }
        self.events.try_next()
    }
}

pub(crate) fn arrived() -> Outcome {
    Outcome::Arrived {
        age: Span::ZERO,
        limited: false,
        readings: Vec::new(),
    }
}
