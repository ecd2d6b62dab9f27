//! What is taken from an inbox, and in which order.

use std::sync::Arc;

use tollgate_core::ask::{Evidence, PermitId, Priority, ScopeId, Scopes, Terms};
use tollgate_core::limit::Rule;
use tollgate_core::time::{Micros, Span};

use super::*;

const TAG: TagId = TagId(0);

fn queued(settle: Settle) -> QueuedSettle {
    let at = Micros(1);
    QueuedSettle { settle, at }
}

fn succeeded() -> QueuedSettle {
    queued(Settle::Succeeded { scope: ScopeId(1) })
}

fn inherit() -> QueuedSettle {
    let rule = Arc::new(Rule::sliding(5, Span::from_secs(1)).unwrap());
    queued(Settle::Inherit {
        from: CellId(1),
        old_rule: rule.clone(),
        to: CellId(2),
        rule,
    })
}

fn inherits(work: &Work) -> usize {
    let is_inherit = |queued: &&QueuedSettle| matches!(queued.settle, Settle::Inherit { .. });
    let settles = work.tags.iter().flat_map(|tag| &tag.settles);
    settles.filter(is_inherit).count()
}

/// The asks that follow an inheritance rely on it. One whose transaction failed goes with the next one,
/// however many settles stand before it and however full the inbox has become.
#[test]
fn a_requeued_inheritance_goes_with_the_next_transaction() {
    for others in [0, SETTLES_PER_TURN + 5, SETTLES_MAX] {
        let inbox = Inbox::default();
        for _ in 0..SETTLES_PER_TURN + 5 {
            inbox.settle(TAG, succeeded());
        }
        inbox.settle(TAG, inherit());
        let mut failed = inbox.next(SettleDelay::Hurry);
        assert_eq!(inherits(&failed), 1);
        for _ in 0..others {
            inbox.settle(TAG, succeeded());
        }
        inbox.requeue(TAG, failed.tags.remove(0).settles);
        assert_eq!(inherits(&inbox.next(SettleDelay::Hurry)), 1, "{others}");
    }
}

/// An inheritance that waits while earlier settles come again still goes with the next transaction.
#[test]
fn an_inheritance_behind_requeued_settles_goes_with_the_next_transaction() {
    let inbox = Inbox::default();
    (0..SETTLES_PER_TURN).for_each(|_| inbox.settle(TAG, succeeded()));
    let mut failed = inbox.next(SettleDelay::Hurry);
    inbox.settle(TAG, inherit());
    inbox.requeue(TAG, failed.tags.remove(0).settles);
    assert_eq!(inherits(&inbox.next(SettleDelay::Hurry)), 1);
}

fn offer_to(inbox: &Inbox, tag: TagId) -> oneshot::Receiver<OfferResult> {
    let (reply, receiver) = oneshot::channel();
    let asks = vec![ask()];
    inbox.offer(tag, Offer { asks, reply });
    receiver
}

/// An offer is never decided before what was settled before it.
#[test]
fn an_offer_comes_after_all_settles_before_it() {
    let inbox = Inbox::default();
    (0..=SETTLES_PER_TURN).for_each(|_| inbox.settle(TAG, succeeded()));
    let _first = offer_to(&inbox, TAG);
    inbox.settle(TAG, succeeded());
    let _second = offer_to(&inbox, TAG);
    let counts = |work: Work| (work.tags[0].settles.len(), work.tags[0].offers.len());
    assert_eq!(
        counts(inbox.next(SettleDelay::Hurry)),
        (SETTLES_PER_TURN, 0)
    );
    assert_eq!(counts(inbox.next(SettleDelay::Hurry)), (2, 2));
}

/// While the store is lost, an offer behind many settles is answered with their failure.
#[test]
fn an_offer_behind_settles_that_failed_fails_with_them() {
    let inbox = Inbox::default();
    (0..=SETTLES_PER_TURN).for_each(|_| inbox.settle(TAG, succeeded()));
    let _first = offer_to(&inbox, TAG);
    let mut failed = inbox.next(SettleDelay::Hurry).tags.remove(0).settles;
    let _later = offer_to(&inbox, TAG);
    let held_back = inbox.requeue(TAG, std::mem::take(&mut failed));
    assert_eq!(held_back.offers.len(), 1);
    let works = [
        inbox.next(SettleDelay::Hurry),
        inbox.next(SettleDelay::Hurry),
    ];
    let offers = works.map(|work| work.tags[0].offers.len());
    assert_eq!(offers, [0, 1], "the later one is still to be decided");
}

