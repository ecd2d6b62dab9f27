//! The cache stage: do we already have an answer that may be used?
//!
//! Promises: a call that is answered here costs no permit and touches no limit. An old answer that
//! may stand in makes waiting optional: the call then asks for a permit that is free now, is not
//! retried, and falls back to it. What a caller asked for with `X-Tollgate-Cache` is obeyed.
//!
//! Never: hands an answer to anybody who did not ask as the one did for whom it was made.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{
    AUTHORIZATION, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, Method};
use smallvec::{SmallVec, smallvec};
use tollgate_config::provider::Style;
use tollgate_core::fresh::{Demand, Headers, Look, Mode, Rule, lengthened};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Wall;

use super::route::Route;
use super::send::is_upgrade;
use super::serve::{self, Why};
use super::{Reply, credential, query};
use crate::cache::{Cache, Key, Keyed, Object, Place, Shelf, Url, VARIANTS_MAX, Variant, variant};
use crate::error::Reason;
use crate::shop::Plan;
use crate::{Error, Shop};

/// Below this part of a limit the quota is short, and adaptive lifetimes are stretched.
const SHORT_PART: u64 = 5;

/// How a call uses the cache (S11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UseCache {
    /// As the provider's file says.
    #[default]
    Yes,
    /// Not at all: neither look nor keep.
    No,
    /// Nothing else: no answer is 504.
    Only,
    /// Do not look, but keep.
    Refresh,
}

/// What the cache has for a call.
#[derive(Debug)]
pub(crate) enum Looked {
    /// An answer that may be used.
    Answer(Box<Reply>),
    /// None: the question must be asked. What it is called when its answer comes back.
    Nothing(Question),
}

/// A question to the cache, kept until its answer is there. Empty: nothing is to be kept.
#[derive(Debug, Default)]
pub(crate) struct Question(pub(super) Option<Box<Asked>>);

/// What is known about a question while it is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(super) cache: Cache,
    pub(super) key: Key,
    pub(super) url: Url,
    pub(super) at: Wall,
    /// How often something had been purged.
    pub(super) purges: u64,
    /// The answer is not wanted, but what it changes is.
    pub(super) changes_it: bool,
    /// The answer that we have, old.
    pub(super) object: Option<Arc<Object>>,
    /// It may be used if the provider cannot be asked.
    pub(super) fallback: bool,
    /// It is asked for beside an old answer, for nobody.
    pub(super) beside: bool,
    /// The request headers as the client sent them.
    pub(super) client: HeaderMap,
    /// The client's own `Authorization` goes with the call.
    pub(super) authorization: bool,
    pub(super) demand: Demand,
}

/// The headers of a message, as the core reads them.
#[derive(Debug)]
pub(super) struct Of<'a>(pub(super) &'a HeaderMap);

impl Headers for Of<'_> {
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.0.get_all(name) {
            visit(value.as_bytes());
        }
    }
}

