//! The types of the decision: the ask, its verdict, and how a permit is settled afterwards.
//!
//! Promises: plain data. Only ages and delays cross this boundary, never instants, because the
//! clocks of a process, a host and a store differ.
//!
//! Never: decides anything. `turn` does.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::limit::Rule;
use crate::time::{Span, Wall};

/// The oldest grant under which bytes may leave: a call that is sent later would arrive later than
/// the ledger assumes. Half a second is far above any scheduling delay of a healthy host.
pub const GRANT_AGE_MAX: Span = Span::from_millis(500);

/// A process that shares a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u32);

impl OwnerId {
    /// No number: the store has not given one so far. Stores give numbers from 1 on.
    pub const UNKNOWN: OwnerId = OwnerId(0);
}

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
/// The id is a hash of names (provider, per, period, algorithm, ordinal, key), never of the limit's
/// number. So a change from 35 to 40 uses the same cell and keeps its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId(pub u128);

/// The part of a provider that a cool-down, a sleep or a degrade closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub u128);

/// The path of a call, with ids collapsed, as a number that is the same in every process
/// ([`PathTag::of`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathTag(pub(crate) u64);

/// How urgent a call is. Ordered: `Low < Normal < High`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Background work.
    Low,
    /// The default.
    #[default]
    Normal,
    /// A person is waiting for the response.
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
    /// The cell that counts it.
    pub cell: CellId,
    /// The rule that applies.
    pub rule: Arc<Rule>,
    /// How much this ask costs, in the limit's unit.
    pub cost: u64,
    /// The part of the limit that only high priority may use (`reserve`). The ask's current
    /// priority decides: a call raised to high may use it, and a caller that may not send high
    /// cannot.
    pub reserve: u64,
}

impl Term {
    /// How much of the limit an ask of this priority may not use.
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

/// What the ledger learns about a permit after the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The owner settles the permit. If it does not, the call may still arrive until `timeout +
    /// late` after the grant.
    Report {
        /// The owner stops waiting for a response after this time.
        timeout: Span,
        /// How long an abandoned call may still take to arrive.
        late: Span,
    },
    /// Nobody settles the permit. The count is exact if the call reaches the provider within
    /// `use_within`. Only tests use it: the decision service reports, or expires its permits.
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

/// One attempt that needs a permit: all of its terms are granted, or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The id of this ask, and of the permit if it is granted.
    pub id: PermitId,
    /// Every limit that must agree.
    pub terms: Terms,
    /// Every scope that must be open.
    pub scopes: Scopes,
    /// How urgent it is.
    pub priority: Priority,
    /// How its outcome becomes known.
    pub evidence: Evidence,
    /// How long it waits if it is not granted now. It does not affect this grant. Processes that
    /// share a ledger reserve capacity only for asks that wait. The gate fills it in.
    pub max_wait: Span,
}

impl Ask {
    /// It was granted and nothing is sent: the settle that returns the permit.
    #[must_use]
    pub fn into_unsent(self) -> Settle {
        Settle::Permit {
            id: self.id,
            terms: self.terms,
            scopes: self.scopes,
            outcome: Outcome::Unsent,
        }
    }
}

/// The ledger's decision about one ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Granted and counted.
    Go {
        /// The counts at the grant, one per term. A [`LimitReading`] returns them; they make the
        /// provider's "remaining" exact when many processes share the limit.
        marks: Marks,
    },
    /// Not now. Nothing was counted.
    Wait {
        /// With [`WakeOn::Time`]: it cannot be granted earlier than this from now. With
        /// [`WakeOn::Event`] and [`WakeOn::Release`]: it is free after this time even if no event
        /// comes.
        after: Span,
        /// What ends the wait.
        on: WakeOn,
        /// Which term or scope blocks it.
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
    /// The settled part of `granted`.
    pub settled: u64,
    /// What was in use.
    pub used: u64,
    /// What was remaining: the smaller of our count and the provider's.
    pub remaining: u64,
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOn {
    /// A known time: one timer is enough.
    Time,
    /// A settle of another permit, or a scope that opens: the ledger reports it.
    Event,
    /// The same, but responses alone cannot end the wait within the ask's `max_wait`: only a permit
    /// that is returned unsent, or that turns out to have cost less, can.
    Release,
}

impl WakeOn {
    /// Does the ledger report the end of the wait?
    #[must_use]
    pub fn is_event(self) -> bool {
        match self {
            WakeOn::Event | WakeOn::Release => true,
            WakeOn::Time => false,
        }
    }
}

/// Which part of an ask blocks it.
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
    /// The cost is above the most that this limit ever grants at this priority.
    TooCostly {
        /// Index in `terms`.
        term: usize,
        /// The most that the limit grants to this ask.
        max_cost: u64,
    },
}

