//! What every connection shares: the book under its lock, the clock, the dice, the order to stop.
//!
//! Promises: the clock is read after the lock is held, so instants in the book never go back; no lock is
//! held across an `.await`.
//!
//! Never: decides anything; the book, the plan and the rules do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_core::time::Span;

use crate::latency::Delay;
use crate::real_time;

use super::asked::Asked;
use super::book::{Book, Counted, FaultError, Ticket};
use super::clock::{Clock, Reading};
use super::report::{Report, ReportInput};
use super::settings::Settings;
use super::wire::Doorman;

/// See the module.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) settings: Settings,
    clock: Clock,
    book: Mutex<Book>,
    dice: Mutex<fastrand::Rng>,
    on_the_way: AtomicUsize,
    stopping: watch::Receiver<bool>,
}

/// A counted request; finishing it frees its place in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    desk: Arc<Desk>,
    ticket: Ticket,
    whole: bool,
}

/// A request that has been read and not yet counted.
#[derive(Debug)]
pub(crate) struct OnTheWay<'a>(&'a AtomicUsize);

impl Desk {
    pub(crate) fn open(
        settings: Settings,
        stopping: watch::Receiver<bool>,
    ) -> Result<Desk, FaultError> {
        let clock = Clock::start();
        let mut book = Book::new(settings.rules.clone(), clock.now());
        book.plan(&settings.faults, clock.now())?;
        let dice = Mutex::new(fastrand::Rng::with_seed(settings.seed));
        let book = Mutex::new(book);
        Ok(Desk {
            settings,
            clock,
            book,
            dice,
            on_the_way: AtomicUsize::new(0),
            stopping,
        })
    }

    /// Does something with the book at this moment.
    pub(crate) fn with_book<T>(&self, act: impl FnOnce(&mut Book, Reading) -> T) -> T {
        let mut book = self.book.lock();
        let now = self.clock.now();
        act(&mut book, now)
    }

    pub(crate) fn now(&self) -> Reading {
        self.clock.now()
    }

    /// Counts a request.
    pub(crate) fn count(self: &Arc<Desk>, asked: &Asked) -> (Counted, InFlight) {
        let counted = self.with_book(|book, now| book.count(asked, now));
        let ticket = counted.ticket.clone();
        (
            counted,
            InFlight {
                desk: Arc::clone(self),
                ticket,
                whole: false,
            },
        )
    }

    /// The judgement so far. Copies the log under the lock and judges outside it, so that looking does
    /// not slow the provider down.
    pub(crate) fn report(&self) -> Report {
        let on_the_way = self.on_the_way.load(Ordering::Relaxed);
        let input = self.with_book(|book, now| ReportInput::take(book, now, on_the_way));
        Report::judge(&input)
    }

    /// Marks a request as read and not yet counted until the mark is dropped.
    pub(crate) fn on_the_way(&self) -> OnTheWay<'_> {
        self.on_the_way.fetch_add(1, Ordering::Relaxed);
        OnTheWay(&self.on_the_way)
    }

    /// One delay.
    pub(crate) fn draw(&self, delay: Delay) -> Span {
        delay.draw(&mut self.dice.lock())
    }

    /// Waits as the delay says; `false` if the provider stops first.
    pub(crate) async fn delay(&self, delay: Delay) -> bool {
        let span = self.draw(delay);
        if span == Span::ZERO {
            return true;
        }
        tokio::select! {
            () = real_time::after(span) => true,
            () = self.stopped() => false,
        }
    }

    /// Returns when the provider stops.
    pub(crate) async fn stopped(&self) {
        // An error means that the provider's handle is gone: that is a stop too.
        self.stopping
            .clone()
            .wait_for(|stopping| *stopping)
            .await
            .ok();
    }
}

impl Doorman for Arc<Desk> {
    fn may_refuse(&self) -> bool {
        self.with_book(|book, now| book.may_refuse_to_read(now))
    }

    fn refuses(&self) -> bool {
        self.with_book(Book::refuses_to_read)
    }
}

impl InFlight {
    /// The answer is about to be handed over to the last byte.
    pub(crate) fn complete(mut self) {
        self.whole = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.desk
            .with_book(|book, now| book.finish(&self.ticket, self.whole, now));
    }
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