/// Looks for an answer.
pub(crate) async fn look(shop: &Shop, route: &mut Route) -> Result<Looked, Error> {
    let plan = route.live.plan();
    let rule = plan.keeping.rule(route.entity.as_deref());
    let wanted = route.said.cache;
    // A change is a change, whether its caller uses the cache or not.
    let is_unwanted = wanted == UseCache::No && route.method.is_safe();
    if !rule.is_on() || is_unwanted || is_special(route) {
        return match wanted {
            UseCache::Only => Err(missing(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => {
                Ok(Looked::Nothing(Question::default()))
            }
        };
    }
    let asked = ask(shop.cache(), route, &plan, rule);
    if asked.changes_it || wanted == UseCache::Refresh {
        return match wanted {
            UseCache::Only => Err(missing(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => Ok(asked.go_on()),
        };
    }
    let Some(object) = asked.find(rule).await else {
        return if asked.demand.only_if_cached || wanted == UseCache::Only {
            Err(missing(route))
        } else {
            Ok(asked.go_on())
        };
    };
    decide(route, &plan, rule, asked, object).await
}

/// What to do with an answer that was kept.
async fn decide(
    route: &mut Route,
    plan: &Plan,
    rule: &Rule,
    mut asked: Box<Asked>,
    object: Arc<Object>,
) -> Result<Looked, Error> {
    let now = asked.at;
    let mut look = object.kept.look(&asked.demand, now);
    if matches!(look, Look::Ask { .. }) && is_stretched(route, plan, rule, &object, now).await {
        look = Look::Fresh;
    }
    let only = route.said.cache == UseCache::Only;
    let hit = |why| {
        let degraded = is_degraded(route, plan);
        let reply = serve::from_cache(route, &object, &asked.client, now, why, degraded);
        Ok(Looked::Answer(Box::new(reply)))
    };
    match look {
        Look::Fresh => hit(Why::Fresh),
        Look::Stale { refresh } => {
            let answer = hit(Why::Allowed);
            if refresh && !only && !asked.demand.only_if_cached {
                serve::refresh(route, &asked, object.clone());
            }
            answer
        }
        Look::Ask { .. } if only && object.kept.may_stand_in(now) => hit(Why::Asked),
        Look::Ask { .. } if only || asked.demand.only_if_cached => Err(missing(route)),
        Look::Ask { fallback } => {
            asked.fallback = fallback;
            route.fallback = fallback;
            if asked.may_validate(&route.method) {
                validate(&mut route.headers, &object);
            }
            asked.object = Some(object);
            Ok(Looked::Nothing(Question(Some(asked))))
        }
    }
}

/// Looks once more, in memory: between the first look and now somebody else's answer to the same
/// question may have come. Whoever is about to ask for everybody would ask a second time.
pub(crate) fn look_again(route: &Route, question: &Question) -> Option<Reply> {
    let asked = question.0.as_deref()?;
    if asked.changes_it || route.said.cache != UseCache::Yes {
        return None;
    }
    let (plan, now) = (route.live.plan(), route.live.ledger.wall());
    let rule = plan.keeping.rule(route.entity.as_deref());
    let shelf = asked.cache.at_hand(&asked.key, now)?;
    let object = asked.select(rule, &shelf, now)?;
    if object.kept.look(&asked.demand, now) != Look::Fresh {
        return None;
    }
    let degraded = is_degraded(route, &plan);
    let client = &asked.client;
    Some(serve::from_cache(
        route,
        &object,
        client,
        now,
        Why::Fresh,
        degraded,
    ))
}

impl Asked {
    fn go_on(self: Box<Asked>) -> Looked {
        Looked::Nothing(Question(Some(self)))
    }

    /// May the provider be asked whether what we have is still the same? Otherwise the conditions
    /// of the call are its client's, and a 304 is about what the client has.
    pub(super) fn may_validate(&self, method: &Method) -> bool {
        method == Method::GET && !self.client.contains_key(RANGE)
    }

    /// The newest answer for these request headers, wherever it is.
    async fn find(&self, rule: &Rule) -> Option<Arc<Object>> {
        let mut shelf = self.cache.find(&self.key, self.at).await?;
        let mut seen: SmallVec<[Variant; VARIANTS_MAX]> = SmallVec::new();
        loop {
            if let Some(object) = self.select(rule, &shelf, self.at) {
                return Some(object);
            }
            if !shelf.is_partial() || seen.len() > VARIANTS_MAX {
                return None;
            }
            // From the second look on those that no shelf holds together with the ones before.
            shelf = self.cache.find_rest(&self.key, &seen, self.at).await?;
            seen.extend(shelf.objects().iter().map(|object| object.variant));
        }
    }

    /// The newest answer for these request headers.
    fn select(&self, rule: &Rule, shelf: &Shelf, now: Wall) -> Option<Arc<Object>> {
        select(&self.cache, rule, (&self.key, &self.client), shelf, now)
    }
}

/// What the question of a plain call is called and demands, as long as this plan holds.
#[derive(Debug)]
pub(super) struct Known {
    plan: Arc<Plan>,
    key: Key,
    demand: Demand,
}

impl Known {
    /// `None`: the cache has no part in this call, or it wants something else of it.
    pub(super) fn of(shop: &Shop, route: &Route) -> Option<Known> {
        let plan = route.live.plan();
        let rule = plan.keeping.rule(route.entity.as_deref());
        if !rule.is_on() || route.said.cache != UseCache::Yes || is_special(route) {
            return None;
        }
        Some(Known {
            key: name(shop.cache(), route, &plan).key,
            demand: Demand::read(rule.mode, &Of(&route.headers)),
            plan,
        })
    }

    pub(super) fn is_under(&self, plan: &Arc<Plan>) -> bool {
        Arc::ptr_eq(&self.plan, plan)
    }

    /// The answer, if it is in memory and fresh, without a wait and without a question: `None` says
    /// nothing but that it is worth to `look`.
    pub(super) fn at_hand(&self, shop: &Shop, route: &Route) -> Option<(Arc<Object>, Wall)> {
        let cache = shop.cache();
        let now = route.live.ledger.wall();
        let shelf = cache.at_hand(&self.key, now)?;
        let rule = self.plan.keeping.rule(route.entity.as_deref());
        let object = select(cache, rule, (&self.key, &route.headers), &shelf, now)?;
        let is_fresh = object.kept.look(&self.demand, now) == Look::Fresh;
        (is_fresh && !is_degraded(route, &self.plan)).then_some((object, now))
    }
}

/// The newest answer for these request headers. What was kept under an earlier rule lasts no longer than
/// the one of now lets it.
fn select(
    cache: &Cache,
    rule: &Rule,
    (key, client): (&Key, &HeaderMap),
    shelf: &Shelf,
    now: Wall,
) -> Option<Arc<Object>> {
    let headers = Of(client);
    let fits = |object: &&Arc<Object>| {
        object.variant == variant(cache.salt(), &object.names, &headers)
            && !cache.is_invalid(key, object, now)
    };
    let found = shelf.objects().iter().find(fits)?;
    let kept = rule.bound(found.kept, found.status.as_u16(), found.stored);
    if kept == found.kept {
        return Some(found.clone());
    }
    Some(Arc::new(Object {
        kept,
        ..Object::clone(found)
    }))
}

/// What a question is called.
struct Name {
    key: Key,
    url: Url,
    /// Our own key takes the place of the client's `Authorization`.
    is_replaced: bool,
}

fn name(cache: &Cache, route: &Route, plan: &Plan) -> Name {
    let is_ours = credential::is_ours(route, plan);
    let style = &plan.provider.auth.style;
    let written = route.query.as_deref().unwrap_or_default();
    let query = match style {
        Style::Query { name } if is_ours => Cow::from(query::without_parameter(written, name)),
        _ => Cow::from(written),
    };
    let place = Place {
        tls: route.origin.tls,
        host: route.origin.host.as_str(),
        port: route.origin.port,
        path: &route.path,
        query: &query,
    };
    let replaced = match style {
        Style::Header { name, .. } if is_ours => Some(Cow::from(name.to_ascii_lowercase())),
        Style::Bearer | Style::Basic | Style::OAuth2(_) | Style::Login(_) if is_ours => {
            Some(Cow::from(AUTHORIZATION.as_str()))
        }
        _ => None,
    };
    let mut ours: SmallVec<[&str; 4]> = smallvec![route.live.name.as_str()];
    if is_ours {
        ours.extend(credential::marks(plan));
    }
    ours.extend(plan.keeping.adds.as_deref());
    let url = place.url(cache.salt());
    let keyed = Keyed {
        url,
        entity: route.entity.as_deref(),
        ours: &ours,
        headers: &route.headers,
        replaced: replaced.as_deref(),
        mode: plan.keeping.rule(route.entity.as_deref()).mode,
    };
    Name {
        key: keyed.key(cache.salt()),
        url,
        is_replaced: replaced.as_deref() == Some(AUTHORIZATION.as_str()),
    }
}

/// Puts the question to the cache.
fn ask(cache: &Cache, route: &Route, plan: &Plan, rule: &Rule) -> Box<Asked> {
    let Name {
        key,
        url,
        is_replaced,
    } = name(cache, route, plan);
    Box::new(Asked {
        key,
        url,
        at: route.live.ledger.wall(),
        purges: cache.purges(),
        changes_it: !matches!(route.method, Method::GET | Method::HEAD),
        object: None,
        fallback: false,
        beside: false,
        client: route.headers.clone(),
        authorization: route.headers.contains_key(AUTHORIZATION) && !is_replaced,
        demand: Demand::read(rule.mode, &Of(&route.headers)),
        cache: cache.clone(),
    })
}

/// Calls that a cache has no part in: a safe method that is not GET or HEAD, a body, a condition
/// that only the provider can judge, a part of what has no body, or the wish to speak another protocol.
fn is_special(route: &Route) -> bool {
    if matches!(
        route.method,
        Method::OPTIONS | Method::TRACE | Method::CONNECT
    ) {
        return true;
    }
    let is_read = matches!(route.method, Method::GET | Method::HEAD);
    let has = |name| route.headers.contains_key(name);
    is_read
        && (!route.payload.is_empty()
            || is_upgrade(&route.headers)
            || (has(RANGE) && route.method == Method::HEAD)
            || (has(IF_RANGE) && !has(RANGE))
            || has(IF_MATCH)
            || has(IF_UNMODIFIED_SINCE))
}

/// Asks whether what we have is still the same, in place of what the client asked.
pub(super) fn validate(headers: &mut HeaderMap, object: &Object) {
    for (ours, theirs) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
        headers.remove(&theirs);
        if let Some(value) = object.headers.get(ours) {
            headers.insert(theirs, value.clone());
        }
    }
}

/// S13: while the quota is short, an adaptive answer is good for twice its lifetime.
async fn is_stretched(route: &Route, plan: &Plan, rule: &Rule, object: &Object, now: Wall) -> bool {
    // Where the answer itself says how long it is good, that is how long.
    let adapts = plan.keeping.adaptive && rule.mode == Mode::Ttl;
    let Some(range) = rule.lifetime.range().filter(|_| adapts) else {
        return false;
    };
    let more = lengthened(object.kept.lifetime, range) - object.kept.lifetime;
    now < object.kept.fresh_until + more && is_short(route, plan).await
}

/// Is little left of any limit on calls, whichever key is used?
async fn is_short(route: &Route, plan: &Plan) -> bool {
    let mut keys = credential::marks(plan).peekable();
    if keys.peek().is_none() {
        return is_short_for(route, plan, None).await;
    }
    for key in keys {
        if !is_short_for(route, plan, Some(key)).await {
            return false;
        }
    }
    true
}

async fn is_short_for(route: &Route, plan: &Plan, key: Option<&str>) -> bool {
    let who = route.who(key);
    let meters = plan.meters.iter();
    let cells: Vec<_> = meters
        .filter(|meter| meter.counts_calls() && !meter.is_concurrency())
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let views = route.live.ledger.look(cells).await;
    views
        .iter()
        .any(|view| view.remaining.saturating_mul(SHORT_PART) < view.limit)
}

/// Is the entity served from the cache only, because little is left? It is said with a hit, and no hit
/// waits to hear it.
fn is_degraded(route: &Route, plan: &Plan) -> bool {
    let scope = plan.degrade_scope(route.entity.as_deref());
    scope.is_some_and(|scope| matches!(route.live.ledger.glance(scope), ScopeView::Closed { .. }))
}

/// Only the cache may answer, and it has nothing.
fn missing(route: &Route) -> Error {
    Error::NotInCache {
        provider: route.live.name.clone(),
        entity: route.entity.clone(),
        reason: Reason::CacheAsked,
        retry_in: None,
    }
}
