//! The `cache` block: warns of settings that have no effect.
//!
//! Promises: `ttl: 0s` caches nothing, whatever the mode. A setting that has no effect in the
//! chosen mode gives a warning.
//!
//! Never: gives an error. The intention is clear enough to continue.

use tollgate_core::entity::Entity;

use crate::amount::Lifetime;
use crate::field::{At, Fields};
use crate::problem::{Level, Problems};
use crate::settings::{Cache, CacheMode};

use super::or_default;

/// The largest body that any version caches.
const OBJECT_MAX: u64 = 8 << 20;

/// Reads `cache:` and warns of settings in it that have no effect.
pub(super) fn cache(
    fields: &Fields<'_>,
    entities: &[(Entity, Lifetime)],
    problems: &mut Problems,
) -> Cache {
    let mut cache: Cache = or_default(fields, "cache", problems);
    let Some(at) = fields.get("cache") else {
        return cache;
    };
    let is_range = |ttl: &Lifetime| matches!(ttl, Lifetime::Between(..));
    let has_range = is_range(&cache.ttl) || entities.iter().any(|(_, ttl)| is_range(ttl));
    let mut warn = |name: &str, what: &str, remedy: &str| {
        if let Some(field) = below(&at, name) {
            problems.push(field.problem(Level::Warning, what, remedy));
        }
    };
    if cache.max_object.0 > OBJECT_MAX {
        warn("max_object", "no body above 8MiB is cached", "write `8MiB`");
    }
    let by_headers = cache.mode == CacheMode::Rfc9111;
    if cache.adaptive && by_headers {
        let what = "has no effect in mode rfc9111, where each response sets its own lifetime";
        warn("adaptive", what, "remove it, or write `mode: ttl`");
    } else if cache.adaptive && !has_range {
        let what = "has no effect without a range to adapt in";
        warn("adaptive", what, "write `ttl: 5m..1h`, or remove it");
    }
    if by_headers {
        let what = "is not used in mode rfc9111, where each response sets its own lifetime";
        let remedy = "remove it, or write `mode: ttl`";
        if cache.negative > tollgate_core::time::Span::ZERO {
            warn("negative", what, remedy);
        }
        if cache.ttl != Lifetime::Off {
            warn("ttl", what, remedy);
        } else if below(&at, "ttl").is_some() {
            // A user who writes `ttl: 0s` wants no caching.
            cache.mode = CacheMode::Ttl;
        }
    }
    cache
}

fn below<'a>(at: &At<'a>, name: &str) -> Option<At<'a>> {
    Some(at.below(name, at.node.get(name)?))
}
