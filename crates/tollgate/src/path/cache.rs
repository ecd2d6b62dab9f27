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
use tollgate_config::provider::AuthStyle;
use tollgate_core::fresh::{
    Demand, FreshnessDecision, FreshnessMode, FreshnessRule, Headers, lengthened,
};
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Wall;

use super::route::Route;
use super::send::is_upgrade;
use super::serve::{self, ServeReason};
use super::{Reply, credential, query};
use crate::cache::{
    Cache, CacheKey, CachedResponse, KeyInputs, RequestUrl, UrlHash, VARIANTS_MAX, Variant,
    VariantSet, variant,
};
use crate::error::Reason;
use crate::providers::CompiledPolicy;
use crate::{Error, ProviderRegistry};

/// Below this part of a limit the quota is short, and adaptive lifetimes are stretched.
const LOW_QUOTA_DIVISOR: u64 = 5;

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
pub(crate) enum CacheResult {
    /// An answer that may be used.
    Hit(Box<Reply>),
    /// None: the question must be asked. What it is called when its answer comes back.
    Miss(PendingStore),
}

/// A question to the cache, kept until its answer is there. Empty: nothing is to be kept.
#[derive(Debug, Default)]
pub(crate) struct PendingStore(pub(super) Option<Box<CacheRequest>>);

/// What is known about a question while it is asked.
#[derive(Debug)]
pub(crate) struct CacheRequest {
    pub(super) cache: Cache,
    pub(super) key: CacheKey,
    pub(super) url: UrlHash,
    pub(super) at: Wall,
    /// How often something had been purged.
    pub(super) purges: u64,
    /// The answer is not wanted, but what it changes is.
    pub(super) is_write: bool,
    /// The answer that we have, old.
    pub(super) object: Option<Arc<CachedResponse>>,
    /// It may be used if the provider cannot be asked.
    pub(super) fallback: bool,
    /// It is asked for beside an old answer, for nobody.
    pub(super) is_background: bool,
    /// The request headers as the client sent them.
    pub(super) client_headers: HeaderMap,
    /// The client's own `Authorization` goes with the call.
    pub(super) authorization: bool,
    pub(super) demand: Demand,
}

/// The headers of a message, as the core reads them.
#[derive(Debug)]
pub(super) struct HeaderView<'a>(pub(super) &'a HeaderMap);

impl Headers for HeaderView<'_> {
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.0.get_all(name) {
            visit(value.as_bytes());
        }
    }
}

