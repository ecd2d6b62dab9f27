//! Permits that other processes hold, by id: what the decision service hands out.
//!
//! A permit is acquired, used within `use_within` of its grant, and reported, or released if it was
//! not used. Nobody tells when its bytes leave, so limits hold it from the grant on, as if they left
//! at the end of that time.
//!
//! Promises: a report counts once; a second one says so and changes nothing. A permit that is
//! neither reported nor released in time counts as sent: its slot comes free when the call can no
//! longer arrive. The table is bounded: without a place in it no permit is taken.
//!
//! Never: believes that an unreported permit was not used.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use tollgate_core::health::{Class, Fault};
use tollgate_core::time::{Micros, Span};

use super::call::{CallOptions, Target};
use super::decide::{self, Decision, Learned};
use super::rates::Rates;
use crate::Error;
use crate::error::Reason;
use crate::providers::ProviderRegistry;

/// How long after its grant a permit may be used: long enough for a job that is about to begin, and
/// what an unreported one costs at most beside the response timeout.
pub const USE_WITHIN: Span = Span::from_secs(30);

/// Permits that are handed out at a time. At some 1 KiB each 16 MiB; with a response timeout of 30 s
/// that is 270 unreported permits per second.
pub const PERMITS_MAX: usize = 16_384;

/// Permits of other processes. Clones share the table.
#[derive(Clone, Debug)]
pub struct PermitTable {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registry: ProviderRegistry,
    use_within: Span,
    /// Ids are numbers behind a secret, so that nobody reports a permit of somebody else.
    secrets: [RandomState; 2],
    /// Taken alone: decisions are made and settled without it.
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    entries: HashMap<Arc<str>, Entry>,
    /// The first to expire first.
    by_expiry: BTreeSet<(Micros, Arc<str>)>,
    /// Places of permits that are still being decided.
    reserved: usize,
    /// Permits handed out so far.
    count: u64,
}

/// A permit, or what became of it. Closed ones stay until they expire: whoever reports twice is
/// told so.
#[derive(Debug)]
enum Entry {
    Open(Box<Decision>),
    Reported(Learned),
    Released,
}

/// A permit for another process.
#[derive(Clone, Debug)]
pub struct HandedOut {
    /// By which it is reported.
    pub id: Arc<str>,
    /// How long it waited.
    pub waited: Span,
    /// It had to wait for a limit, a scope or a time.
    pub was_queued: bool,
    /// What remained of each limit.
    pub rates: Rates,
    /// How long after now the call may reach the provider.
    pub use_within: Span,
}

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// A response.
    Response {
        /// Its status.
        status: u16,
        /// Its headers.
        headers: &'a HeaderMap,
        /// The beginning of its body, where the provider reports limits in it; may be empty.
        body: &'a [u8],
        /// The real costs, by unit, where they were estimated before.
        costs: &'a [(String, u64)],
    },
    /// No response.
    Failed(Fault),
}

/// What a report has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// It counts.
    Now(Learned),
    /// It was reported before, with this result; nothing has changed.
    Before(Learned),
    /// It was released before; nothing has changed.
    Released,
    /// There is no such permit: it expired and counts as sent, or it never was.
    Unknown,
}

/// What a release has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The permit is free for others.
    Now,
    /// It was released before.
    Before,
    /// It was reported as used.
    Used,
    /// There is no such permit: it expired and counts as sent, or it never was.
    Unknown,
}

impl PermitTable {
    /// An empty table.
    #[must_use]
    pub fn new(registry: ProviderRegistry, use_within: Span) -> PermitTable {
        PermitTable {
            shared: Arc::new(Shared {
                registry,
                use_within,
                secrets: [RandomState::new(), RandomState::new()],
                state: Mutex::default(),
            }),
        }
    }

    /// Waits for a permit, as [`decide::acquire`] does, and hands it out.
    pub async fn acquire(
        &self,
        target: impl Into<Target>,
        key: Option<&str>,
        options: CallOptions,
    ) -> Result<HandedOut, Error> {
        let Shared {
            registry,
            use_within,
            ..
        } = &*self.shared;
        let mut subject = decide::subject(registry, target.into(), options)?;
        subject.use_within = *use_within;
        let place = self.reserve().ok_or_else(|| Error::NoPermit {
            provider: subject.provider.name().to_owned(),
            entity: subject.entity.clone(),
            limit: None,
            reason: Reason::QueueFull,
            retry_in: Some(Span::from_secs(1)),
        })?;
        let decision = decide::decide(subject, key).await?;
        Ok(self.hand_out(place, decision))
    }

