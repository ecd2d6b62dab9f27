//! The nouns of the decision: what is asked, what is answered, what is settled afterwards.
//!
//! Promises: plain data. Ages and delays cross this boundary, never instants, because the clocks of
//! a process, a host and a store differ.
//!
//! Never: decides anything. `turn` does.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::Rule;
use crate::time::{Span, Wall};

/// A process that shares a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u32);

/// One ask and, once granted, one permit. Unique among the live permits of a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId {
    /// The process that asked.
    pub owner: OwnerId,
    /// Its running number; an owner never uses one twice.
    pub seq: u64,
}

/// The state of one limit for one key.
///
/// The identity is made of names (provider, per, period, algorithm, ordinal, key), never of the
/// limit's number: 35 → 40 keeps the cell and so forgets nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub u128);

/// The part of a provider that a cool-down, a sleep or a degrade closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u128);

/// How urgent a call is. Ordered: `Low < Normal < High`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Background work.
    Low,
    /// Everything that says nothing.
    #[default]
    Normal,
    /// A person waits for it.
    High,
}

/// What a limit counts. The numbers of one limit are all in its own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CostUnit {
    /// Calls, whatever their size.
    #[default]
    Calls,
    /// Tokens of a language model.
    Tokens,
    /// Points or weights of a provider's own price list.
    Points,
    /// Bytes of bodies.
    Bytes,
}

/// One limit that an ask must pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Where it is counted.
    pub cell: CellId,
    /// By which rule.
    pub rule: Arc<Rule>,
    /// How much this ask takes, in the limit's unit.
    pub cost: u64,
    /// The part of the limit that only high priority may touch (`reserve`). It follows the ask's
    /// priority, so one that has become urgent may use it and one that may not be urgent cannot.
    pub reserve: u64,
}

impl Term {
    /// What an ask of this priority must leave.
    #[must_use]
    pub fn reserve_for(&self, priority: Priority) -> u64 {
        match priority {
            Priority::High => 0,
            Priority::Normal | Priority::Low => self.reserve,
        }
    }
}

/// The limits of one ask. Four cover every preset; more spill to the heap.
pub type Terms = SmallVec<[Term; 4]>;

/// The scopes of one ask: provider, entity, key.
pub type Scopes = SmallVec<[ScopeId; 3]>;

/// What the ledger will hear of a permit after it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The owner settles the permit. If it does not, the call may still arrive until
    /// `by + late` after the grant.
    Report {
        /// When the owner itself gives up on an answer.
        timeout: Span,
        /// How long a call that was given up may still be on its way.
        late: Span,
    },
    /// Nobody reports. Exact if the call has reached the provider within `use_within`.
    None {
        /// The longest time between the grant and the arrival.
        use_within: Span,
    },
}

impl Evidence {
    /// The longest time after the grant at which the call may still reach the provider.
    #[must_use]
    pub fn latest_arrival(self) -> Span {
        match self {
            Evidence::Report { timeout: by, late } => by + late,
            Evidence::None { use_within } => use_within,
        }
    }
}

/// One attempt that wants to go: all of its terms, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Its name, and the permit's name if it is granted.
    pub id: PermitId,
    /// Every limit that must agree.
    pub terms: Terms,
    /// Every scope that must be open.
    pub scopes: Scopes,
    /// How urgent it is.
    pub priority: Priority,
    /// What will be heard of it.
    pub evidence: Evidence,
    /// How long it waits if it is refused. It grants nothing: where processes share a ledger, others
    /// leave something only to those who wait. A gate fills it in.
    pub max_wait: Span,
}

/// What the ledger answers to one ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Granted and counted.
    Go {
        /// Per term: the counts at the grant. Handed back in a [`Reading`], they make the provider's
        /// "remaining" exact among many processes.
        marks: Marks,
    },
    /// Not now. Nothing was counted.
    Wait {
        /// With [`WakeOn::Time`]: it cannot be granted before this long from now. With [`WakeOn::Event`]:
        /// the time at which it frees by itself if no event comes earlier.
        after: Span,
        /// What ends the wait.
        on: WakeOn,
        /// Who refused.
        by: BlockedBy,
    },
    /// Not now and not later. Nothing was counted.
    Never(NeverReason),
}

/// The counts at a grant, one per term.
pub type Marks = SmallVec<[Mark; 4]>;

/// Where a cell's counts stood when a permit was granted, that permit included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Everything ever granted in this cell.
    pub granted: u64,
    /// The part of it that had been settled.
    pub settled: u64,
    /// What was in use.
    pub used: u64,
    /// What was left: the smaller of ours and the provider's.
    pub remaining: u64,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOn {
    /// A known time: one timer is enough.
    Time,
    /// A settle of another permit, or a scope that opens: the ledger tells.
    Event,
}

/// Which part of an ask was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockedBy {
    /// The limit with this index in `terms`.
    Term(usize),
    /// The scope with this index in `scopes`.
    Scope(usize),
}

/// Why waiting cannot help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeverReason {
    /// The cost is above what the limit with this index ever has for this priority.
    TooCostly {
        /// Index in `terms`.
        term: usize,
        /// What the limit has at most for this ask.
        max_cost: u64,
    },
}

