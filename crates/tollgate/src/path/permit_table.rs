//! Permits that other processes hold, by id: what the decision service hands out.
//!
//! A permit is acquired, used within `use_within` of its grant, and reported, or released if it was
//! not used. Nobody tells when its bytes leave, so limits hold it from the grant on, as if they left
//! at the end of that time.
//!
//! Promises: a report counts once; a second one says so and changes nothing. A permit that is
//! neither reported, released nor renewed in time counts as sent: its slot comes free when the call can no
//! longer arrive. So does one that is open when the table goes. The table is bounded: without a place
//! in it no permit is taken, and no caller has more than its share of the places. Permits that are closed take no place of open ones.
//!
//! Never: believes that an unreported permit was not used.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tollgate_core::time::{Micros, Span};

use super::call::{CallOptions, Target};
use super::call_end::ExternalCall;
use super::decide::{self, AcquiredPermit, Learned};
use super::detached_permit::{self, DetachedPermit, StoredPermit};
pub use super::open_permits::{CLOSED_MAX, PERMITS_MAX};
use super::open_permits::{ClosedPermit, OpenPermit, TableState};
pub use super::permit_report::{IssuedPermit, ProviderPermits, Released, Report, Reported};
use crate::Error;
use crate::caller_shares::PlaceHolder;
use crate::error::Reason;
use crate::providers::ProviderRegistry;
use crate::timer;

/// How long after its grant a permit may be used: long enough for a job that is about to begin, and
/// what an unreported one costs at most beside the response timeout.
pub const USE_WITHIN: Span = Span::from_secs(30);

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
    /// Another permit is the first to expire.
    first_changed: Arc<Notify>,
}

/// A report that is being evaluated. Whoever reports the same permit meanwhile waits for the result,
/// which also a panic must not keep from it.
#[derive(Debug)]
struct ReportInProgress {
    result: Arc<OnceLock<Learned>>,
    provisional: Learned,
}

