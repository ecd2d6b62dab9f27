//! Where a call goes: the provider, its origin, and whether its key may be sent there.
//!
//! Promises: a provider's key is sent only to its own origin, and never unencrypted to another. A
//! host that a run-time change names is not its own. A reload that moves the provider while a call
//! is under way sends neither the new key to the old origin nor the old key to the new one.
//!
//! Never: reads the path.

use std::sync::Arc;

use tollgate_config::provider::Upstream;
use tollgate_core::domain::Host;

use super::call::Target;
use crate::Error;
use crate::pool::Origin;
use crate::providers::{ActiveProvider, CompiledPolicy, ProviderRegistry};

/// Where a call goes, before its path is read.
pub(super) struct Destination {
    pub(super) provider: Arc<ActiveProvider>,
    pub(super) policy: Arc<CompiledPolicy>,
    pub(super) origin: Origin,
    /// The host that the caller named.
    pub(super) host: Host,
    /// The prefix of the path.
    pub(super) base: String,
    pub(super) is_own_origin: bool,
}

/// Finds the provider and the origin of a call.
pub(super) fn resolve(
    registry: &ProviderRegistry,
    target: Target,
) -> Result<(Destination, String, Option<String>), Error> {
    match target {
        Target::Provider { name, path, query } => {
            let provider = registry.named(&name)?;
            let policy = provider.policy();
            let upstream = policy
                .provider
                .upstream
                .clone()
                .or_else(|| upstream_of_domain(&policy));
            let upstream = upstream.ok_or_else(|| Error::NoUpstream {
                tenants: policy
                    .provider
                    .wildcard_only_domain()
                    .map(ToString::to_string),
                provider: name,
            })?;
            let is_named =
                policy.provider.upstream.is_some() || policy.provider.names_host(&upstream.host);
            let private = is_named || registry.allows_private();
            Ok((
                to_upstream(provider, policy, upstream, private),
                path,
                query,
            ))
        }
        Target::Url {
            tls,
            authority,
            path,
            query,
        } => {
            let host = Host::parse(&authority)?;
            let found = registry.find_by_host(&host)?;
            let is_known = found.is_some();
            let provider = found.unwrap_or_else(|| registry.unknown());
            let policy = provider.policy();
            if let Some(upstream) = policy.provider.upstream.clone() {
                let below = upstream.path_below_base(&host, &path).map(str::to_owned);
                let path = below.unwrap_or(path);
                let destination = to_upstream(provider, policy, upstream, true);
                return Ok((
                    Destination {
                        host,
                        ..destination
                    },
                    path,
                    query,
                ));
            }
            let port = port(&authority).unwrap_or(if tls { 443 } else { 80 });
            let destination = Destination {
                origin: Origin {
                    tls,
                    host: host.clone(),
                    port,
                    private: policy.provider.names_host(&host) || registry.allows_private(),
                },
                base: String::new(),
                // A key must not be sent unencrypted, nor to another port of the same host, nor to
                // another tenant's host of `*.example.org`.
                is_own_origin: is_known
                    && tls
                    && port == 443
                    && !policy.provider.withholds_keys
                    && policy.provider.may_receive_key(&host),
                host,
                provider,
                policy,
            };
            Ok((destination, path, query))
        }
    }
}

/// The destination of an upstream that a provider file names.
pub(super) fn to_upstream(
    provider: Arc<ActiveProvider>,
    policy: Arc<CompiledPolicy>,
    upstream: Upstream,
    private: bool,
) -> Destination {
    Destination {
        origin: Origin {
            tls: upstream.tls,
            host: upstream.host.clone(),
            port: upstream.port,
            private,
        },
        host: upstream.host,
        base: upstream.base,
        is_own_origin: !policy.provider.withholds_keys,
        provider,
        policy,
    }
}

/// Is this origin the provider's own under this policy?
pub(super) fn is_own_origin(origin: &Origin, policy: &CompiledPolicy) -> bool {
    let file = &policy.provider;
    let is_named = || match &file.upstream {
        Some(own) => (own.tls, &own.host, own.port) == (origin.tls, &origin.host, origin.port),
        None => origin.tls && origin.port == 443 && file.may_receive_key(&origin.host),
    };
    !file.withholds_keys && is_named()
}

/// A provider without an upstream uses its first domain.
fn upstream_of_domain(policy: &CompiledPolicy) -> Option<Upstream> {
    let mut domains = policy.provider.domains.iter();
    let domain = domains.find(|domain| !domain.is_wildcard())?;
    Some(Upstream {
        tls: true,
        host: domain.host().clone(),
        port: 443,
        base: String::new(),
    })
}

/// The port of an authority, which was checked together with the host.
fn port(authority: &str) -> Option<u16> {
    let after = authority
        .rsplit_once(']')
        .map_or(authority, |(_, after)| after);
    after.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_read_after_names_and_addresses() {
        assert_eq!(port("api.example.org:8080"), Some(8080));
        assert_eq!(port("[::1]:8080"), Some(8080));
        assert_eq!(port("[::1]"), None);
        assert_eq!(port("api.example.org"), None);
    }

    /// H4: a key is sent to hosts that the file names, not to every host of `*.example.org`.
    #[tokio::test]
    async fn h4_a_key_is_not_sent_to_a_wildcard_host() {
        let file = "name: x\ndomains: ['*.example.org', mine.example.org, api.example.com]\nlimits: [1/1s]";
        let draft = tollgate_config::ProviderFile::read("x.yaml", file).unwrap();
        let checked = draft.check(&tollgate_config::Environment::empty());
        let ledger = tollgate_ledger::Ledger::memory(tollgate_ledger::Clock::System);
        let options = crate::providers::Options::default();
        let registry =
            ProviderRegistry::build(vec![checked.provider.unwrap()], ledger, options).unwrap();
        let is_own = |authority: &str, tls: bool| {
            let target = Target::Url {
                tls,
                authority: authority.to_owned(),
                path: "/a".to_owned(),
                query: None,
            };
            let (destination, ..) = resolve(&registry, target).unwrap();
            assert_eq!(destination.provider.name(), "x");
            destination.is_own_origin
        };
        assert!(is_own("mine.example.org", true) && is_own("eu.api.example.com", true));
        assert!(!is_own("other.example.org", true));
        assert!(!is_own("mine.example.org", false) && !is_own("mine.example.org:8443", true));
    }
}
