//! How guards decide when they count in Redis, and while Redis is lost.
//!
//! Promises: all asks of a decision are one script, so other nodes never see half of one. While Redis is lost
//! `on_store_loss` of each guard applies: `closed` denies, `open` lets pass and counts it, `local-share` goes
//! on in this process with the part of this node. That part has been charged for what this node let pass
//! before, so a loss gives nobody a second burst here.
//!
//! Never: waits for a server that is lost.

use std::time::Duration;

use tollgate_config::config::Limiting;
use tollgate_config::settings::OnStoreLoss;
use tollgate_core::time::Span;
use tollgate_guard::Ask;

use super::bucket_key::shared_key;
use super::shared::{self, SharedAsk, SharedReply};
use super::shared_bucket::SharedPace;
use super::{
    GuardAsk, GuardDenied, GuardStatus, GuardVerdict, GuardView, Guards, Throttle, ThrottleLimit,
    Throttled,
};

/// When to come back if Redis is lost: about as long as an attempt to reach it takes.
const LOST_RETRY: Span = Span::from_secs(1);

/// The prefix of keys of limits that come with the request (`CL.THROTTLE`).
const THROTTLE_PREFIX: &str = "ratelimit:throttle:";

impl Guards {
    /// Decides in Redis, and counts no denial: it may be tried again.
    pub(super) async fn try_shared(
        &self,
        shared: &shared::SharedGuards,
        asks: &[GuardAsk],
    ) -> GuardVerdict {
        let limiting = self.limiting();
        if asks.is_empty() || limiting == Limiting::Off {
            return GuardVerdict::default();
        }
        let wanted: Option<Vec<SharedAsk>> = asks
            .iter()
            .map(|ask| ask.shared(ask.cost, limiting))
            .collect();
        let taken = match &wanted {
            Some(wanted) => shared.take(wanted).await.ok().map(|reply| (wanted, reply)),
            None => None,
        };
        match taken {
            Some((wanted, reply)) => self.shared_verdict(asks, wanted, &reply),
            None => self.without_store(shared, asks),
        }
    }

    /// The tokens of one key in Redis; those of this node while Redis is lost.
    pub(super) async fn shared_status(
        &self,
        shared: &shared::SharedGuards,
        ask: &GuardAsk,
    ) -> GuardStatus {
        let wanted = ask.shared(0, Limiting::Shadow);
        let taken = match &wanted {
            Some(wanted) => shared.take(std::slice::from_ref(wanted)).await.ok(),
            None => None,
        };
        let view = taken.as_ref().and_then(|reply| reply.asks.first());
        match (wanted, view) {
            (Some(wanted), Some(view)) => {
                let micro_tokens = wanted.pace.micro_tokens(view.before);
                ask.class.status_of(micro_tokens, self.wall())
            }
            _ => self.local_status(ask),
        }
    }

    fn shared_verdict(
        &self,
        asks: &[GuardAsk],
        wanted: &[SharedAsk],
        reply: &SharedReply,
    ) -> GuardVerdict {
        let denied = reply
            .is_denied
            .then(|| denial(asks, wanted, reply))
            .flatten();
        let pairs = asks.iter().zip(wanted).zip(&reply.asks);
        let views = pairs.map(|((ask, wanted), view)| GuardView {
            class: ask.class.clone(),
            remaining: view.after.tokens,
            full_in: wanted.pace.full_in(view.after),
            would_deny: view.is_lacking,
        });
        let views = views.collect();
        if denied.is_none() {
            self.charge_local_share(asks, reply);
        }
        GuardVerdict {
            denied,
            views,
            ..GuardVerdict::default()
        }
    }

    /// What this node let pass is charged to its part too, as far as it goes.
    fn charge_local_share(&self, asks: &[GuardAsk], reply: &SharedReply) {
        self.sweep_a_part();
        for (ask, view) in asks.iter().zip(&reply.asks) {
            if ask.cost > 0 && !view.is_lacking {
                let table = self.table_of(ask);
                let most = ask.class.plan().limits().first();
                let most = most.map_or(1, |limit| i64::from(limit.burst.get()));
                let charged = Ask {
                    cost: ask.cost.min(most),
                    ..ask.plain()
                };
                let _whether_it_had_them = table.take_cost(charged, self.now());
            }
        }
    }

