//! How Tollgate caches a provider's responses: the file, as the core's rules.
//!
//! Promises: an entity with its own lifetime has its own rule; built once per reload.
//!
//! Never: has its own defaults. Those are in the file.

use std::collections::HashMap;

use tollgate_config::Provider;
use tollgate_config::amount::Lifetime as Written;
use tollgate_config::settings::{CacheIgnore, CacheMode};
use tollgate_core::fresh::{FreshnessMode, FreshnessRule, Ignore, Lifetime};

use crate::cache::OBJECT_MAX;
use crate::credentials::SecretScan;
use crate::credentials::fingerprint;

/// How Tollgate caches a provider's responses.
#[derive(Debug)]
pub(crate) struct CachePolicy {
    rule: FreshnessRule,
    entities: HashMap<String, FreshnessRule>,
    /// Lifetimes adapt to how often a response changes.
    pub(crate) adaptive: bool,
    /// The largest body that is cached.
    pub(crate) object_max: usize,
    /// A fingerprint of what the file adds to requests, because another request may have another
    /// response, and of the settings that decide which responses are cached, and for whom.
    pub(crate) request_fingerprint: Option<String>,
    /// Secrets that must not be cached.
    pub(crate) secrets: SecretScan,
}

impl CachePolicy {
    pub(crate) fn of(provider: &Provider) -> CachePolicy {
        let cache = &provider.cache;
        let has = |what| cache.ignore.contains(&what);
        let lower = |name: &String| name.to_ascii_lowercase();
        let rule = FreshnessRule {
            mode: match cache.mode {
                CacheMode::Ttl => FreshnessMode::Ttl,
                CacheMode::Rfc9111 => FreshnessMode::Rfc9111,
            },
            lifetime: lifetime(cache.ttl),
            stale: cache.stale,
            negative: cache.negative,
            vary: cache.vary.iter().map(lower).collect(),
            ignore: Ignore {
                private: has(CacheIgnore::Private),
                no_store: has(CacheIgnore::NoStore),
                set_cookie: has(CacheIgnore::SetCookie),
                authorization: has(CacheIgnore::Authorization),
            },
        };
        let entities = provider.entity_ttl.iter().map(|(entity, ttl)| {
            let lifetime = lifetime(*ttl);
            let rule = FreshnessRule {
                // `0s` turns caching off, whatever the response headers say.
                mode: if lifetime == Lifetime::Off {
                    FreshnessMode::Ttl
                } else {
                    rule.mode
                },
                lifetime,
                ..rule.clone()
            };
            (entity.as_str().to_owned(), rule)
        });
        let object_max = usize::try_from(cache.max_object.0).unwrap_or(usize::MAX);
        CachePolicy {
            entities: entities.collect(),
            adaptive: cache.adaptive,
            object_max: object_max.min(OBJECT_MAX),
            request_fingerprint: request_fingerprint(provider),
            secrets: SecretScan::of(provider),
            rule,
        }
    }

    /// The rule for a call to this entity.
    pub(crate) fn rule(&self, entity: Option<&str>) -> &FreshnessRule {
        entity
            .and_then(|entity| self.entities.get(entity))
            .unwrap_or(&self.rule)
    }
}

/// A fingerprint of the headers and extra key parameters that the file adds, and of the cache
/// settings that decide whose responses are cached; `None` if the file has neither.
fn request_fingerprint(provider: &Provider) -> Option<String> {
    let all = provider.headers.iter().chain(&provider.auth.also);
    let mut text = String::new();
    for (name, value) in all {
        // The length prefix keeps two values from reading as one.
        text.push_str(&format!("{}:{name}", name.len()));
        text.push_str(&format!("{}:{}", value.expose().len(), value.expose()));
    }
    let cache = &provider.cache;
    if cache.mode != CacheMode::Ttl || !cache.vary.is_empty() || !cache.ignore.is_empty() {
        // No header name contains a space.
        text.push_str(&format!(
            " {:?} {:?} {:?}",
            cache.mode, cache.vary, cache.ignore
        ));
    }
    (!text.is_empty()).then(|| fingerprint(&text))
}

fn lifetime(written: Written) -> Lifetime {
    match written {
        Written::Off => Lifetime::Off,
        Written::For(span) => Lifetime::For(span),
        Written::Between(least, most) => Lifetime::Between(least, most),
        Written::Forever => Lifetime::Forever,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};
    use tollgate_core::time::Span;

    fn cache_policy(file: &str) -> CachePolicy {
        let file = format!("domain: api.example.org\nlimit: 5\nperiod: 1s\n{file}");
        let draft = ProviderFile::read("x.yaml", &file).unwrap();
        CachePolicy::of(&draft.check(&Environment::empty()).provider.unwrap())
    }

    /// S8: an entity's lifetime wins over the provider's; zero is off.
    #[test]
    fn s8_entities_have_lifetimes_of_their_own() {
        let policy = cache_policy(
            "cache: {ttl: 1h}\nentities: {ttl: {teams: 24h, standings: 5m..10m, odds: 0s}}",
        );
        let lifetime = |entity| policy.rule(entity).lifetime;
        assert_eq!(lifetime(None), Lifetime::For(Span::from_secs(3_600)));
        assert_eq!(
            lifetime(Some("teams")),
            Lifetime::For(Span::from_secs(86_400))
        );
        assert_eq!(
            lifetime(Some("standings")),
            Lifetime::Between(Span::from_secs(300), Span::from_secs(600))
        );
        assert!(!policy.rule(Some("odds")).is_on());
        assert!(policy.rule(Some("anything")).is_on());
    }

    /// Another header in the file makes another request.
    #[test]
    fn headers_added_by_the_file_change_the_fingerprint() {
        let fingerprint = |file: &str| cache_policy(file).request_fingerprint;
        assert_eq!(fingerprint(""), None);
        let german = fingerprint("headers: {accept-language: de}");
        assert!(german.is_some());
        assert_eq!(german, fingerprint("headers: {accept-language: de}"));
        assert_ne!(german, fingerprint("headers: {accept-language: en}"));
        let also = "api_key: a\nauth: {query: k, also: {user: me}}";
        assert_ne!(
            fingerprint(also),
            fingerprint("api_key: a\nauth: {query: k}")
        );
    }

    /// A response cached under one of these settings is not used under another.
    #[test]
    fn cache_settings_change_the_fingerprint() {
        let files = [
            "",
            "cache: {mode: rfc9111}",
            "cache: {ttl: 1h, vary: [accept-language]}",
            "cache: {ttl: 1h, ignore: [private]}",
            "cache: {ttl: 1h, ignore: [private, no-store]}",
        ];
        let mut all = files
            .map(|file| cache_policy(file).request_fingerprint)
            .to_vec();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), files.len());
        assert_eq!(cache_policy("cache: {ttl: 1h}").request_fingerprint, None);
    }

    #[test]
    fn without_cache_settings_nothing_is_cached() {
        assert!(!cache_policy("").rule(None).is_on());
        assert!(cache_policy("cache: {mode: rfc9111}").rule(None).is_on());
    }

    /// S8: zero is off, also where the response headers set the lifetime.
    #[test]
    fn s8_zero_is_off_in_both_modes() {
        let whole = cache_policy("cache: {mode: rfc9111, ttl: 0s}");
        assert!(!whole.rule(None).is_on());
        let one = cache_policy("cache: {mode: rfc9111}\nentities: {ttl: {odds: 0s}}");
        assert!(!one.rule(Some("odds")).is_on());
        assert!(one.rule(Some("teams")).is_on());
    }
}