impl Drop for ReportInProgress {
    fn drop(&mut self) {
        self.result.get_or_init(|| self.provisional);
    }
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
                state: Mutex::new(TableState::new()),
                first_changed: Arc::default(),
            }),
        }
    }

    /// Waits for a permit, as [`decide::acquire`] does, and hands it out.
    pub async fn acquire(
        &self,
        target: impl Into<Target>,
        key: Option<&str>,
        options: CallOptions,
    ) -> Result<IssuedPermit, Error> {
        let Shared {
            registry,
            use_within,
            ..
        } = &*self.shared;
        let mut end = ExternalCall::begin(registry.events(), &options);
        let holder = holder(&options);
        let subject = decide::subject(registry, target.into(), options);
        let mut subject = end.check(subject)?;
        subject.use_within = *use_within;
        end.on_routed(&mut subject);
        let place = self.reserve(holder);
        let place = place.ok_or_else(|| self.no_place(subject.provider.name()));
        let place = end.check(place)?;
        let decision = decide::decide(subject, key, end).await?;
        Ok(self.hand_out(place, decision))
    }

    /// Reports what became of a call.
    #[must_use]
    pub fn report(&self, id: &str, report: Report<'_>) -> Reported {
        self.report_timed(id, report, None)
    }

    /// As [`PermitTable::report`], with the time that the response took; else it counts from the grant.
    #[must_use]
    pub fn report_timed(&self, id: &str, report: Report<'_>, took: Option<Span>) -> Reported {
        let provisional = Learned {
            class: report.class(),
            retry_after: None,
        };
        let result = Arc::default();
        let mut decision = match self.close(id, ClosedPermit::Reported(Arc::clone(&result))) {
            Closed::Now(decision) => decision,
            // It is being evaluated on another thread, which takes microseconds.
            Closed::Before(ClosedPermit::Reported(result)) => {
                return Reported::Before(*result.wait());
            }
            Closed::Before(ClosedPermit::Released) => return Reported::Released,
            Closed::Unknown => return Reported::Unknown,
        };
        let in_progress = ReportInProgress {
            result,
            provisional,
        };
        decision.count_as_sent();
        decision.took = took;
        let learned = match report {
            Report::Response {
                status,
                headers,
                body,
                costs,
            } => decision.report(status, headers, body, costs),
            Report::Failed(fault) => {
                decision.failed(fault);
                provisional
            }
        };
        Reported::Now(*in_progress.result.get_or_init(|| learned))
    }

    /// The permit is not used: others may have it.
    #[must_use]
    pub fn release(&self, id: &str) -> Released {
        match self.close(id, ClosedPermit::Released) {
            // Dropped before anything was sent, it is returned.
            Closed::Now(decision) => {
                drop(decision);
                Released::Now
            }
            Closed::Before(ClosedPermit::Reported(_)) => Released::Used,
            Closed::Before(ClosedPermit::Released) => Released::Before,
            Closed::Unknown => Released::Unknown,
        }
    }

    /// What became of a permit that is no longer open.
    #[must_use]
    pub fn closed(&self, id: &str) -> Released {
        let state = self.shared.state.lock();
        match state.closed.get(id) {
            Some((_, ClosedPermit::Reported(_))) => Released::Used,
            Some((_, ClosedPermit::Released)) => Released::Before,
            None => Released::Unknown,
        }
    }

    /// The process that holds a permit still works under it: from now on it is held as long as a new one.
    /// Returns how long the call may still reach the provider; `None` = there is no open permit of this id.
    #[must_use]
    pub fn keep_alive(&self, id: &str) -> Option<Span> {
        self.shared.drop_expired();
        let now = self.shared.registry.ledger().at();
        let mut state = self.shared.state.lock();
        let (id, _) = state.open.get_key_value(id)?;
        let id = id.clone();
        let permit = state.open.get_mut(&id)?;
        let lives = permit.decision.use_within() + permit.decision.response_timeout();
        let before = std::mem::replace(&mut permit.expires, now + lives);
        let alive = permit.decision.alive(lives);
        let use_within = permit.decision.use_within();
        state.by_expiry.remove(&(before, id.clone()));
        state.by_expiry.insert((now + lives, id));
        drop(state);
        // A report may come in between: then there is nothing left to extend.
        if let Some((ledger, settle)) = alive {
            ledger.settle(settle);
        }
        Some(use_within)
    }

    /// Takes an open permit out of the table: another process will settle it. It counts as sent until then.
    #[must_use]
    pub fn detach(&self, id: &str) -> Option<DetachedPermit> {
        self.shared.drop_expired();
        let mut state = self.shared.state.lock();
        let (_, permit) = state.take_open(id)?;
        drop(state);
        detached_permit::detach(*permit.decision)
    }

    /// Takes all open permits out of the table, because this process ends: the next one takes them up.
    /// They count as sent until then.
    #[must_use]
    pub fn detach_all(&self) -> Vec<StoredPermit> {
        self.shared.drop_expired();
        let mut state = self.shared.state.lock();
        let ids: Vec<Arc<str>> = state.open.keys().cloned().collect();
        let taken = ids.iter().filter_map(|id| state.take_open(id));
        let taken: Vec<_> = taken.collect();
        drop(state);
        let stored = taken.into_iter().filter_map(|((expires, id), permit)| {
            Some(StoredPermit {
                id: id.to_string(),
                holder: permit.holder.as_deref().map(str::to_owned),
                permit: detached_permit::detach(*permit.decision)?.with_end(expires),
            })
        });
        stored.collect()
    }

    /// Takes up a permit of the table of a process that ended. Returns whether it is open, as
    /// [`PermitTable::attach`] does.
    pub async fn attach_stored(&self, stored: &StoredPermit) -> Result<bool, Error> {
        let holder = stored.holder.as_deref().map(Arc::from);
        self.attach_for(&stored.id, holder, &stored.permit).await
    }

    /// Takes up a permit that another process has detached. Returns whether it is open: otherwise it
    /// has expired and counts as sent, or the table is full.
    pub async fn attach(&self, id: &str, detached: &DetachedPermit) -> Result<bool, Error> {
        self.attach_for(id, None, detached).await
    }

    async fn attach_for(
        &self,
        id: &str,
        holder: PlaceHolder,
        detached: &DetachedPermit,
    ) -> Result<bool, Error> {
        let now = self.shared.registry.ledger().at();
        let expires = detached.expires(now).filter(|expires| *expires > now);
        let (Some(expires), Some(place)) = (expires, self.reserve(holder)) else {
            return Ok(false);
        };
        let decision = detached_permit::attach(&self.shared.registry, detached).await?;
        self.insert(place, id.into(), Box::new(decision), expires);
        Ok(true)
    }

    /// How many permits are handed out and neither reported nor released.
    #[must_use]
    pub fn open_permits(&self) -> usize {
        self.shared.drop_expired();
        self.shared.state.lock().open.len()
    }

    /// The permits of one provider that are open, and those that expired without a word since the
    /// start.
    #[must_use]
    pub fn of_provider(&self, name: &str) -> ProviderPermits {
        self.shared.drop_expired();
        let state = self.shared.state.lock();
        let is_of = |permit: &&OpenPermit| permit.decision.provider() == name;
        ProviderPermits {
            open: state.open.values().filter(is_of).count(),
            unreported: state.unreported.get(name).copied().unwrap_or(0),
        }
    }

    /// Why a call of this provider with these options would get no place in the table; `None`: it
    /// would.
    #[must_use]
    pub fn full_for(&self, provider: &str, options: &CallOptions) -> Option<Error> {
        self.shared.drop_expired();
        let holder = holder(options);
        let has_place = self.shared.state.lock().places.has_place(holder.as_deref());
        (!has_place).then(|| self.no_place(provider))
    }

    /// Whether this caller has acquired the permit: then it may settle it.
    #[must_use]
    pub fn is_held_by(&self, id: &str, caller: &str) -> bool {
        let state = self.shared.state.lock();
        let open = state.open.get(id).map(|permit| &permit.holder);
        let holder = open.or_else(|| state.closed.get(id).map(|(holder, _)| holder));
        holder.is_some_and(|holder| holder.as_deref() == Some(caller))
    }

    /// A place in the table, or none. It is free again if no permit comes.
    fn reserve(&self, holder: PlaceHolder) -> Option<TableSlot<'_>> {
        self.shared.drop_expired();
        let is_taken = self.shared.state.lock().places.take(&holder);
        // Lazily: a slot that was not taken would give one back when it is dropped.
        is_taken.then(|| TableSlot {
            table: self,
            holder,
            is_used: false,
        })
    }

    /// The table has no place for another permit before the first one expires.
    fn no_place(&self, provider: &str) -> Error {
        let now = self.shared.registry.ledger().at();
        let state = self.shared.state.lock();
        let first = state.by_expiry.first().map(|(expires, _)| *expires);
        Error::NoPermit {
            provider: provider.to_owned(),
            entity: None,
            limit: None,
            reason: Reason::PermitsOpen,
            retry_in: Some(first.map_or(Span::from_secs(1), |first| first.since(now))),
        }
    }

    fn hand_out(&self, place: TableSlot<'_>, decision: AcquiredPermit) -> IssuedPermit {
        let now = self.shared.registry.ledger().at();
        let granted = decision.granted().unwrap_or(now);
        let lives = decision.use_within() + decision.response_timeout();
        let count = {
            let mut state = self.shared.state.lock();
            state.count += 1;
            state.count
        };
        let id = self.shared.id(count);
        let handed_out = IssuedPermit {
            id: id.clone(),
            waited: decision.waited(),
            was_queued: decision.was_queued(),
            rates: decision.rates().clone(),
            use_within: decision.use_within() - now.since(granted),
        };
        self.insert(place, id, Box::new(decision), granted + lives);
        handed_out
    }

    fn insert(
        &self,
        mut place: TableSlot<'_>,
        id: Arc<str>,
        decision: Box<AcquiredPermit>,
        expires: Micros,
    ) {
        let mut state = self.shared.state.lock();
        state.by_expiry.insert((expires, id.clone()));
        let is_first = state
            .by_expiry
            .first()
            .is_some_and(|(_, first)| *first == id);
        place.is_used = true;
        let holder = place.holder.take();
        let permit = OpenPermit {
            decision,
            expires,
            holder,
        };
        state.open.insert(id, permit);
        let needs_timer = !std::mem::replace(&mut state.has_timer, true);
        drop(state);
        drop(place);
        if needs_timer {
            self.start_timer();
        } else if is_first {
            self.shared.first_changed.notify_one();
        }
    }

    /// Expires permits also while nobody uses the table. Without a runtime whoever uses it does.
    fn start_timer(&self) {
        let timer = ExpiryTimer::new(&self.shared);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timer.run());
        }
    }

    /// Closes an open permit, so that a second report at the same time does not settle it too.
    fn close(&self, id: &str, closed: ClosedPermit) -> Closed {
        self.shared.drop_expired();
        let mut state = self.shared.state.lock();
        let Some((key, permit)) = state.take_open(id) else {
            let before = state.closed.get(id).map(|(_, closed)| closed.clone());
            return before.map_or(Closed::Unknown, Closed::Before);
        };
        state.remember_closed(key, permit.holder, closed);
        Closed::Now(permit.decision)
    }
}

