//! Hints: what a caller can do about a rejection.
//!
//! Promises: every rejection has one, and it names an existing setting, header or command.
//!
//! Never: repeats the message.

use tollgate::Error;
use tollgate::error::{CONNECTIONS, NoToken, NotAllowed, Reason};
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
                "raise queue.max, or send fewer calls at once; `tollgate status {provider}` shows how many of each priority wait"
            );
        }
        Error::NoPermit { reason, .. } => for_reason(*reason),
        Error::Guarded {
            is_store_lost: true,
            ..
        } => "the log of tollgate says why; on_store_loss of the guard sets what happens meanwhile",
        Error::Guarded {
            retry_in: Some(_), ..
        } => "retry after retryIn milliseconds, and send fewer requests",
        Error::Guarded { retry_in: None, .. } => {
            "the request costs more than the guard's burst; split it or raise `burst`"
        }
        Error::ProviderUnavailable { .. } => "retry after resetIn milliseconds",
        Error::NotInCache { reason, .. } => for_cache_miss(*reason),
        Error::DeadlineExceeded { provider, .. } => return for_lateness(error, provider),
        Error::NoResponse {
            fault: Fault::Timeout,
            ..
        } => "raise timeout.first_byte in the provider's file if the provider is that slow",
        Error::NoResponse {
            fault: Fault::Dns, ..
        } => "check the domain or upstream in the provider's file",
        Error::NoResponse {
            fault: Fault::Connect,
            ..
        } => {
            "the provider may be down, or its TLS certificate may be invalid; the log of tollgate says which"
        }
        Error::NoResponse { .. } => "the provider may be down; try again later",
        Error::Moved { .. } => "send the call again: it goes to the new upstream",
        Error::NoCredential { why, .. } => for_token(*why),
        Error::Misconfigured { setting, .. } => {
            return format!(
                "the caller cannot fix this: change `{setting}` in the provider's file, or the variable or file that it names, then reload"
            );
        }
        Error::UnknownProvider { name, nearest } => return for_name(name, nearest.as_deref()),
        Error::NotAllowed { why, .. } => for_host(*why),
        Error::WrongCallerToken { .. } => {
            "send the caller's token as X-Tollgate-Token, or as name:token@ in the proxy URL"
        }
        Error::CrossSite => {
            "call 127.0.0.1 from a program or from a page on this machine, or through a proxy that \
             sends X-Forwarded-For"
        }
        Error::Loop { .. } => {
            "set `upstream:` to the provider, not to tollgate or to a gateway that forwards to it"
        }
        Error::NoUpstream { tenants, .. } => return for_missing_upstream(tenants.as_deref()),
        Error::MethodNotAllowed { provider: None, .. } => {
            "send `http://` URLs to this proxy, or call /https://host/path"
        }
        Error::MethodNotAllowed { .. } => {
            "use a method of the header Allow, or add this one to `methods` in the provider's file"
        }
        Error::Path(_) | Error::Host(_) | Error::Malformed(_) | Error::NotBuilt(_) => {
            "fix the request and send it again"
        }
        Error::IncompleteBody => "send the whole body",
        Error::SlowBody => {
            "send the body faster, give the call more time, or lower `upload.min_rate` in the provider's file"
        }
        Error::SpoolFailed => {
            "free space in the folder for temporary files (TMPDIR), or lower `upload.spool`"
        }
    };
    fixed.to_owned()
}

/// How to address a provider.
fn for_name(name: &str, nearest: Option<&str>) -> String {
    match (name, nearest) {
        ("", _) => "call /NAME/path, such as /tmdb/3/movie/550, or an absolute URL as \
                    /https://api.example.org/path; `tollgate provider list` shows the names"
            .to_owned(),
        ("v1", _) => "the decision service is /-/v1/… on this address, for callers with a token, and /v1/… on the \
                      admin address"
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
        Reason::Degraded => "little of the quota remains; `tollgate reset` ends degrade mode",
        Reason::CacheRequested => {
            "leave out `X-Tollgate-Cache: only` and `only-if-cached` to call the provider"
        }
        _other => "`tollgate resume` lets calls through again",
    }
}

/// What to do about what held a call until its time was over.
fn for_lateness(error: &Error, provider: &str) -> String {
    match (error.reason(), error.limit()) {
        (Some(Reason::Paused), _) => {
            format!("`tollgate resume {provider}` lets calls through again")
        }
        (Some(Reason::Concurrency), Some(CONNECTIONS)) => {
            "raise `connections` in the provider's file, or send a longer X-Tollgate-Timeout"
                .to_owned()
        }
        _other => "raise X-Tollgate-Timeout, or queue.timeout in the provider's file".to_owned(),
    }
}

fn for_token(why: NoToken) -> &'static str {
    match why {
        NoToken::Rejected(_) => {
            "check api_key, auth.login or auth.oauth2 in the provider's file, then reload"
        }
        NoToken::Missing => {
            "check auth.login.token in the provider's file: it names the response field with the token"
        }
        NoToken::Failed(_) | NoToken::NoResponse(_) => {
            "retry after retryIn milliseconds; if it fails again, check auth.login.url or auth.oauth2.token_url"
        }
    }
}

fn for_host(why: NotAllowed) -> &'static str {
    match why {
        NotAllowed::Unknown => {
            "add a provider file with this domain, or set `unknown_domain: allow`"
        }
        NotAllowed::Private => {
            "if you mean this private host, add a provider file with it as `domain:`; `upstream:` sets its port"
        }
        NotAllowed::OtherProvider => {
            "this address serves one provider only; use the gateway's main address"
        }
    }
}

/// What to configure for a provider without an upstream.
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
        Reason::Spread => {
            "retry after retryIn milliseconds, or send a higher X-Tollgate-Priority if this caller may"
        }
        Reason::Limit | Reason::Ahead => {
            "retry after retryIn milliseconds, or send a longer X-Tollgate-Timeout to wait in the queue"
        }
        Reason::Cooldown => {
            "the provider asked for a pause, and after it calls go one by one until it accepts them again; retry after retryIn milliseconds"
        }
        Reason::Concurrency => {
            "the maximum number of concurrent calls is running; send a longer X-Tollgate-Timeout to wait for a slot"
        }
        Reason::OffPeak => {
            "calls of this priority wait for the off-peak hours (`off_peak` in the provider's file); retry after retryIn milliseconds, or send a higher X-Tollgate-Priority if this caller may"
        }
        Reason::TooCostly => {
            "the call costs more than the whole limit; split it or raise the limit"
        }
        Reason::NoShare => "raise the limit, lower `nodes`, or let all nodes share one store",
        Reason::QueueFull => "raise queue.max, or send fewer calls at once",
        Reason::PermitsOpen => "report or release each permit when its call has ended",
        Reason::NoDescriptors => {
            "raise the open-file limit (`ulimit -n`, LimitNOFILE= of systemd), or lower `connections`"
        }
        Reason::ShuttingDown => "try again after tollgate has restarted",
        Reason::StoreLost => {
            "the log of tollgate says why; on_store_loss in the provider's file sets what happens meanwhile"
        }
        Reason::Degraded
        | Reason::CacheOnly
        | Reason::CacheRequested
        | Reason::Sleep
        | Reason::Paused
        | Reason::Deadline => "try again later",
    }
}
