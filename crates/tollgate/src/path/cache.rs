//! The cache stage: is there a cached response that may be used?
//!
//! Promises: a call that is served here costs no permit and touches no limit. If a stale response
//! may be used instead, the call does not wait: it takes a permit only if one is free now, is not
//! retried, and falls back to the stale response. `X-Tollgate-Cache` is honoured.
//!
//! Never: serves a response to a request that differs from the one it was made for.

use std::borrow::Cow;
use std::sync::Arc;

use http::header::{AUTHORIZATION, IF_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE};
use http::{HeaderMap, Method};
use smallvec::{SmallVec, smallvec};
use tollgate_config::provider::AuthStyle;
use tollgate_core::fresh::{Demand, FreshnessDecision, FreshnessMode, FreshnessRule, lengthened};
use tollgate_core::limit::CellView;
use tollgate_core::scope::ScopeView;
use tollgate_core::time::Wall;

use super::cache_request::{CacheRequest, PendingStore, add_validators};
use super::call::UseCache;
use super::refresh::{self, Go};
use super::route::Route;
use super::serve::{self, ServeReason};
use crate::cache::{
    Cache, CacheKey, CachedResponse, KeyInputs, RequestUrl, UrlHash, VARIANTS_MAX, Variant,
    VariantSet, variant,
};
use crate::error::Reason;
use crate::headers::HeaderView;
use crate::headers::is_upgrade;
use crate::providers::CompiledPolicy;
use crate::query;
use crate::reply::Reply;
use crate::{Error, ProviderRegistry};

/// The quota is low below one in this many parts of a limit; then adaptive lifetimes are extended.
const LOW_QUOTA_DIVISOR: u64 = 5;

/// The result of a cache lookup.
#[derive(Debug)]
pub(crate) enum CacheResult {
    /// A response that may be used.
    Hit(Box<Reply>),
    /// None: the provider must be asked. Carries what is needed to store its response.
    Miss(PendingStore),
}