fn peek_at(inbox: &Inbox, tag: TagId) {
    let request = PeekRequest {
        query: PeekQuery::default(),
        reply: PeekReply::default(),
        on_reply: Box::new(|_| {}),
    };
    inbox.peek(tag, request);
}

/// A request is never read before what was settled before it, and waits for no other provider's.
#[test]
fn a_peek_is_read_after_all_earlier_settles_of_its_provider() {
    let inbox = Inbox::default();
    (0..=SETTLES_PER_TURN).for_each(|_| inbox.settle(TAG, succeeded()));
    peek_at(&inbox, TAG);
    peek_at(&inbox, TagId(1));
    let counts = |work: Work| -> Vec<(usize, usize)> {
        let tags = work.tags.iter();
        tags.map(|tag| (tag.tag.0, tag.peeks.len())).collect()
    };
    assert_eq!(counts(inbox.next(SettleDelay::Hurry)), [(0, 0)]);
    assert_eq!(counts(inbox.next(SettleDelay::Hurry)), [(1, 1), (0, 1)]);
}

/// What it asks about may be in the settles that failed: it hears that nothing can be known.
#[test]
fn a_peek_behind_failed_settles_fails_with_them() {
    let inbox = Inbox::default();
    (0..=SETTLES_PER_TURN).for_each(|_| inbox.settle(TAG, succeeded()));
    peek_at(&inbox, TAG);
    let failed = inbox.next(SettleDelay::Hurry).tags.remove(0).settles;
    assert_eq!(inbox.requeue(TAG, failed).peeks.len(), 1);
    let rest = [
        inbox.next(SettleDelay::Hurry),
        inbox.next(SettleDelay::Hurry),
    ];
    assert!(rest.iter().all(|work| work.tags[0].peeks.is_empty()));
}

/// The thread has gone: nothing that is put in waits for it.
#[test]
fn an_abandoned_inbox_takes_nothing() {
    let inbox = Inbox::default();
    let mut before = offer_to(&inbox, TAG);
    inbox.abandon();
    let mut after = offer_to(&inbox, TAG);
    for offer in [&mut before, &mut after] {
        assert!(offer.try_recv().is_err());
    }
    inbox.settle(TAG, inherit());
    peek_at(&inbox, TAG);
    assert!(inbox.take_ready().tags.is_empty());
}

/// A provider that is listed with nothing to do holds nobody up.
#[test]
fn a_provider_with_nothing_to_do_holds_nobody_up() {
    let inbox = Inbox::default();
    inbox.stop_waiting(TagId(0), &[]);
    let _receiver = offer_to(&inbox, TagId(1));
    let work = inbox.next(SettleDelay::Normal);
    assert_eq!(work.tags.len(), 1);
    assert_eq!(work.tags[0].tag, TagId(1));
}

/// Settles that keep coming do not put off the next look at a lost store.
#[test]
fn a_lost_store_is_looked_at_under_traffic() {
    let inbox = Arc::new(Inbox::default());
    let (done, is_done) = std::sync::mpsc::sync_channel(1);
    let waiting = inbox.clone();
    let thread = std::thread::spawn(move || {
        waiting.next(SettleDelay::Slow);
        done.send(()).unwrap();
    });
    let pause = Duration::from_millis(20);
    let looked = (0..200).any(|_| {
        inbox.settle(TAG, succeeded());
        inbox.wake_up.notify_one();
        is_done.recv_timeout(pause).is_ok()
    });
    assert!(looked, "it waits on as long as settles come");
    thread.join().unwrap();
}

/// A provider whose queue is always full takes its turn like the others.
#[test]
fn providers_are_taken_in_turn() {
    let inbox = Inbox::default();
    let offer = |tag| {
        let (reply, _) = oneshot::channel();
        let asks = (0..200).map(|_| ask()).collect();
        inbox.offer(TagId(tag), Offer { asks, reply });
    };
    (0..3).for_each(|_| offer(0));
    offer(1);
    let taken = |work: Work| work.tags.iter().map(|tag| tag.tag.0).collect::<Vec<_>>();
    assert_eq!(taken(inbox.next(SettleDelay::Normal)), [0]);
    assert_eq!(taken(inbox.next(SettleDelay::Normal)), [1]);
    assert_eq!(taken(inbox.next(SettleDelay::Normal)), [0]);
}

fn ask() -> Ask {
    Ask {
        id: PermitId::default(),
        terms: Terms::new(),
        scopes: Scopes::new(),
        priority: Priority::Normal,
        evidence: Evidence::None {
            use_within: Span::ZERO,
        },
        max_wait: Span::ZERO,
    }
}