/// What happened to a permit or to a scope.
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
        /// The terms it was granted under. For [`Outcome::Finished`] and [`Outcome::Complete`]
        /// their `cost` is the actual cost.
        terms: Terms,
        /// The scopes it was granted under: a probe that was not sent returns its place.
        scopes: Scopes,
        /// What happened.
        outcome: Outcome,
    },
    /// A scope closes: cool-down, sleep, degrade, or an operator's command.
    Close {
        /// Which one.
        scope: ScopeId,
        /// How long ago the reason was seen.
        age: Span,
        /// For how long from then; `None` = until it is opened.
        closed_for: Option<Span>,
        /// How it reopens.
        reopen: Reopen,
    },
    /// The provider limited a call: the scope cools down, and then opens as the provider accepts calls.
    Limited {
        /// Which one.
        scope: ScopeId,
        /// How long ago the 429 was seen.
        age: Span,
        /// How long ago the call was granted: one that was already sent at the last 429 says nothing new.
        granted: Span,
        /// For how long it is closed, from the 429 on.
        closed_for: Span,
    },
    /// A changed limit has a new cell: usage counted in the old cell counts in the new one too.
    /// When it is repeated, only usage since the last time is added.
    Inherit {
        /// The old cell.
        from: CellId,
        /// The old limit.
        old_rule: Arc<Rule>,
        /// The new cell.
        to: CellId,
        /// The new limit.
        rule: Arc<Rule>,
    },
    /// A scope opens for every call.
    Open {
        /// Which one.
        scope: ScopeId,
    },
    /// An attempt failed while the scope was open. All owners of a ledger count such failures
    /// together: the failure that completes a run of `in_a_row` closes the scope for every owner.
    Failed {
        /// Which one.
        scope: ScopeId,
        /// How long ago the failure was seen.
        age: Span,
        /// This many consecutive failures close it.
        in_a_row: u32,
        /// For how long from then. A probe follows.
        closed_for: Span,
        /// The path that failed. Failures of one path alone do not close the scope, however many
        /// they are; `None` = the failure is not about a path.
        path: Option<PathTag>,
    },
    /// An attempt succeeded: it ends a run of failures. A permit that arrived already implies this;
    /// use it for a response that the provider does not count.
    Succeeded {
        /// Which one.
        scope: ScopeId,
    },
}

/// How a closed scope opens again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// It opens for every call.
    All,
    /// One probe at a time; its result opens or closes the scope.
    Probe,
    /// An operator opens it. Until then responses come from the cache only. If the operator named
    /// an end and nobody opens it by then, one call probes.
    ByOperator,
    /// An operator opens it, or it opens for every call at the operator's end time. Until then
    /// calls wait.
    Paused,
}

/// What happened to a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response head arrived, so the call has reached the provider. Windows and buckets start
    /// to count down, unless they already do since the call was presumed to have arrived.
    Arrived {
        /// How long ago the head arrived.
        age: Span,
        /// The provider limited it (429 or an equivalent).
        limited: bool,
        /// What the response said about limits.
        readings: Readings,
    },
    /// The head of a response arrived that does not prove that the provider counted the call, such
    /// as a 5xx. It is counted here, but it may not have opened a window at the provider.
    Failed {
        /// How long ago the head arrived.
        age: Span,
    },
    /// The body ended: the concurrency slot is free, and costs that are only known now are exact.
    Finished {
        /// How long ago the body ended.
        age: Span,
    },
    /// The complete response arrived at once, and its head says nothing about limits: the same as
    /// `Arrived` and then `Finished`.
    Complete {
        /// How long ago it arrived.
        age: Span,
    },
    /// There is no response yet, but the whole request left so long ago that it has met the
    /// provider's limiter (`arrive_within`), or its connection would be dead. Limits with
    /// `hold_until: arrived` count it as arrived; no other limit and no scope changes.
    Presumed {
        /// How long ago it must have arrived.
        age: Span,
    },
    /// No byte was sent: as if the permit had never been granted.
    Unsent,
    /// Abandoned without a response: it may have arrived or may still arrive.
    Unknown {
        /// How long ago it was abandoned.
        age: Span,
        /// How long after that it may still arrive.
        late: Span,
    },
    /// Still streaming: hold the concurrency slot longer.
    Alive {
        /// For how long from now.
        extend_by: Span,
    },
}

/// What the provider said about limits in one response.
pub type Readings = Vec<LimitReading>;

/// What the provider said about one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitReading {
    /// Index in `terms`.
    pub term: usize,
    /// The mark of the grant for this term.
    pub mark: Mark,
    /// How much is remaining, in the limit's unit.
    pub remaining: Option<u64>,
    /// The limit that the provider enforces now.
    pub limit: Option<u64>,
    /// How long until the provider's count resets.
    pub reset_after: Option<Span>,
    /// The provider's own clock (`Date`). It confirms a local wall clock that was changed.
    pub date: Option<Wall>,
}

impl PathTag {
    /// The number, for another process.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The path that another process has numbered so.
    #[must_use]
    pub fn from_number(number: u64) -> PathTag {
        PathTag(number)
    }
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

/// A collision-resistant hash, because entity names and keys come from callers: no caller may
/// choose a name that counts in another caller's cell. Lengths are hashed, so `a|bc` differs from
/// `ab|c`.
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