/// Looks up a response.
pub(crate) async fn lookup(
    registry: &ProviderRegistry,
    route: &mut Route,
    go: Go,
) -> Result<CacheResult, Error> {
    let policy = route.subject.provider.policy();
    let rule = policy.cache.rule(route.subject.entity.as_deref());
    let wanted = route.request.cache;
    // A write invalidates, whether its caller uses the cache or not.
    let is_unwanted = wanted == UseCache::No && route.request.method.is_safe();
    if !rule.is_on() || is_unwanted || bypasses_cache(route) {
        return match wanted {
            UseCache::Only => Err(not_in_cache(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => {
                Ok(CacheResult::Miss(PendingStore::default()))
            }
        };
    }
    let request = new_request(registry.cache(), route, &policy, rule);
    if request.is_write || wanted == UseCache::Refresh {
        return match wanted {
            UseCache::Only => Err(not_in_cache(route)),
            UseCache::Yes | UseCache::No | UseCache::Refresh => Ok(request.into_miss()),
        };
    }
    let Some(object) = request.find(rule).await else {
        return if request.demand.only_if_cached || wanted == UseCache::Only {
            Err(not_in_cache(route))
        } else {
            Ok(request.into_miss())
        };
    };
    decide(route, &policy, rule, (request, object), go).await
}

/// Decides what to do with a cached response.
async fn decide(
    route: &mut Route,
    policy: &CompiledPolicy,
    rule: &FreshnessRule,
    (mut request, object): (Box<CacheRequest>, Arc<CachedResponse>),
    go: Go,
) -> Result<CacheResult, Error> {
    let now = request.at;
    let mut status = object.freshness.decide(&request.demand, now);
    if matches!(status, FreshnessDecision::Fetch { .. })
        && is_extended(route, policy, rule, &object, now).await
    {
        status = FreshnessDecision::Fresh;
    }
    let only = route.request.cache == UseCache::Only;
    let hit = |why| {
        let degraded = is_degraded(route, policy);
        let reply = serve::from_cache(route, &object, &request.client_headers, now, why, degraded);
        Ok(CacheResult::Hit(Box::new(reply)))
    };
    match status {
        FreshnessDecision::Fresh => hit(ServeReason::Fresh),
        FreshnessDecision::Stale { refresh } => {
            let result = hit(ServeReason::Allowed);
            if refresh && !only && !request.demand.only_if_cached {
                refresh::refresh(route, &request, object.clone(), go);
            }
            result
        }
        FreshnessDecision::Fetch { .. } if only && object.freshness.may_serve_stale(now) => {
            hit(ServeReason::CacheOnly)
        }
        FreshnessDecision::Fetch { .. } if only || request.demand.only_if_cached => {
            Err(not_in_cache(route))
        }
        FreshnessDecision::Fetch { fallback } => {
            request.fallback = fallback;
            route.subject.fallback = fallback;
            if request.may_validate(&route.request.method) {
                add_validators(&mut route.request.headers, &object);
            }
            request.object = Some(object);
            Ok(CacheResult::Miss(PendingStore(Some(request))))
        }
    }
}

/// Checks the memory cache again: since the first lookup another call may have stored a response to
/// the same request. A leader would otherwise fetch it a second time.
pub(crate) fn recheck(route: &Route, pending: &PendingStore) -> Option<Reply> {
    let request = pending.0.as_deref()?;
    if request.is_write || route.request.cache != UseCache::Yes {
        return None;
    }
    let (policy, now) = (
        route.subject.provider.policy(),
        route.subject.provider.ledger.wall(),
    );
    let rule = policy.cache.rule(route.subject.entity.as_deref());
    let variants = request.cache.get_from_memory(&request.key, now)?;
    let object = request.select(rule, &variants, now)?;
    if object.freshness.decide(&request.demand, now) != FreshnessDecision::Fresh {
        return None;
    }
    let degraded = is_degraded(route, &policy);
    let client = &request.client_headers;
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

    /// The newest response for these request headers, from memory or disk.
    async fn find(&self, rule: &FreshnessRule) -> Option<Arc<CachedResponse>> {
        let mut variants = self.cache.find(&self.key, self.at).await?;
        let mut seen: SmallVec<[Variant; VARIANTS_MAX]> = SmallVec::new();
        loop {
            if let Some(object) = self.select(rule, &variants, self.at) {
                return Some(object);
            }
            if !variants.is_partial() || seen.len() > VARIANTS_MAX {
                return None;
            }
            // Later rounds fetch the variants that did not fit into the set before.
            variants = self
                .cache
                .find_other_variants(&self.key, &seen, self.at)
                .await?;
            seen.extend(variants.objects().iter().map(|object| object.variant));
        }
    }

    /// The newest response for these request headers.
    fn select(
        &self,
        rule: &FreshnessRule,
        variants: &VariantSet,
        now: Wall,
    ) -> Option<Arc<CachedResponse>> {
        select(
            &self.cache,
            rule,
            (&self.key, &self.client_headers),
            variants,
            now,
        )
    }
}

/// The cache key and demands of a simple request, valid as long as the policy is.
#[derive(Debug)]
pub(crate) struct RememberedKey {
    policy: Arc<CompiledPolicy>,
    key: CacheKey,
    demand: Demand,
}

impl RememberedKey {
    /// `None`: the cache does not handle this call, or the caller wants a special use of it.
    pub(crate) fn of(registry: &ProviderRegistry, route: &Route) -> Option<RememberedKey> {
        let policy = route.subject.provider.policy();
        let rule = policy.cache.rule(route.subject.entity.as_deref());
        if !rule.is_on() || route.request.cache != UseCache::Yes || bypasses_cache(route) {
            return None;
        }
        Some(RememberedKey {
            key: key_parts(registry.cache(), route, &policy).key,
            demand: Demand::read(rule.mode, &HeaderView(&route.request.headers)),
            policy,
        })
    }

    pub(crate) fn is_for(&self, policy: &Arc<CompiledPolicy>) -> bool {
        Arc::ptr_eq(&self.policy, policy)
    }

    /// The response, if it is fresh and in memory. Never waits. After `None`, `lookup` may still
    /// find one.
    pub(crate) fn in_memory(
        &self,
        registry: &ProviderRegistry,
        route: &Route,
    ) -> Option<(Arc<CachedResponse>, Wall)> {
        let cache = registry.cache();
        let now = route.subject.provider.ledger.wall();
        let variants = cache.get_from_memory(&self.key, now)?;
        let rule = self.policy.cache.rule(route.subject.entity.as_deref());
        let object = select(
            cache,
            rule,
            (&self.key, &route.request.headers),
            &variants,
            now,
        )?;
        let is_fresh = object.freshness.decide(&self.demand, now) == FreshnessDecision::Fresh;
        (is_fresh && !is_degraded(route, &self.policy)).then_some((object, now))
    }
}

/// The newest response for these request headers. One stored under an earlier rule lasts no longer
/// than the current rule allows.
fn select(
    cache: &Cache,
    rule: &FreshnessRule,
    (key, client): (&CacheKey, &HeaderMap),
    variants: &VariantSet,
    now: Wall,
) -> Option<Arc<CachedResponse>> {
    let headers = HeaderView(client);
    let fits = |object: &&Arc<CachedResponse>| {
        object.variant == variant(cache.salt(), &object.vary_names, &headers)
            && !cache.is_invalid(key, object, now)
    };
    let found = variants.objects().iter().find(fits)?;
    let freshness = rule.limit_lifetime(found.freshness, found.status.as_u16(), found.stored);
    if freshness == found.freshness {
        return Some(found.clone());
    }
    Some(Arc::new(CachedResponse {
        freshness,
        ..CachedResponse::clone(found)
    }))
}

/// The cache key of a request.
struct KeyParts {
    key: CacheKey,
    url: UrlHash,
    /// Our own key replaces the client's `Authorization`.
    is_replaced: bool,
}

fn key_parts(cache: &Cache, route: &Route, policy: &CompiledPolicy) -> KeyParts {
    let is_ours = route.request.uses_own_key(policy);
    let style = &policy.provider.auth.style;
    let written = route.request.query.as_deref().unwrap_or_default();
    let query = match style {
        AuthStyle::Query { name } if is_ours => Cow::from(query::without_parameter(written, name)),
        _ => Cow::from(written),
    };
    let request_url = RequestUrl {
        tls: route.request.origin.tls,
        host: route.request.origin.host.as_str(),
        port: route.request.origin.port,
        path: &route.request.path,
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
    let mut ours: SmallVec<[&str; 4]> = smallvec![route.subject.provider.name.as_str()];
    if is_ours {
        ours.extend(policy.fingerprints());
    }
    ours.extend(policy.cache.request_fingerprint.as_deref());
    ours.extend(route.request.client_name());
    let url = request_url.hash(cache.salt());
    let keyed = KeyInputs {
        url,
        entity: route.subject.entity.as_deref(),
        provider_and_keys: &ours,
        headers: &route.request.headers,
        replaced_header: replaced.as_deref(),
        mode: policy.cache.rule(route.subject.entity.as_deref()).mode,
    };
    KeyParts {
        key: keyed.key(cache.salt()),
        url,
        is_replaced: replaced.as_deref() == Some(AUTHORIZATION.as_str()),
    }
}

/// Describes a request to the cache.
fn new_request(
    cache: &Cache,
    route: &Route,
    policy: &CompiledPolicy,
    rule: &FreshnessRule,
) -> Box<CacheRequest> {
    let KeyParts {
        key,
        url,
        is_replaced,
    } = key_parts(cache, route, policy);
    Box::new(CacheRequest {
        key,
        url,
        at: route.subject.provider.ledger.wall(),
        purges: cache.purge_count(),
        is_write: !matches!(route.request.method, Method::GET | Method::HEAD),
        object: None,
        fallback: false,
        is_background: false,
        client_headers: route.request.headers.clone(),
        authorization: route.request.headers.contains_key(AUTHORIZATION) && !is_replaced,
        demand: Demand::read(rule.mode, &HeaderView(&route.request.headers)),
        cache: cache.clone(),
    })
}

/// Requests that the cache does not handle: a safe method other than GET and HEAD, a body, a
/// condition that only the provider can evaluate, a range of a HEAD, or a protocol upgrade.
fn bypasses_cache(route: &Route) -> bool {
    if matches!(
        route.request.method,
        Method::OPTIONS | Method::TRACE | Method::CONNECT
    ) {
        return true;
    }
    let is_read = matches!(route.request.method, Method::GET | Method::HEAD);
    let has = |name| route.request.headers.contains_key(name);
    is_read
        && (!route.request.payload.is_empty()
            || is_upgrade(&route.request.headers)
            || (has(RANGE) && route.request.method == Method::HEAD)
            || (has(IF_RANGE) && !has(RANGE))
            || has(IF_MATCH)
            || has(IF_UNMODIFIED_SINCE))
}

/// S13: while the quota is low, an adaptive response lives twice as long.
async fn is_extended(
    route: &Route,
    policy: &CompiledPolicy,
    rule: &FreshnessRule,
    object: &CachedResponse,
    now: Wall,
) -> bool {
    // A lifetime that the response itself states is not extended.
    let adapts = policy.cache.adaptive && rule.mode == FreshnessMode::Ttl;
    let Some(range) = rule.lifetime.range().filter(|_| adapts) else {
        return false;
    };
    let more = lengthened(object.freshness.lifetime, range) - object.freshness.lifetime;
    now < object.freshness.fresh_until + more && is_quota_low(route, policy).await
}

/// Is the quota of any limit on calls low, for every key? One peek.
async fn is_quota_low(route: &Route, policy: &CompiledPolicy) -> bool {
    let own_keys = policy.fingerprints().map(Some);
    let keys: Vec<Option<&str>> = match policy.fingerprints().next() {
        Some(_) => own_keys.collect(),
        None => vec![None],
    };
    let cells: Vec<_> = keys
        .iter()
        .flat_map(|key| {
            let attributes = route.subject.attributes(*key);
            let limits = policy.limits.iter();
            let counted = limits.filter(|limit| {
                limit.counts_calls() && !limit.is_concurrency() && !limit.is_learned()
            });
            let cells = counted.map(|limit| (limit.cell_of(&attributes), limit.rule.clone()));
            cells.collect::<Vec<_>>()
        })
        .collect();
    let of_key = cells.len() / keys.len();
    if of_key == 0 {
        return false;
    }
    let views = route.subject.provider.ledger.peek(cells).await;
    let is_low = |view: &CellView| view.remaining.saturating_mul(LOW_QUOTA_DIVISOR) < view.limit;
    views.chunks(of_key).all(|views| views.iter().any(is_low))
}

/// Is the entity in degrade mode, served from the cache only? Reported with a hit, and read from
/// the last-seen state: a hit never waits.
fn is_degraded(route: &Route, policy: &CompiledPolicy) -> bool {
    let scope = policy.degrade_scope(route.subject.entity.as_deref());
    scope.is_some_and(|scope| {
        matches!(
            route.subject.provider.ledger.last_seen_scope(scope),
            ScopeView::Closed { .. }
        )
    })
}

/// Only the cache may serve this call, and it has no response.
fn not_in_cache(route: &Route) -> Error {
    Error::NotInCache {
        provider: route.subject.provider.name.clone(),
        entity: route.subject.entity_name(),
        reason: Reason::CacheRequested,
        retry_in: None,
    }
}