    /// Reports what became of a call.
    #[must_use]
    pub fn report(&self, id: &str, report: Report<'_>) -> Reported {
        let learned = Learned {
            class: report.class(),
            retry_after: None,
        };
        let mut decision = match self.close(id, Entry::Reported(learned)) {
            Closed::Open(decision) => decision,
            Closed::Reported(learned) => return Reported::Before(learned),
            Closed::Released => return Reported::Released,
            Closed::Unknown => return Reported::Unknown,
        };
        decision.count_as_sent();
        let learned = match report {
            Report::Response {
                status,
                headers,
                body,
                costs,
            } => decision.report(status, headers, body, costs),
            Report::Failed(fault) => {
                decision.failed(fault);
                learned
            }
        };
        // What it meant, for those who report it again.
        let mut state = self.shared.state.lock();
        if let Some(entry) = state.entries.get_mut(id) {
            *entry = Entry::Reported(learned);
        }
        Reported::Now(learned)
    }

    /// The permit is not used: others may have it.
    #[must_use]
    pub fn release(&self, id: &str) -> Released {
        match self.close(id, Entry::Released) {
            // Dropped before anything was sent, it is returned.
            Closed::Open(decision) => {
                drop(decision);
                Released::Now
            }
            Closed::Reported(_) => Released::Used,
            Closed::Released => Released::Before,
            Closed::Unknown => Released::Unknown,
        }
    }

    /// How many permits are handed out and neither reported nor released.
    #[must_use]
    pub fn open_permits(&self) -> usize {
        self.drop_expired();
        let state = self.shared.state.lock();
        let is_open = |entry: &&Entry| matches!(entry, Entry::Open(_));
        state.entries.values().filter(is_open).count()
    }

    /// A place in the table, or none. It is free again if no permit comes.
    fn reserve(&self) -> Option<Place<'_>> {
        self.drop_expired();
        let mut state = self.shared.state.lock();
        if state.entries.len() + state.reserved >= PERMITS_MAX {
            return None;
        }
        state.reserved += 1;
        Some(Place { table: self })
    }

    fn hand_out(&self, place: Place<'_>, decision: Decision) -> HandedOut {
        let now = self.shared.registry.ledger().at();
        let granted = decision.granted().unwrap_or(now);
        let lives = decision.use_within() + decision.response_timeout();
        let mut state = self.shared.state.lock();
        state.count += 1;
        let id = self.shared.id(state.count);
        let handed_out = HandedOut {
            id: id.clone(),
            waited: decision.waited(),
            was_queued: decision.was_queued(),
            rates: decision.rates().clone(),
            use_within: decision.use_within() - now.since(granted),
        };
        let expires = granted + lives;
        state.by_expiry.insert((expires, id.clone()));
        let decision = Box::new(decision);
        state.entries.insert(id, Entry::Open(decision));
        drop(state);
        drop(place);
        handed_out
    }

    /// Closes an open permit, so that a second report at the same time does not settle it too.
    fn close(&self, id: &str, closed: Entry) -> Closed {
        self.drop_expired();
        let mut state = self.shared.state.lock();
        let Some(entry) = state.entries.get_mut(id) else {
            return Closed::Unknown;
        };
        match entry {
            Entry::Reported(learned) => Closed::Reported(*learned),
            Entry::Released => Closed::Released,
            Entry::Open(_) => match std::mem::replace(entry, closed) {
                Entry::Open(decision) => Closed::Open(decision),
                Entry::Reported(learned) => Closed::Reported(learned),
                Entry::Released => Closed::Released,
            },
        }
    }

    /// Permits whose time is over count as sent. The ledger does not wait for this: it holds each for
    /// that long and no longer, whoever looks.
    fn drop_expired(&self) {
        let now = self.shared.registry.ledger().at();
        let mut expired = Vec::new();
        let mut state = self.shared.state.lock();
        while let Some((expires, id)) = state.by_expiry.first()
            && *expires <= now
        {
            let key = (*expires, id.clone());
            state.by_expiry.remove(&key);
            expired.extend(state.entries.remove(&key.1));
        }
        drop(state);
        for entry in expired {
            if let Entry::Open(mut decision) = entry {
                decision.count_as_sent();
            }
        }
    }
}

impl Shared {
    fn id(&self, number: u64) -> Arc<str> {
        let [one, two] = &self.secrets;
        format!("{:016x}{:016x}", one.hash_one(number), two.hash_one(number)).into()
    }
}

impl Report<'_> {
    fn class(&self) -> Class {
        match self {
            Report::Response { status, .. } => Class::of_status(*status, None),
            Report::Failed(fault) => Class::of_fault(*fault),
        }
    }
}

/// A place for a permit that is still being decided.
#[derive(Debug)]
struct Place<'a> {
    table: &'a PermitTable,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.table.shared.state.lock();
        state.reserved = state.reserved.saturating_sub(1);
    }
}

/// What an id has led to.
#[derive(Debug)]
enum Closed {
    Open(Box<Decision>),
    Reported(Learned),
    Released,
    Unknown,
}
