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

use super::clock::{Clock, Reading};
use super::fault_stream::ResetPolicy;
use super::report::{Report, ReportInput};
use super::request::SimRequest;
use super::settings::Settings;
use super::state::{CountedRequest, FaultError, ProviderState, Ticket};

/// See the module.
#[derive(Debug)]
pub(crate) struct ServerContext {
    pub(crate) settings: Settings,
    clock: Clock,
    state: Mutex<ProviderState>,
    dice: Mutex<fastrand::Rng>,
    in_transit: AtomicUsize,
    stopping: watch::Receiver<bool>,
}

/// A counted request; finishing it frees its place in flight.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    context: Arc<ServerContext>,
    ticket: Ticket,
    whole: bool,
}

/// A request that has been read and not yet counted.
#[derive(Debug)]
pub(crate) struct InTransit<'a>(&'a AtomicUsize);

impl ServerContext {
    pub(crate) fn open(
        settings: Settings,
        stopping: watch::Receiver<bool>,
    ) -> Result<ServerContext, FaultError> {
        let clock = Clock::start();
        let mut book = ProviderState::new(settings.rules.clone(), clock.now());
        book.plan(&settings.faults, clock.now())?;
        let dice = Mutex::new(fastrand::Rng::with_seed(settings.seed));
        let book = Mutex::new(book);
        Ok(ServerContext {
            settings,
            clock,
            state: book,
            dice,
            in_transit: AtomicUsize::new(0),
            stopping,
        })
    }

    /// Does something with the book at this moment.
    pub(crate) fn with_state<T>(&self, act: impl FnOnce(&mut ProviderState, Reading) -> T) -> T {
        let mut book = self.state.lock();
        let now = self.clock.now();
        act(&mut book, now)
    }

    pub(crate) fn now(&self) -> Reading {
        self.clock.now()
    }

    /// Counts a request.
    pub(crate) fn count(
        self: &Arc<ServerContext>,
        asked: &SimRequest,
    ) -> (CountedRequest, InFlightRequest) {
        let counted = self.with_state(|book, now| book.count(asked, now));
        let ticket = counted.ticket.clone();
        (
            counted,
            InFlightRequest {
                context: Arc::clone(self),
                ticket,
                whole: false,
            },
        )
    }

    /// The judgement so far. Copies the log under the lock and judges outside it, so that looking does
    /// not slow the provider down.
    pub(crate) fn report(&self) -> Report {
        let on_the_way = self.in_transit.load(Ordering::Relaxed);
        let input = self.with_state(|book, now| ReportInput::take(book, now, on_the_way));
        Report::judge(&input)
    }

    /// Marks a request as read and not yet counted until the mark is dropped.
    pub(crate) fn mark_in_transit(&self) -> InTransit<'_> {
        self.in_transit.fetch_add(1, Ordering::Relaxed);
        InTransit(&self.in_transit)
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
            () = real_time::sleep(span) => true,
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

impl ResetPolicy for Arc<ServerContext> {
    fn may_reset(&self) -> bool {
        self.with_state(|book, now| book.may_reset_unread(now))
    }

    fn resets(&self) -> bool {
        self.with_state(ProviderState::resets_unread)
    }
}

impl InFlightRequest {
    /// The answer is about to be handed over to the last byte.
    pub(crate) fn complete(mut self) {
        self.whole = true;
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.context
            .with_state(|book, now| book.finish(&self.ticket, self.whole, now));
    }
}

impl Drop for InTransit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
