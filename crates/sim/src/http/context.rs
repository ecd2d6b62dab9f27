//! The context that all connections share: the state under its lock, the clock, the random stream,
//! the stop signal.
//!
//! Promises: the clock is read after the lock is held, so instants in the state never go back; no
//! lock is held across an `.await`.
//!
//! Never: decides anything; the state, the plan and the rules do.

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

/// A counted request; finishing it frees its in-flight slot.
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
        let mut state = ProviderState::new(settings.rules.clone(), clock.now());
        state.plan(&settings.faults, clock.now())?;
        let dice = Mutex::new(fastrand::Rng::with_seed(settings.seed));
        let state = Mutex::new(state);
        Ok(ServerContext {
            settings,
            clock,
            state,
            dice,
            in_transit: AtomicUsize::new(0),
            stopping,
        })
    }

    /// Runs `act` on the state at the current time.
    pub(crate) fn with_state<T>(&self, act: impl FnOnce(&mut ProviderState, Reading) -> T) -> T {
        let mut state = self.state.lock();
        let now = self.clock.now();
        act(&mut state, now)
    }

    pub(crate) fn now(&self) -> Reading {
        self.clock.now()
    }

    /// Counts a request.
    pub(crate) fn count(
        self: &Arc<ServerContext>,
        request: &SimRequest,
    ) -> (CountedRequest, InFlightRequest) {
        let counted = self.with_state(|state, now| state.count(request, now));
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

    /// The current report. Copies the log under the lock and judges outside it, so that a report
    /// does not slow the provider down.
    pub(crate) fn report(&self) -> Report {
        let in_transit = self.in_transit.load(Ordering::Relaxed);
        let input = self.with_state(|state, now| ReportInput::take(state, now, in_transit));
        Report::checker(&input)
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

    /// Waits for a random delay; `false` if the provider stops first.
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
        // An error means that the provider's handle is dropped: that is a stop too.
        self.stopping
            .clone()
            .wait_for(|stopping| *stopping)
            .await
            .ok();
    }
}

impl ResetPolicy for Arc<ServerContext> {
    fn may_reset(&self) -> bool {
        self.with_state(|state, now| state.may_reset_unread(now))
    }

    fn resets(&self) -> bool {
        self.with_state(ProviderState::resets_unread)
    }
}

impl InFlightRequest {
    /// The response is about to be handed over to the last byte.
    pub(crate) fn complete(mut self) {
        self.whole = true;
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.context
            .with_state(|state, now| state.finish(&self.ticket, self.whole, now));
    }
}

impl Drop for InTransit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
