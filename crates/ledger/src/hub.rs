//! Who receives which event: those of each provider, those of the ledger as a whole, and what of
//! this process waits for a signal of another one.
//!
//! Promises: one provider's events wake nobody who waits for another provider. What another owner
//! freed goes to those who wait for it; if nobody is known to, everybody hears it, because whoever
//! waits for it may be about to be noted.
//!
//! Never: sends under its lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::broadcast;
use tollgate_core::ask::{Ask, BlockedBy, CellId, ScopeId, Verdict, WakeOn};
use tollgate_core::batch::BatchResult;
use tollgate_core::fairness::will_wait;

use crate::event::{EVENTS_MAX, Event, EventReceiver};
use crate::lock_order::{RankedMutex, rank};

/// Providers with a queue of their own: ten times as many as anybody configures. What comes on top
/// shares the last one.
const TAGS_MAX: usize = 4_096;

/// The number of a provider tag in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TagId(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Hub {
    /// For those who want to hear of scopes and of the store itself.
    ledger: broadcast::Sender<Event>,
    tags: RankedMutex<{ rank::TAGS }, Vec<(Arc<str>, broadcast::Sender<Event>)>>,
    awaited: RankedMutex<{ rank::AWAITED }, AwaitedSignals>,
}

/// What of this process waits for a signal.
#[derive(Debug, Default)]
struct AwaitedSignals {
    cells: BTreeMap<CellId, TagId>,
    scopes: BTreeMap<ScopeId, TagId>,
}

impl Hub {
    pub(crate) fn new() -> Hub {
        Hub {
            ledger: broadcast::channel(EVENTS_MAX).0,
            tags: RankedMutex::default(),
            awaited: RankedMutex::default(),
        }
    }

    /// The number of this tag and the sender of its events.
    pub(crate) fn tag(&self, name: &str) -> (TagId, Arc<str>, broadcast::Sender<Event>) {
        let mut tags = self.tags.lock();
        let known = tags.iter().position(|(tag, _)| &**tag == name);
        let index = match known {
            Some(index) => index,
            None if tags.len() >= TAGS_MAX => TAGS_MAX - 1,
            None => {
                tags.push((name.into(), broadcast::channel(EVENTS_MAX).0));
                tags.len() - 1
            }
        };
        let (name, events) = tags[index].clone();
        (TagId(index), name, events)
    }

    /// The provider of this number.
    pub(crate) fn name(&self, tag: TagId) -> Arc<str> {
        let tags = self.tags.lock();
        tags.get(tag.0)
            .map_or_else(|| "".into(), |(name, _)| name.clone())
    }

    pub(crate) fn events(&self) -> EventReceiver {
        EventReceiver::new(self.ledger.subscribe())
    }

    /// To everybody: the store is lost, or back.
    pub(crate) fn broadcast(&self, event: &Event) {
        send(&self.ledger, event.clone());
        for events in self.senders() {
            send(&events, event.clone());
        }
    }

    fn senders(&self) -> Vec<broadcast::Sender<Event>> {
        let tags = self.tags.lock();
        tags.iter().map(|(_, events)| events.clone()).collect()
    }

    fn sender(&self, tag: TagId) -> Option<broadcast::Sender<Event>> {
        Some(self.tags.lock().get(tag.0)?.1.clone())
    }

    /// What a batch of this provider changed.
    pub(crate) fn decided(
        &self,
        events: &broadcast::Sender<Event>,
        freed: &mut Vec<CellId>,
        scopes: &[ScopeId],
    ) {
        if !freed.is_empty() {
            freed.sort_unstable();
            freed.dedup();
            send(events, Event::Freed(freed.as_slice().into()));
        }
        if !scopes.is_empty() {
            let event = Event::Scopes(scopes.into());
            send(&self.ledger, event.clone());
            send(events, event);
        }
    }