/// Looks for an answer.
pub(crate) async fn lookup(
    shop: &ProviderRegistry,
    route: &mut Route,
) -> Result<CacheResult, Error> {
    let plan = route.provider.policy();
    let rule = plan.cache.rule(route.entity.as_deref());
    let wanted = route.options.cache;
    // A change is a change, whether its caller uses the cache or not.
    let is_unwanted = wanted == UseCache::No && route.method.is_safe();
    if !rule.is_on() || is_unwanted || bypasses_cache(route) {
        return match wanted {
            UseCache::Only => Err(not_in_cache(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => {
                Ok(CacheResult::Miss(PendingStore::default()))
            }
        };
    }
    let asked = new_request(shop.cache(), route, &plan, rule);
    if asked.is_write || wanted == UseCache::Refresh {
        return match wanted {
            UseCache::Only => Err(not_in_cache(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => Ok(asked.into_miss()),
        };
    }
    let Some(object) = asked.find(rule).await else {
        return if asked.demand.only_if_cached || wanted == UseCache::Only {
            Err(not_in_cache(route))
        } else {
            Ok(asked.into_miss())
        };
    };
    decide(route, &plan, rule, asked, object).await
}

/// What to do with an answer that was kept.
async fn decide(
    route: &mut Route,
    plan: &CompiledPolicy,
    rule: &FreshnessRule,
    mut asked: Box<CacheRequest>,
    object: Arc<CachedResponse>,
) -> Result<CacheResult, Error> {
    let now = asked.at;
    let mut look = object.freshness.decide(&asked.demand, now);
    if matches!(look, FreshnessDecision::Fetch { .. })
        && is_extended(route, plan, rule, &object, now).await
    {
        look = FreshnessDecision::Fresh;
    }
    let only = route.options.cache == UseCache::Only;
    let hit = |why| {
        let degraded = is_degraded(route, plan);
        let reply = serve::from_cache(route, &object, &asked.client_headers, now, why, degraded);
        Ok(CacheResult::Hit(Box::new(reply)))
    };
    match look {
        FreshnessDecision::Fresh => hit(ServeReason::Fresh),
        FreshnessDecision::Stale { refresh } => {
            let answer = hit(ServeReason::Allowed);
            if refresh && !only && !asked.demand.only_if_cached {
                serve::refresh(route, &asked, object.clone());
            }
            answer
        }
        FreshnessDecision::Fetch { .. } if only && object.freshness.may_serve_stale(now) => {
            hit(ServeReason::CacheOnly)
        }
        FreshnessDecision::Fetch { .. } if only || asked.demand.only_if_cached => {
            Err(not_in_cache(route))
        }
        FreshnessDecision::Fetch { fallback } => {
            asked.fallback = fallback;
            route.fallback = fallback;
            if asked.may_validate(&route.method) {
                add_validators(&mut route.headers, &object);
            }
            asked.object = Some(object);
            Ok(CacheResult::Miss(PendingStore(Some(asked))))
        }
    }
}

/// Looks once more, in memory: between the first look and now somebody else's answer to the same
/// question may have come. Whoever is about to ask for everybody would ask a second time.
pub(crate) fn recheck(route: &Route, question: &PendingStore) -> Option<Reply> {
    let asked = question.0.as_deref()?;
    if asked.is_write || route.options.cache != UseCache::Yes {
        return None;
    }
    let (plan, now) = (route.provider.policy(), route.provider.ledger.wall());
    let rule = plan.cache.rule(route.entity.as_deref());
    let shelf = asked.cache.get_from_memory(&asked.key, now)?;
    let object = asked.select(rule, &shelf, now)?;
    if object.freshness.decide(&asked.demand, now) != FreshnessDecision::Fresh {
        return None;
    }
    let degraded = is_degraded(route, &plan);
    let client = &asked.client_headers;
    Some(serve::from_cache(
        route,
        &object,
        client,
        now,
        ServeReason::Fresh,
        degraded,
    ))
}

impl CacheRequest {
    fn into_miss(self: Box<CacheRequest>) -> CacheResult {
        CacheResult::Miss(PendingStore(Some(self)))
    }

    /// May the provider be asked whether what we have is still the same? Otherwise the conditions
    /// of the call are its client's, and a 304 is about what the client has.
    pub(super) fn may_validate(&self, method: &Method) -> bool {
        method == Method::GET && !self.client_headers.contains_key(RANGE)
    }

    /// The newest answer for these request headers, wherever it is.
    async fn find(&self, rule: &FreshnessRule) -> Option<Arc<CachedResponse>> {
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
            shelf = self
                .cache
                .find_other_variants(&self.key, &seen, self.at)
                .await?;
            seen.extend(shelf.objects().iter().map(|object| object.variant));
        }
    }

    /// The newest answer for these request headers.
    fn select(
        &self,
        rule: &FreshnessRule,
        shelf: &VariantSet,
        now: Wall,
    ) -> Option<Arc<CachedResponse>> {
        select(
            &self.cache,
            rule,
            (&self.key, &self.client_headers),
            shelf,
            now,
        )
    }
}

/// What the question of a plain call is called and demands, as long as this plan holds.
#[derive(Debug)]
pub(super) struct RememberedKey {
    policy: Arc<CompiledPolicy>,
    key: CacheKey,
    demand: Demand,
}

impl RememberedKey {
    /// `None`: the cache has no part in this call, or it wants something else of it.
    pub(super) fn of(shop: &ProviderRegistry, route: &Route) -> Option<RememberedKey> {
        let plan = route.provider.policy();
        let rule = plan.cache.rule(route.entity.as_deref());
        if !rule.is_on() || route.options.cache != UseCache::Yes || bypasses_cache(route) {
            return None;
        }
        Some(RememberedKey {
            key: key_parts(shop.cache(), route, &plan).key,
            demand: Demand::read(rule.mode, &HeaderView(&route.headers)),
            policy: plan,
        })
    }

    pub(super) fn is_for(&self, plan: &Arc<CompiledPolicy>) -> bool {
        Arc::ptr_eq(&self.policy, plan)
    }

    /// The answer, if it is in memory and fresh, without a wait and without a question: `None` says
    /// nothing but that it is worth to `look`.
    pub(super) fn in_memory(
        &self,
        shop: &ProviderRegistry,
        route: &Route,
    ) -> Option<(Arc<CachedResponse>, Wall)> {
        let cache = shop.cache();
        let now = route.provider.ledger.wall();
        let shelf = cache.get_from_memory(&self.key, now)?;
        let rule = self.policy.cache.rule(route.entity.as_deref());
        let object = select(cache, rule, (&self.key, &route.headers), &shelf, now)?;
        let is_fresh = object.freshness.decide(&self.demand, now) == FreshnessDecision::Fresh;
        (is_fresh && !is_degraded(route, &self.policy)).then_some((object, now))
    }
}

/// The newest answer for these request headers. What was kept under an earlier rule lasts no longer than
/// the one of now lets it.
fn select(
    cache: &Cache,
    rule: &FreshnessRule,
    (key, client): (&CacheKey, &HeaderMap),
    shelf: &VariantSet,
    now: Wall,
) -> Option<Arc<CachedResponse>> {
    let headers = HeaderView(client);
    let fits = |object: &&Arc<CachedResponse>| {
        object.variant == variant(cache.salt(), &object.vary_names, &headers)
            && !cache.is_invalid(key, object, now)
    };
    let found = shelf.objects().iter().find(fits)?;
    let kept = rule.limit_lifetime(found.freshness, found.status.as_u16(), found.stored);
    if kept == found.freshness {
        return Some(found.clone());
    }
    Some(Arc::new(CachedResponse {
        freshness: kept,
        ..CachedResponse::clone(found)
    }))
}

/// What a question is called.
struct KeyParts {
    key: CacheKey,
    url: UrlHash,
    /// Our own key takes the place of the client's `Authorization`.
    is_replaced: bool,
}

fn key_parts(cache: &Cache, route: &Route, plan: &CompiledPolicy) -> KeyParts {
    let is_ours = credential::uses_own_key(route, plan);
    let style = &plan.provider.auth.style;
    let written = route.query.as_deref().unwrap_or_default();
    let query = match style {
        AuthStyle::Query { name } if is_ours => Cow::from(query::without_parameter(written, name)),
        _ => Cow::from(written),
    };
    let place = RequestUrl {
        tls: route.origin.tls,
        host: route.origin.host.as_str(),
        port: route.origin.port,
        path: &route.path,
        query: &query,
    };
    let replaced = match style {
        AuthStyle::Header { name, .. } if is_ours => Some(Cow::from(name.to_ascii_lowercase())),
        AuthStyle::Bearer | AuthStyle::Basic | AuthStyle::OAuth2(_) | AuthStyle::Login(_)
            if is_ours =>
        {
            Some(Cow::from(AUTHORIZATION.as_str()))
        }
        _ => None,
    };
    let mut ours: SmallVec<[&str; 4]> = smallvec![route.provider.name.as_str()];
    if is_ours {
        ours.extend(credential::fingerprints(plan));
    }
    ours.extend(plan.cache.request_fingerprint.as_deref());
    let url = place.hash(cache.salt());
    let keyed = KeyInputs {
        url,
        entity: route.entity.as_deref(),
        provider_and_keys: &ours,
        headers: &route.headers,
        replaced_header: replaced.as_deref(),
        mode: plan.cache.rule(route.entity.as_deref()).mode,
    };
    KeyParts {
        key: keyed.key(cache.salt()),
        url,
        is_replaced: replaced.as_deref() == Some(AUTHORIZATION.as_str()),
    }
}

/// Puts the question to the cache.
fn new_request(
    cache: &Cache,
    route: &Route,
    plan: &CompiledPolicy,
    rule: &FreshnessRule,
) -> Box<CacheRequest> {
    let KeyParts {
        key,
        url,
        is_replaced,
    } = key_parts(cache, route, plan);
    Box::new(CacheRequest {
        key,
        url,
        at: route.provider.ledger.wall(),
        purges: cache.purge_count(),
        is_write: !matches!(route.method, Method::GET | Method::HEAD),
        object: None,
        fallback: false,
        is_background: false,
        client_headers: route.headers.clone(),
        authorization: route.headers.contains_key(AUTHORIZATION) && !is_replaced,
        demand: Demand::read(rule.mode, &HeaderView(&route.headers)),
        cache: cache.clone(),
    })
}

/// Calls that a cache has no part in: a safe method that is not GET or HEAD, a body, a condition
/// that only the provider can judge, a part of what has no body, or the wish to speak another protocol.
fn bypasses_cache(route: &Route) -> bool {
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
pub(super) fn add_validators(headers: &mut HeaderMap, object: &CachedResponse) {
    for (ours, theirs) in [(ETAG, IF_NONE_MATCH), (LAST_MODIFIED, IF_MODIFIED_SINCE)] {
        headers.remove(&theirs);
        if let Some(value) = object.headers.get(ours) {
            headers.insert(theirs, value.clone());
        }
    }
}

/// S13: while the quota is short, an adaptive answer is good for twice its lifetime.
async fn is_extended(
    route: &Route,
    plan: &CompiledPolicy,
    rule: &FreshnessRule,
    object: &CachedResponse,
    now: Wall,
) -> bool {
    // Where the answer itself says how long it is good, that is how long.
    let adapts = plan.cache.adaptive && rule.mode == FreshnessMode::Ttl;
    let Some(range) = rule.lifetime.range().filter(|_| adapts) else {
        return false;
    };
    let more = lengthened(object.freshness.lifetime, range) - object.freshness.lifetime;
    now < object.freshness.fresh_until + more && is_quota_low(route, plan).await
}

/// Is little left of any limit on calls, whichever key is used?
async fn is_quota_low(route: &Route, plan: &CompiledPolicy) -> bool {
    let mut keys = credential::fingerprints(plan).peekable();
    if keys.peek().is_none() {
        return is_quota_low_for(route, plan, None).await;
    }
    for key in keys {
        if !is_quota_low_for(route, plan, Some(key)).await {
            return false;
        }
    }
    true
}

async fn is_quota_low_for(route: &Route, plan: &CompiledPolicy, key: Option<&str>) -> bool {
    let who = route.who(key);
    let meters = plan.limits.iter();
    let cells: Vec<_> = meters
        .filter(|meter| meter.counts_calls() && !meter.is_concurrency())
        .map(|meter| (meter.cell_of(&who), meter.rule.clone()))
        .collect();
    let views = route.provider.ledger.peek(cells).await;
    views
        .iter()
        .any(|view| view.remaining.saturating_mul(LOW_QUOTA_DIVISOR) < view.limit)
}

/// Is the entity served from the cache only, because little is left? It is said with a hit, and no hit
/// waits to hear it.
fn is_degraded(route: &Route, plan: &CompiledPolicy) -> bool {
    let scope = plan.degrade_scope(route.entity.as_deref());
    scope.is_some_and(|scope| {
        matches!(
            route.provider.ledger.last_seen_scope(scope),
            ScopeView::Closed { .. }
        )
    })
}

/// Only the cache may answer, and it has nothing.
fn not_in_cache(route: &Route) -> Error {
    Error::NotInCache {
        provider: route.provider.name.clone(),
        entity: route.entity.clone(),
        reason: Reason::CacheRequested,
        retry_in: None,
    }
}
