//! For tests: one table, one clock, and asks in one line each.
//!
//! Promises: defaults are ordinary (one term, cost 1, normal priority, settled by its owner).
//!
//! Never: in the product.

use std::sync::Arc;

use smallvec::smallvec;

use crate::ask::{
    Ask, CellId, Evidence, LimitReading, Marks, Outcome, OwnerId, PermitId, Priority, Scopes,
    Settle, Term, Terms, Verdict, WakeOn,
};
use crate::limit::{CellView, Rule};
use crate::table::Table;
use crate::time::{Micros, Now, Span, Wall};
use crate::turn::{Turn, turn};

/// 2026-03-01T00:00:00Z, so that calendars have ordinary days around them.
pub(crate) const START: Wall = Wall(1_772_323_200_000_000);

pub(crate) const fn ms(millis: u64) -> Span {
    Span::from_millis(millis)
}

pub(crate) const fn s(secs: u64) -> Span {
    Span::from_secs(secs)
}

/// One table and one clock that both clocks follow unless a test sets the wall clock.
#[derive(Debug)]
pub(crate) struct TestLedger {
    pub(crate) table: Table,
    pub(crate) now: Now,
    seq: u64,
}

/// A granted permit with the data to settle it.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    pub(crate) id: PermitId,
    pub(crate) terms: Terms,
    pub(crate) marks: Marks,
}

impl TestLedger {
    pub(crate) fn new() -> TestLedger {
        // Not zero: no code may depend on a clock that starts with the process.
        TestLedger {
            table: Table::default(),
            now: Now {
                at: Micros(7_000_000_000),
                wall: START,
            },
            seq: 0,
        }
    }

    pub(crate) fn advance(&mut self, span: Span) {
        self.now.at += span;
        self.now.wall = self.now.wall + span;
    }

    pub(crate) fn term(cell: &str, rule: &Rule) -> Term {
        Term {
            cell: CellId::named(&[cell]),
            rule: Arc::new(rule.clone()),
            cost: 1,
            reserve: 0,
        }
    }

    pub(crate) fn ask(&mut self, terms: Terms, priority: Priority) -> Ask {
        self.seq += 1;
        let id = PermitId {
            owner: OwnerId(1),
            seq: self.seq,
        };
        let evidence = Evidence::Report {
            timeout: s(30),
            late: s(5),
        };
        Ask {
            id,
            terms,
            scopes: Scopes::new(),
            priority,
            max_wait: Span::ZERO,
            evidence,
        }
    }

    pub(crate) fn turn(&mut self, settles: &[Settle], asks: &[Ask]) -> Turn {
        turn(&mut self.table, self.now, settles, asks)
    }

    /// Asks once under these terms.
    #[expect(clippy::result_large_err, reason = "tests ask a few times")]
    pub(crate) fn try_terms(
        &mut self,
        terms: Terms,
        priority: Priority,
    ) -> Result<Permit, Verdict> {
        let ask = self.ask(terms, priority);
        match self
            .turn(&[], std::slice::from_ref(&ask))
            .verdicts
            .remove(0)
        {
            Verdict::Go { marks } => Ok(Permit {
                id: ask.id,
                terms: ask.terms,
                marks,
            }),
            other @ (Verdict::Wait { .. } | Verdict::Never(_)) => Err(other),
        }
    }

    /// Asks once under one rule, in the cell `x`.
    #[expect(clippy::result_large_err, reason = "tests ask a few times")]
    pub(crate) fn try_one(&mut self, rule: &Rule) -> Result<Permit, Verdict> {
        self.try_terms(smallvec![TestLedger::term("x", rule)], Priority::Normal)
    }

    /// Takes all permits that are free now.
    pub(crate) fn take_all(&mut self, rule: &Rule) -> Vec<Permit> {
        let mut permits = Vec::new();
        while let Ok(permit) = self.try_one(rule) {
            permits.push(permit);
            assert!(permits.len() < 100_000, "the rule never rejects");
        }
        permits
    }

    /// How long the next ask under this rule has to wait.
    pub(crate) fn wait(&mut self, rule: &Rule) -> (Span, WakeOn) {
        match self.try_one(rule) {
            Err(Verdict::Wait { after, on, .. }) => (after, on),
            other => panic!("expected a wait, got {other:?}"),
        }
    }

    pub(crate) fn settle(&mut self, permit: &Permit, outcome: Outcome) -> Turn {
        let (id, terms) = (permit.id, permit.terms.clone());
        self.turn(
            &[Settle::Permit {
                id,
                terms,
                scopes: Scopes::new(),
                outcome,
            }],
            &[],
        )
    }

    pub(crate) fn arrive(&mut self, permit: &Permit) -> Turn {
        self.settle(permit, arrived())
    }

    pub(crate) fn arrive_all(&mut self, permits: &[Permit]) {
        for permit in permits {
            self.arrive(permit);
        }
    }

    /// A response with a reading for the first term.
    pub(crate) fn arrive_with_reading(
        &mut self,
        permit: &Permit,
        limited: bool,
        reading: LimitReading,
    ) -> Turn {
        let reading = LimitReading {
            mark: permit.marks[0],
            ..reading
        };
        self.settle(
            permit,
            Outcome::Arrived {
                age: Span::ZERO,
                limited,
                readings: vec![reading],
            },
        )
    }

    /// The length of everything that the cell consists of, as text.
    pub(crate) fn size_of_state(&self) -> usize {
        format!("{:?}", self.table.get(CellId::named(&["x"]))).len()
    }

    pub(crate) fn peek(&self, rule: &Rule) -> CellView {
        let cell = self
            .table
            .get(CellId::named(&["x"]))
            .cloned()
            .unwrap_or_default();
        cell.peek(rule, self.now)
    }
}

pub(crate) fn arrived() -> Outcome {
    Outcome::Arrived {
        age: Span::ZERO,
        limited: false,
        readings: Vec::new(),
    }
}
