//! Guards in Redis, in a build without Redis: there are none.
//!
//! Promises: nothing. No value of these types exists.
//!
//! Never: decides.

use std::sync::Arc;

use tollgate_config::Config;
use tollgate_config::config::Limiting;
use tollgate_ledger::Ledger;

use super::{GuardAsk, GuardStatus, GuardVerdict, Guards, Throttle, ThrottleLimit, Throttled};
use crate::event::Events;

/// Guards in Redis.
#[derive(Debug)]
pub(super) enum SharedGuards {}

impl SharedGuards {
    pub(super) fn of(_: &Config, _: &Ledger, _: &Events) -> Option<SharedGuards> {
        None
    }

    pub(super) fn nodes(&self) -> u32 {
        match *self {}
    }

    pub(super) fn loss_reason(&self) -> Option<Arc<str>> {
        match *self {}
    }

    pub(super) fn uncounted(&self) -> u64 {
        match *self {}
    }
}

impl Guards {
    #[expect(clippy::unused_async, reason = "with Redis it waits")]
    pub(super) async fn try_shared(&self, shared: &SharedGuards, _: &[GuardAsk]) -> GuardVerdict {
        match *shared {}
    }

    #[expect(clippy::unused_async, reason = "with Redis it waits")]
    pub(super) async fn shared_status(&self, shared: &SharedGuards, _: &GuardAsk) -> GuardStatus {
        match *shared {}
    }
}

impl Throttle {
    #[expect(clippy::unused_async, reason = "with Redis it waits")]
    pub(super) async fn try_shared(
        &self,
        shared: &SharedGuards,
        _: &[u8],
        _: &ThrottleLimit,
        _: i64,
        _: Limiting,
    ) -> Option<Throttled> {
        match *shared {}
    }
}
