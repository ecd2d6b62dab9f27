//! Hits at hand: the first two stages of the path for the plainest call there is, in one step.
//!
//! A GET without body, conditions or wishes whose answer is in memory and fresh needs nothing that has
//! to be waited for, so it need not be a future. What is decided, told and counted is what `call` would
//! decide, tell and count: the same functions do it.
//!
//! Promises: an answer from here is the one that `call` would have given. Until it is taken, nothing
//! has happened.
//!
//! Never: an error. Whatever is not plain is left to `call`, which says what is wrong with it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, Method};
use tollgate_core::time::Span;

use super::route::{Call, Route, Said, Target, bodiless};
use super::{Reply, cache, serve};
use crate::cache::{Object, Sheet, Written};
use crate::shop::{Live, Setup, Shop};

/// What makes an answer depend on more than its question.
const CONDITIONS: [http::HeaderName; 6] = [
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

/// A fresh answer in memory.
#[derive(Debug)]
pub struct Hit {
    live: Arc<Live>,
    object: Arc<Object>,
    age: Span,
}

/// What a GET without a body means: whose it is, and what its answer is called. Who hears the same
/// again need not find that out anew.
#[derive(Debug)]
pub struct Known {
    route: Route,
    /// What the same words may mean something else under: other providers, other callers.
    setup: Setup,
    named: cache::Known,
}

impl Known {
    /// What this call means, if it is plain and the cache may answer it.
    #[must_use]
    pub fn of(shop: &Shop, target: Target, headers: HeaderMap, said: Said) -> Option<Known> {
        let is_condition = |name| CONDITIONS.contains(name);
        if headers.keys().any(is_condition) {
            return None;
        }
        // Before it is read: if both change meanwhile, it is thought older than it is.
        let setup = shop.setup();
        let call = Call {
            target,
            method: Method::GET,
            headers,
            body: (),
            said,
        };
        let route = bodiless(shop, call).ok()?;
        let named = cache::Known::of(shop, &route)?;
        Some(Known {
            route,
            setup,
            named,
        })
    }

    /// Would the same call still mean this?
    #[must_use]
    pub fn holds(&self, shop: &Shop) -> bool {
        shop.is_set_up(&self.setup) && self.route.live.follows(|plan| self.named.is_under(plan))
    }

    /// The answer, if it is in memory and fresh.
    #[must_use]
    pub fn at_hand(&self, shop: &Shop) -> Option<Hit> {
        let (object, now) = self.named.at_hand(shop, &self.route)?;
        Some(Hit {
            live: self.route.live.clone(),
            age: object.kept.age(now),
            object,
        })
    }
}

impl Hit {
    /// What the caller of this name was answered with. Call it once, when it is so.
    pub fn told(&self, id: &str) {
        serve::told(&self.live, id, self.age);
    }

    /// Its age, in seconds.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.age.0 / 1_000_000
    }

    /// The body, which is not copied.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.object.body
    }

    /// The body as a file, where that is the quicker way to a socket.
    #[must_use]
    pub fn sheet(&self) -> Option<Arc<Sheet>> {
        Sheet::of(&self.object)
    }

    /// Its head as it is written: made of the whole answer the first time, and kept with it.
    pub fn written(&self, write: impl FnOnce(Reply) -> Option<Written>) -> Option<&Written> {
        let head = &self.object.form.head;
        head.get_or_init(|| write(serve::plain(&self.object, self.age)))
            .as_ref()
    }
}
