//! Hints: what a caller can do about a refusal.
//!
//! Promises: every refusal has one, and it names a setting, a header or a command that exists.
//!
//! Never: repeats the message.

use tollgate::Error;
use tollgate::error::{NoToken, NotAllowed, Reason};
use tollgate_core::health::Fault;

/// The next step of a caller.
pub(super) fn hint(error: &Error) -> String {
    let fixed = match error {
        Error::NoPermit {
            provider,
            reason: Reason::QueueFull,
            ..
        } => {
            return format!(
                "raise queue.max, or send fewer calls at once; `tollgate status {provider}` says how many of each priority wait"
            );
        }
        Error::NoPermit { reason, .. } => for_reason(*reason),
        Error::Asleep { .. } => "come back after resetIn",
        Error::NotInCache { reason, .. } => for_cache_miss(*reason),
        Error::TooLate { .. } => {
            "raise X-Tollgate-Timeout, or queue.timeout in the provider's file"
        }
        Error::NoResponse {
            fault: Fault::Timeout,
            ..
        } => "raise timeout.first_byte in the provider's file if it is that slow",
        Error::NoResponse {
            fault: Fault::Dns, ..
        } => "check the domain or upstream in the provider's file",
        Error::NoResponse {
            fault: Fault::Connect,
            ..
        } => {
            "the provider may be down, or show a certificate that is not believed: the log says which"
        }
        Error::NoResponse { .. } => "the provider may be down; try again",
        Error::NoCredential { why, .. } => for_token(*why),
        Error::UnknownProvider { name, nearest } => return for_name(name, nearest.as_deref()),
        Error::NotAllowed { why, .. } => for_host(*why),
        Error::WrongCallerToken { .. } => {
            "send its token as X-Tollgate-Token, or as name:token@ in the address of the proxy"
        }
        Error::CrossSite => {
            "call from a program, from a page of this machine, or through a proxy that says \
             X-Forwarded-For"
        }
        Error::Loop { .. } => {
            "point `upstream:` at the provider, not at tollgate or at a gateway that leads back to it"
        }
        Error::NoUpstream { tenants, .. } => return for_missing_upstream(tenants.as_deref()),
        Error::Path(_) | Error::Host(_) | Error::Malformed(_) => {
            "mend the request and send it again"
        }
        Error::NoBody => "send the whole body, and faster",
    };
    fixed.to_owned()
}

/// What an address looks like.
fn for_name(name: &str, nearest: Option<&str>) -> String {
    match (name, nearest) {
        ("", _) => "call /NAME/path, such as /tmdb/3/movie/550, or a whole URL as \
                    /https://api.example.org/path; `tollgate provider list` shows the names"
            .to_owned(),
        (_, Some(near)) => {
            format!("did you mean `{near}`? The first part of the path is a provider's name")
        }
        (_, None) => "the first part of the path is a provider's name; `tollgate provider list` \
                      shows them, and `providers:` of tollgate.yaml or --provider FILE adds one"
            .to_owned(),
    }
}

fn for_cache_miss(reason: Reason) -> &'static str {
    match reason {
        Reason::Degraded => {
            "little of the quota is left; `tollgate reset` ends degrade mode by hand"
        }
        Reason::CacheRequested => {
            "leave out `X-Tollgate-Cache: only` and `only-if-cached` to have the provider asked"
        }
        _other => "`tollgate resume` lets calls through again",
    }
}

fn for_token(why: NoToken) -> &'static str {
    match why {
        NoToken::Rejected(_) => {
            "check api_key, or what stands under auth.login or auth.oauth2 in the provider's file, and reload; keys are never shown"
        }
        NoToken::Missing => {
            "check auth.login.token in the provider's file: the field of the answer that holds the token"
        }
        NoToken::Failed(_) | NoToken::NoResponse(_) => {
            "come back after retryIn; check auth.login.url or auth.oauth2.token_url if it stays so"
        }
    }
}

fn for_host(why: NotAllowed) -> &'static str {
    match why {
        NotAllowed::Unknown => {
            "add a provider file with this domain, or set `unknown_domain: allow`"
        }
        NotAllowed::Private => "name it as `upstream:` in a provider file if this is meant",
        NotAllowed::OtherProvider => {
            "this address serves one provider only; use the gateway's own address"
        }
    }
}

/// What a provider with no address lacks.
fn for_missing_upstream(tenants: Option<&str>) -> String {
    let Some(host) = tenants.map(|tenants| tenants.trim_start_matches("*.")) else {
        return "add `domain:` or `upstream:` to the provider's file".to_owned();
    };
    format!(
        "write `upstream: https://YOURS.{host}` in the provider's file, or call /https://YOURS.{host}/path"
    )
}

fn for_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Limit => {
            "come back after retryIn, or send X-Tollgate-Timeout with a longer time to wait here"
        }
        Reason::Cooldown => "the provider asked for a pause; come back after retryIn",
        Reason::Concurrency => {
            "as many calls as allowed are on their way; raise X-Tollgate-Timeout to wait for one to end"
        }
        Reason::OffPeak => {
            "background calls go in off-peak hours only; send X-Tollgate-Priority: normal if this one is urgent"
        }
        Reason::TooCostly => {
            "the call costs more than the limit ever has; split it or raise the limit"
        }
        Reason::NoShare => "raise the limit, lower `nodes`, or let the nodes share one store",
        Reason::QueueFull => "raise queue.max, or send fewer calls at once",
        Reason::NoDescriptors => {
            "raise the number of open files (`ulimit -n`, LimitNOFILE= of systemd), or lower `connections`"
        }
        Reason::ShuttingDown => "call again when it has started anew",
        Reason::StoreLost => {
            "the log of tollgate says why; on_store_loss in the provider's file says what happens meanwhile"
        }
        Reason::Degraded | Reason::CacheOnly | Reason::CacheRequested | Reason::Deadline => {
            "come back later"
        }
    }
}