impl Shared {
    fn id(&self, number: u64) -> Arc<str> {
        let [one, two] = &self.secrets;
        format!("{:016x}{:016x}", one.hash_one(number), two.hash_one(number)).into()
    }

    /// Permits whose time is over count as sent. The ledger does not wait for this: it holds each for
    /// that long and no longer, whoever looks.
    fn drop_expired(&self) {
        let now = self.registry.ledger().at();
        let mut expired = Vec::new();
        let mut state = self.state.lock();
        while let Some((expires, id)) = state.by_expiry.first()
            && *expires <= now
        {
            let key = (*expires, id.clone());
            let permit = state.take_open(&key.1).map(|(_, permit)| permit);
            state.by_expiry.remove(&key);
            if let Some(permit) = &permit {
                let name = permit.decision.provider().to_owned();
                *state.unreported.entry(name).or_default() += 1;
            }
            expired.extend(permit);
        }
        state.evict_closed(now);
        drop(state);
        for mut permit in expired {
            permit.decision.count_as_sent();
        }
    }

    /// How long until the first open permit expires. `None`: there is none, and the timer ends.
    fn until_first_expiry(&self) -> Option<Span> {
        let now = self.registry.ledger().at();
        let mut state = self.state.lock();
        let first = state.by_expiry.first().map(|(expires, _)| *expires);
        state.has_timer = first.is_some();
        Some(first?.since(now))
    }
}