    /// As [`Hub::decided`], where a signal may have been awaited.
    pub(crate) fn decided_for_tag(&self, tag: TagId, decision: &mut BatchResult) {
        if !decision.freed.is_empty() {
            let freed = &decision.freed;
            let cells = &mut self.awaited.lock().cells;
            cells.retain(|cell, _| !freed.contains(cell));
        }
        if let Some(events) = self.sender(tag) {
            self.decided(&events, &mut decision.freed, &decision.changed_scopes);
        }
    }

    pub(crate) fn freed_elsewhere(&self, cells: Vec<CellId>) {
        let tags = {
            let awaited = self.awaited.lock();
            known_tags(cells.iter().map(|cell| awaited.cells.get(cell).copied()))
        };
        self.send_to(tags, &Event::Freed(cells.into()));
    }

    pub(crate) fn scopes_changed_elsewhere(&self, scopes: Vec<ScopeId>) {
        self.broadcast(&Event::Scopes(scopes.into()));
    }

    pub(crate) fn resync(&self) {
        self.broadcast(&Event::Resync);
    }

    fn send_to(&self, tags: Option<Vec<TagId>>, event: &Event) {
        let senders = match tags {
            Some(tags) => tags
                .into_iter()
                .filter_map(|tag| self.sender(tag))
                .collect(),
            None => self.senders(),
        };
        for events in senders {
            send(&events, event.clone());
        }
    }

    /// Makes those who wait for a signal ask again.
    pub(crate) fn ask_again(&self) {
        let AwaitedSignals { cells, scopes } = std::mem::take(&mut *self.awaited.lock());
        let mut by_tag: BTreeMap<TagId, (Vec<CellId>, Vec<ScopeId>)> = BTreeMap::new();
        for (cell, tag) in cells {
            by_tag.entry(tag).or_default().0.push(cell);
        }
        for (scope, tag) in scopes {
            by_tag.entry(tag).or_default().1.push(scope);
        }
        for (tag, (cells, scopes)) in by_tag {
            if !cells.is_empty() {
                self.send_to(Some(vec![tag]), &Event::Freed(cells.into()));
            }
            if !scopes.is_empty() {
                let event = Event::Scopes(scopes.into());
                send(&self.ledger, event.clone());
                self.send_to(Some(vec![tag]), &event);
            }
        }
    }

    /// Does anybody of this process wait for a signal?
    pub(crate) fn is_signal_awaited(&self) -> bool {
        let awaited = self.awaited.lock();
        !awaited.cells.is_empty() || !awaited.scopes.is_empty()
    }

    /// Remembers what of this process waits for a signal.
    pub(crate) fn record_waiting(&self, tag: TagId, asks: &[Ask], verdicts: &[Verdict]) {
        let mut awaited = None;
        for (ask, verdict) in asks.iter().zip(verdicts) {
            let Verdict::Wait {
                on: on @ (WakeOn::Event | WakeOn::Release),
                by,
                after,
            } = verdict
            else {
                continue;
            };
            if !will_wait(ask, *after, *on) {
                continue;
            }
            let awaited = awaited.get_or_insert_with(|| self.awaited.lock());
            match *by {
                BlockedBy::Term(index) => {
                    let cell = ask.terms.get(index).map(|term| (term.cell, tag));
                    awaited.cells.extend(cell);
                }
                BlockedBy::Scope(index) => {
                    let scope = ask.scopes.get(index).map(|scope| (*scope, tag));
                    awaited.scopes.extend(scope);
                }
            }
        }
    }
}

/// The tags, if all are known.
fn known_tags(tags: impl Iterator<Item = Option<TagId>>) -> Option<Vec<TagId>> {
    let mut tags: Vec<TagId> = tags.collect::<Option<_>>()?;
    tags.sort_unstable();
    tags.dedup();
    Some(tags)
}

/// Nobody listening is no error: then nobody waits.
fn send(events: &broadcast::Sender<Event>, event: Event) {
    drop(events.send(event));
}
