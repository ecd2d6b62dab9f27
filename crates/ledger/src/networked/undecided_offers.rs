//! The offers of one provider that are not decided.
//!
//! Promises: an offer is delivered when all of its asks have their verdicts and everything settled
//! before it is stored.
//!
//! Never: holds more than the replica has asks for, and the inbox offers.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;
use tollgate_core::ask::{Ask, PermitId, Verdict};
use tollgate_core::time::Micros;

use crate::StoreLost;
use crate::hand_out::HandOut;
use crate::hub::TagId;
use crate::inbox::Offer;
use crate::offer::OfferResult;

/// The offers that wait for verdicts.
#[derive(Debug, Default)]
pub(super) struct UndecidedOffers {
    offers: BTreeMap<u64, UndecidedOffer>,
    /// Which offers an ask is of. The same permit twice is an owner's error, but none is lost.
    by_id: BTreeMap<PermitId, VecDeque<u64>>,
    last: u64,
}

#[derive(Debug)]
struct UndecidedOffer {
    reply: oneshot::Sender<OfferResult>,
    decided: Vec<(Ask, Option<Verdict>)>,
    missing: usize,
    /// The oldest of its verdicts.
    at: Micros,
    /// Not before so many settles are stored.
    after_settles: u64,
}

impl UndecidedOffers {
    /// An offer whose asks were given to the replica.
    pub(super) fn add(&mut self, offer: Offer, after_settles: u64, now: Micros) {
        self.last += 1;
        for ask in &offer.asks {
            self.by_id.entry(ask.id).or_default().push_back(self.last);
        }
        let undecided = UndecidedOffer {
            missing: offer.asks.len(),
            decided: offer.asks.into_iter().map(|ask| (ask, None)).collect(),
            reply: offer.reply,
            at: now,
            after_settles,
        };
        self.offers.insert(self.last, undecided);
    }

    /// A verdict, by a request that was sent at this time.
    pub(super) fn decide(&mut self, id: PermitId, verdict: Verdict, sent: Micros) {
        let Some(numbers) = self.by_id.get_mut(&id) else {
            return;
        };
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.by_id.remove(&id);
        }
        let Some(undecided) = number.and_then(|number| self.offers.get_mut(&number)) else {
            return;
        };
        let is_first = undecided.missing == undecided.decided.len();
        let mut open = undecided.decided.iter_mut();
        if let Some((_, open)) = open.find(|(ask, open)| ask.id == id && open.is_none()) {
            *open = Some(verdict);
            undecided.missing -= 1;
            undecided.at = if is_first {
                sent
            } else {
                undecided.at.min(sent)
            };
        }
    }

    /// The offers that are decided, and whose settles are stored.
    pub(super) fn take_decided(&mut self, tag: TagId, settled: u64) -> Vec<HandOut> {
        let is_decided = |undecided: &UndecidedOffer| {
            undecided.missing == 0 && undecided.after_settles <= settled
        };
        let ready: Vec<u64> = self
            .offers
            .iter()
            .filter(|(_, undecided)| is_decided(undecided))
            .map(|(number, _)| *number)
            .collect();
        let ready = ready.iter().filter_map(|number| self.offers.remove(number));
        ready
            .map(|undecided| {
                let decided = undecided.decided.into_iter();
                let decided = decided.filter_map(|(ask, verdict)| Some((ask, verdict?)));
                HandOut {
                    tag,
                    reply: undecided.reply,
                    decided: decided.collect(),
                    at: undecided.at,
                }
            })
            .collect()
    }

    /// The store is lost: nobody knows.
    pub(super) fn fail(&mut self) {
        self.by_id.clear();
        for undecided in std::mem::take(&mut self.offers).into_values() {
            drop(undecided.reply.send(Err(StoreLost)));
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::ask::{BlockedBy, Evidence, OwnerId, Priority, Scopes, Terms, WakeOn};
    use tollgate_core::time::Span;

    use super::*;

    fn ask(seq: u64) -> Ask {
        Ask {
            id: PermitId {
                owner: OwnerId(1),
                seq,
            },
            terms: Terms::new(),
            scopes: Scopes::new(),
            priority: Priority::Normal,
            max_wait: Span::ZERO,
            evidence: Evidence::None {
                use_within: Span::ZERO,
            },
        }
    }

    /// A permit is too old to be used after a while: an offer is as old as its oldest verdict.
    #[test]
    fn an_offer_that_two_requests_decide_is_as_old_as_the_first() {
        let wait = Verdict::Wait {
            after: Span::ZERO,
            on: WakeOn::Time,
            by: BlockedBy::Term(0),
        };
        for sent in [[100, 200], [200, 100]] {
            let (reply, _receiver) = oneshot::channel();
            let asks = vec![ask(1), ask(2)];
            let mut offers = UndecidedOffers::default();
            offers.add(Offer { asks, reply }, 0, Micros(50));
            offers.decide(ask(1).id, wait.clone(), Micros(sent[0]));
            assert!(offers.take_decided(TagId(0), 0).is_empty());
            offers.decide(ask(2).id, wait.clone(), Micros(sent[1]));
            let decided = offers.take_decided(TagId(0), 0);
            assert_eq!(decided[0].at, Micros(100), "{sent:?}");
        }
    }
}