impl Drop for Shared {
    /// Other processes still hold these permits and may use them: they stay counted.
    fn drop(&mut self) {
        for (_, permit) in std::mem::take(&mut self.state.get_mut().open) {
            permit.decision.abandon_as_used();
        }
        self.first_changed.notify_one(); // the timer ends
    }
}

/// Waits for the first permit that expires, and for the next one after it.
#[derive(Debug)]
struct ExpiryTimer {
    shared: Weak<Shared>,
    first_changed: Arc<Notify>,
    /// It ended because there was nothing to wait for, and has said so.
    is_over: bool,
}

impl ExpiryTimer {
    fn new(shared: &Arc<Shared>) -> ExpiryTimer {
        ExpiryTimer {
            shared: Arc::downgrade(shared),
            first_changed: shared.first_changed.clone(),
            is_over: false,
        }
    }

    async fn run(mut self) {
        while let Some(pause) = self.next_pause() {
            tokio::select! {
                () = timer::sleep(Some(pause)) => {}
                () = self.first_changed.notified() => {}
            }
        }
        self.is_over = true;
    }

    fn next_pause(&self) -> Option<Span> {
        let shared = self.shared.upgrade()?;
        shared.drop_expired();
        shared.until_first_expiry()
    }
}

impl Drop for ExpiryTimer {
    /// Its runtime has ended: the next permit starts another timer.
    fn drop(&mut self) {
        if !self.is_over
            && let Some(shared) = self.shared.upgrade()
        {
            shared.state.lock().has_timer = false;
        }
    }
}

/// A place for a permit that is still being decided.
#[derive(Debug)]
struct TableSlot<'a> {
    table: &'a PermitTable,
    holder: PlaceHolder,
    /// An open permit has it.
    is_used: bool,
}

impl Drop for TableSlot<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            let mut state = self.table.shared.state.lock();
            state.places.give_back(self.holder.as_deref());
        }
    }
}

/// Who holds a permit of such a call: the caller that its token has authenticated, else the operator.
fn holder(options: &CallOptions) -> PlaceHolder {
    let caller = options.caller.as_deref().filter(|_| !options.is_operator);
    caller.map(Arc::from)
}

/// What an id has led to.
#[derive(Debug)]
enum Closed {
    Now(Box<AcquiredPermit>),
    Before(ClosedPermit),
    Unknown,
}

#[cfg(test)]
#[path = "permit_table_tests.rs"]
mod tests;