    /// What happens while Redis is lost.
    fn without_store(&self, shared: &shared::SharedGuards, asks: &[GuardAsk]) -> GuardVerdict {
        let limiting = self.limiting();
        let is_closed = |ask: &GuardAsk| {
            let is_enforced = limiting == Limiting::On && !ask.class.is_shadow();
            is_enforced && ask.class.on_store_loss() == OnStoreLoss::Closed
        };
        if let Some(at) = asks.iter().position(is_closed)
            && let Some(ask) = asks.get(at)
        {
            return GuardVerdict {
                denied: Some(GuardDenied {
                    class: ask.class.clone(),
                    at,
                    retry_in: Some(LOST_RETRY),
                    is_store_lost: true,
                    id: None,
                }),
                views: asks.iter().map(|ask| self.view(ask)).collect(),
                ..GuardVerdict::default()
            };
        }
        let is_local = |ask: &GuardAsk| ask.class.on_store_loss() != OnStoreLoss::Open;
        let (places, local): (Vec<usize>, Vec<GuardAsk>) = asks
            .iter()
            .enumerate()
            .filter(|(_, ask)| is_local(ask))
            .map(|(at, ask)| (at, ask.clone()))
            .unzip();
        let mut verdict = self.try_locally(&local);
        let mut views = verdict.views.into_iter();
        verdict.views = asks
            .iter()
            .map(|ask| match is_local(ask).then(|| views.next()).flatten() {
                Some(view) => view,
                None => self.view(ask),
            })
            .collect();
        if let Some(denied) = &mut verdict.denied {
            denied.at = places.get(denied.at).copied().unwrap_or_default();
        } else if local.len() < asks.len() {
            shared.on_uncounted();
        }
        verdict
    }
}

impl GuardAsk {
    /// As the script takes it; `None` if the guard does not count in Redis.
    fn shared(&self, cost: i64, limiting: Limiting) -> Option<SharedAsk> {
        Some(SharedAsk {
            key: self.key.shared.clone()?,
            pace: *self.class.shared()?,
            cost,
            is_enforced: limiting == Limiting::On && !self.class.is_shadow(),
        })
    }
}

/// Which ask was denied, by the rules of the guard table: a token that is asked for and not left, then a cost
/// above the burst, then the longest wait.
fn denial(asks: &[GuardAsk], wanted: &[SharedAsk], reply: &SharedReply) -> Option<GuardDenied> {
    let denied = |at: usize, retry_in| {
        asks.get(at).map(|ask| GuardDenied {
            class: ask.class.clone(),
            at,
            retry_in,
            is_store_lost: false,
            id: None,
        })
    };
    let (at, retry_in) = denied_ask(wanted, reply)?;
    denied(at, retry_in)
}

/// The place of the denied ask, and its wait; `None` = no wait helps.
pub(super) fn denied_ask(
    wanted: &[SharedAsk],
    reply: &SharedReply,
) -> Option<(usize, Option<Span>)> {
    let pairs = || wanted.iter().zip(&reply.asks).enumerate();
    let enforced = || pairs().filter(|(_, (ask, _))| ask.is_enforced && ask.cost >= 0);
    let mut empty = enforced().filter(|(_, (ask, view))| ask.cost == 0 && view.before.tokens == 0);
    if let Some((at, (ask, view))) = empty.next() {
        return Some((at, Some(ask.pace.wait(view.before, 1))));
    }
    let mut longest: Option<(usize, Span)> = None;
    for (at, (ask, view)) in enforced() {
        // What this ask and earlier ones of the same key want together.
        let same = enforced().take_while(|(other, _)| *other <= at);
        let same = same.filter(|(_, (other, _))| other.key == ask.key);
        let total = same.fold(0_u64, |sum, (_, (other, _))| {
            sum.saturating_add(other.cost.unsigned_abs())
        });
        if total > u64::from(ask.pace.burst()) {
            return Some((at, None));
        }
        let wait = ask.pace.wait(view.before, total);
        if wait > longest.map_or(Span::ZERO, |(_, longest)| longest) {
            longest = Some((at, wait));
        }
    }
    longest.map(|(at, wait)| (at, Some(wait)))
}

impl Throttle {
    /// Decides in Redis; `None` if it is lost, or the limit cannot be counted there.
    pub(super) async fn try_shared(
        &self,
        shared: &shared::SharedGuards,
        key: &[u8],
        limit: &ThrottleLimit,
        quantity: i64,
        limiting: Limiting,
    ) -> Option<Throttled> {
        let pace = SharedPace::new(limit.count, Span(limit.period / 1_000), limit.burst)?;
        let ask = SharedAsk {
            key: shared_key(THROTTLE_PREFIX, key, false),
            pace,
            cost: match limiting {
                Limiting::Off => 0,
                Limiting::On | Limiting::Shadow => quantity,
            },
            // A look denies nothing.
            is_enforced: limiting == Limiting::On && quantity != 0,
        };
        let reply = shared.take(std::slice::from_ref(&ask)).await.ok()?;
        let view = reply.asks.first()?;
        let denied = reply
            .is_denied
            .then(|| denied_ask(&[ask], &reply))
            .flatten();
        Some(Throttled {
            is_limited: reply.is_denied,
            limit: limit.burst,
            remaining: view.after.tokens,
            retry_in: denied.and_then(|(_, wait)| wait).map(Duration::from),
            reset_in: Duration::from(pace.full_in(view.after)),
        })
    }
}
