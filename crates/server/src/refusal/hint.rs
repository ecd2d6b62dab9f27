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
        Error::NoPermit { reason, .. } => of_reason(*reason),
        Error::Asleep { .. } => "come back after resetIn",
        Error::NotInCache { reason, .. } => not_in_cache(*reason),
        Error::TooLate { .. } => {
            "raise X-Tollgate-Timeout, or queue.timeout in the provider's file"
        }
        Error::NoAnswer {
            fault: Fault::Timeout,
            ..
        } => "raise timeout.first_byte in the provider's file if it is that slow",
        Error::NoAnswer {
            fault: Fault::Dns, ..
        } => "check the domain or upstream in the provider's file",
        Error::NoAnswer {
            fault: Fault::Connect,
            ..
        } => {
            "the provider may be down, or show a certificate that is not believed: the log says which"
        }
        Error::NoAnswer { .. } => "the provider may be down; try again",
        Error::NoCredential { why, .. } => of_token(*why),
        Error::UnknownProvider { nearest, .. } => {
            return match nearest {
                Some(name) => format!("did you mean `{name}`? The first part of the path is a provider's name"),
                None => "the first part of the path is a provider's name; start tollgate with its --provider FILE".to_owned(),
            };
        }
        Error::NotAllowed { why, .. } => of_host(*why),
        Error::NotThisCaller { .. } => {
            "send its token as X-Tollgate-Token, or as name:token@ in the address of the proxy"
        }
        Error::OtherSite => {
            "call from a program, from a page of this machine, or through a proxy that says \
             X-Forwarded-For"
        }
        Error::Loop { .. } => {
            "point `upstream:` at the provider, not at tollgate or at a gateway that leads back to it"
        }
        Error::NoUpstream { tenants, .. } => return of_place(tenants.as_deref()),
        Error::Path(_) | Error::Host(_) | Error::Malformed(_) => {
            "mend the request and send it again"
        }
        Error::NoBody => "send the whole body, and faster",
    };
    fixed.to_owned()
}

fn not_in_cache(reason: Reason) -> &'static str {
    match reason {
        Reason::Degraded => {
            "little of the quota is left; `tollgate reset` ends degrade mode by hand"
        }
        Reason::CacheAsked => {
            "leave out `X-Tollgate-Cache: only` and `only-if-cached` to have the provider asked"
        }
        _other => "`tollgate resume` lets calls through again",
    }
}

fn of_token(why: NoToken) -> &'static str {
    match why {
        NoToken::Refused(_) => {
            "check api_key, or what stands under auth.login or auth.oauth2 in the provider's file, and reload; keys are never shown"
        }
        NoToken::Missing => {
            "check auth.login.token in the provider's file: the field of the answer that holds the token"
        }
        NoToken::Failed(_) | NoToken::Unanswered(_) => {
            "come back after retryIn; check auth.login.url or auth.oauth2.token_url if it stays so"
        }
    }
}

fn of_host(why: NotAllowed) -> &'static str {
    match why {
        NotAllowed::Unknown => {
            "add a provider file with this domain, or set `unknown_domain: allow`"
        }
        NotAllowed::Private => "name it as `upstream:` in a provider file if this is meant",
        NotAllowed::Elsewhere => {
            "this address serves one provider only; use the gateway's own address"
        }
    }
}

/// What a provider with no address lacks.
fn of_place(tenants: Option<&str>) -> String {
    let Some(host) = tenants.map(|tenants| tenants.trim_start_matches("*.")) else {
        return "add `domain:` or `upstream:` to the provider's file".to_owned();
    };
    format!(
        "write `upstream: https://YOURS.{host}` in the provider's file, or call /https://YOURS.{host}/path"
    )
}

fn of_reason(reason: Reason) -> &'static str {
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
        Reason::NoPart => "raise the limit, lower `nodes`, or let the nodes share one store",
        Reason::QueueFull => "raise queue.max or send fewer low-priority calls",
        Reason::NoRoom => {
            "raise the number of open files (`ulimit -n`, LimitNOFILE= of systemd), or lower `connections`"
        }
        Reason::Ending => "call again when it has started anew",
        Reason::StoreLost => {
            "the log of tollgate says why; on_store_loss in the provider's file says what happens meanwhile"
        }
        Reason::Degraded | Reason::CacheOnly | Reason::CacheAsked | Reason::Deadline => {
            "come back later"
        }
    }
}