/// What became of a permit, or of a scope.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every settle is about a permit"
)]
pub enum Settle {
    /// About a permit that was granted.
    Permit {
        /// Which one.
        id: PermitId,
        /// The terms it was granted under. For [`Outcome::Finished`] and [`Outcome::Whole`] their
        /// `cost` is the true cost.
        terms: Terms,
        /// The scopes it was granted under: a probe that never left gives its place back.
        scopes: Scopes,
        /// What happened.
        outcome: Outcome,
    },
    /// A scope rests: cool-down, sleep, degrade, or by hand.
    Close {
        /// Which one.
        scope: ScopeId,
        /// How long ago that was found out.
        age: Span,
        /// How long from then; `None` = until opened.
        closed_for: Option<Span>,
        /// What follows the rest.
        reopen: Reopen,
    },
    /// A limit was configured anew in a way that gives it another cell: what the former one has
    /// counted counts in the new one too. Said again, only what came since is added.
    Inherit {
        /// Where it was counted.
        from: CellId,
        /// By which limit.
        old_rule: Arc<Rule>,
        /// Where it is counted from now on.
        to: CellId,
        /// By which limit.
        rule: Arc<Rule>,
    },
    /// A scope is open for everybody again.
    Open {
        /// Which one.
        scope: ScopeId,
    },
    /// An attempt failed while the scope was open. The owners of a ledger count such failures in one
    /// row: whoever's makes it long enough closes the scope for everybody.
    Failed {
        /// Which one.
        scope: ScopeId,
        /// How long ago that was found out.
        age: Span,
        /// So many in a row close it.
        in_a_row: u32,
        /// For how long from then; a probe follows.
        closed_for: Span,
    },
    /// An attempt went well: a row of failures ends. Permits that arrived say so by themselves; this
    /// is for an answer that the provider does not count.
    Succeeded {
        /// Which one.
        scope: ScopeId,
    },
}

/// What follows the rest of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// Everybody may go.
    All,
    /// One call at a time tries; the scope opens or closes again by what it finds.
    Probe,
    /// Somebody's word; until then answers come from the cache only. A rest is the end that whoever
    /// ordered it has named: if nobody is there to give the word then, one call tries.
    ByOperator,
}

/// What became of a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The head of the answer is here, so the call has reached the provider. Windows and buckets
    /// start to count down.
    Arrived {
        /// How long ago the head came.
        age: Span,
        /// The provider refused it for a limit (429 and its dialects).
        limited: bool,
        /// What the answer said about limits.
        readings: Readings,
    },
    /// The head of an answer is here that does not prove that the call was counted, such as a 5xx.
    /// It counts as if it had been, but a window of the provider's may not have opened with it.
    Failed {
        /// How long ago the head came.
        age: Span,
    },
    /// The end of the body is here: concurrency is free, and costs known only now are true.
    Finished {
        /// How long ago the end came.
        age: Span,
    },
    /// All of an answer is here at once, and its head has nothing to say: as if it had arrived, and
    /// then finished.
    Complete {
        /// How long ago it came.
        age: Span,
    },
    /// No byte of it left this host: as if it had never been granted.
    Unsent,
    /// Given up without an answer: it may have arrived or may still arrive.
    Unknown {
        /// How long ago it was given up.
        age: Span,
        /// How long after that it may still arrive.
        late: Span,
    },
    /// Still streaming: concurrency is held for `by` more.
    Alive {
        /// From now.
        extend_by: Span,
    },
}

/// What the provider said about limits in one answer.
pub type Readings = Vec<LimitReading>;

/// What the provider said about one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitReading {
    /// Index in `terms`.
    pub term: usize,
    /// The mark that the grant gave for this term.
    pub mark: Mark,
    /// How much is left, in the limit's unit.
    pub remaining: Option<u64>,
    /// The limit that the provider enforces now.
    pub limit: Option<u64>,
    /// How long until the provider's count starts anew.
    pub reset_after: Option<Span>,
    /// The provider's own clock (`Date`), which decides about a wall clock that was set.
    pub date: Option<Wall>,
}

impl CellId {
    /// The cell with these names.
    #[must_use]
    pub fn named(parts: &[&str]) -> CellId {
        CellId(fingerprint("cell", parts))
    }
}

impl ScopeId {
    /// The scope with these names.
    #[must_use]
    pub fn named(parts: &[&str]) -> ScopeId {
        ScopeId(fingerprint("scope", parts))
    }
}

/// Collision-resistant, because entity names and keys come from callers: nobody may choose a name
/// that counts in somebody else's cell. Lengths are hashed so that `a|bc` differs from `ab|c`.
fn fingerprint(kind: &str, parts: &[&str]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for part in std::iter::once(&kind).chain(parts) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_ids_depend_on_each_name_and_on_where_it_ends() {
        assert_eq!(
            CellId::named(&["tmdb", "1s"]),
            CellId::named(&["tmdb", "1s"])
        );
        assert_ne!(CellId::named(&["a", "bc"]), CellId::named(&["ab", "c"]));
        assert_ne!(CellId::named(&["a"]).0, ScopeId::named(&["a"]).0);
    }

    #[test]
    fn a_permit_without_reports_may_arrive_within_its_use_time() {
        let none = Evidence::None {
            use_within: Span::from_secs(2),
        };
        assert_eq!(none.latest_arrival(), Span::from_secs(2));
        let report = Evidence::Report {
            timeout: Span::from_secs(30),
            late: Span::from_secs(5),
        };
        assert_eq!(report.latest_arrival(), Span::from_secs(35));
    }
}
