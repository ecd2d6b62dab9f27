//! A login: posts credentials and receives a token.
//!
//! It is a call like any other, with high priority, under the limits of its provider: connect,
//! permit, send, learn. It skips only the credential stage, which waits for it.
//!
//! Promises: sends credentials only to the address that the provider file names. OAuth 2 follows
//! RFC 6749: client credentials, or a refresh token whose successors are remembered.
//!
//! Never: follows a redirect, logs in again by itself, or repeats the login's response in an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate_config::Secret;
use tollgate_config::provider::{ClientAuth, OAuth2, Upstream};
use tollgate_core::health::{Class, Fault};
use tollgate_core::renewal::RenewalError;
use tollgate_core::time::Span;

use super::learn;
use super::response::{AttemptError, UpstreamResponse};
use super::retry::{FREE_RETRIES_MAX, RetryState};
use super::route::Route;
use super::{connect, permit, send};
use crate::body::ReplyBody;
use crate::credentials::{
    Account, Credential, CredentialSource, LoginError, LoginMemory, LoginMethod, NewToken,
    TokenRequest, login_error,
};
use crate::error::NoToken;
use crate::providers::ActiveProvider;
use crate::{Error, timer};

/// The largest response of a login. Those seen have some 4 KiB.
const RESPONSE_MAX: usize = 64 * 1024;

/// The longest token that is accepted; the longest seen (JWTs with claims) have some 4 KiB.
const TOKEN_MAX: usize = 16 * 1024;

/// The lifetime of an OAuth 2 token whose response does not state it: an hour is common, and the
/// first 401 reveals a shorter one.
const DEFAULT_LIFETIME: Span = Span::from_secs(3_600);

/// How long before its end an OAuth 2 token is renewed, as for logins.
const RENEW_BEFORE: Span = Span::from_secs(300);

/// A complete response.
struct LoginResponse {
    status: u16,
    class: Class,
    retry_after: Option<Span>,
    json: Option<Value>,
}

/// Logs in once.
pub(super) async fn login(
    provider: &Arc<ActiveProvider>,
    account: &Account,
    memory: LoginMemory,
) -> Result<NewToken, LoginError> {
    match &account.method {
        LoginMethod::Login(login) => {
            let post = account.login_request(login);
            let response = send_login(provider, account, &login.url, post).await?;
            let fields = response.into_fields(provider)?;
            let token = login.token.split('.').try_fold(&fields, child);
            Ok(NewToken {
                token: token
                    .and_then(parse_token)
                    .ok_or_else(|| token_missing(provider))?,
                lifetime: login.lifetime,
                renew_before: login.refresh_before,
                memory,
            })
        }
        LoginMethod::OAuth2(oauth2) => self::oauth2(provider, account, oauth2, memory).await,
    }
}

async fn oauth2(
    provider: &Arc<ActiveProvider>,
    account: &Account,
    oauth2: &OAuth2,
    mut memory: LoginMemory,
) -> Result<NewToken, LoginError> {
    let known = match oauth2.client_auth {
        ClientAuth::Auto => memory.in_form,
        ClientAuth::Basic => Some(false),
        ClientAuth::Body => Some(true),
    };
    let refresh = memory.refresh.as_ref().or(oauth2.refresh_token.as_ref());
    let post = account.oauth2_request(oauth2, refresh, known.unwrap_or(false));
    let mut response = self::send_login(provider, account, &oauth2.token_url, post).await?;
    let was_refused = known.is_none() && matches!(response.status, 400 | 401 | 403);
    if was_refused {
        let post = account.oauth2_request(oauth2, refresh, true);
        response = self::send_login(provider, account, &oauth2.token_url, post).await?;
    }
    let fields = response.into_fields(provider)?;
    memory.in_form = known.or(Some(was_refused));
    let token = fields.get("access_token").and_then(parse_token);
    memory.refresh = fields
        .get("refresh_token")
        .and_then(parse_token)
        .or(memory.refresh);
    Ok(NewToken {
        token: token.ok_or_else(|| token_missing(provider))?,
        lifetime: fields
            .get("expires_in")
            .and_then(seconds)
            .unwrap_or(DEFAULT_LIFETIME),
        renew_before: RENEW_BEFORE,
        memory,
    })
}

/// Posts credentials and reads the complete response.
async fn send_login(
    provider: &Arc<ActiveProvider>,
    account: &Account,
    to: &Upstream,
    post: TokenRequest,
) -> Result<LoginResponse, LoginError> {
    let headers = post
        .headers()
        .ok_or_else(|| misconfigured(provider, account))?;
    let mut route = Route::post(provider.clone(), to, headers, Bytes::from(post.body));
    route.subject.id = next_login_id();
    let credential = Credential {
        source: CredentialSource::Client,
        fingerprint: Some(account.fingerprint.clone()),
    };
    let mut retries = RetryState::default();
    for _ in 0..FREE_RETRIES_MAX {
        match attempt(&mut route, &credential, &mut retries).await {
            Ok(response) => return read_response(provider, response).await,
            Err(AttemptError::Again | AttemptError::OtherKey) => {}
            Err(AttemptError::Fault { fault, .. }) => {
                return Err(LoginError::new(
                    &provider.name,
                    NoToken::NoResponse(fault),
                    None,
                ));
            }
            // The caller had no part in this request.
            Err(AttemptError::Stop(Error::Malformed(_))) => {
                return Err(misconfigured(provider, account));
            }
            Err(AttemptError::Stop(error)) => {
                let retry_after = match &error {
                    Error::NoPermit { retry_in, .. } | Error::NotInCache { retry_in, .. } => {
                        *retry_in
                    }
                    _other => None,
                };
                let trouble = RenewalError::Transient { retry_after };
                return Err(LoginError { error, trouble });
            }
        }
    }
    Err(LoginError::new(
        &provider.name,
        NoToken::NoResponse(Fault::Reset),
        None,
    ))
}

/// The id of a login in logs and events: it belongs to no caller's call.
fn next_login_id() -> Arc<str> {
    static LOGINS: AtomicU64 = AtomicU64::new(1);
    format!("login-{}", LOGINS.fetch_add(1, Ordering::Relaxed)).into()
}

/// The provider file describes a login that cannot be sent: only another file fixes it.
fn misconfigured(provider: &ActiveProvider, account: &Account) -> LoginError {
    LoginError {
        error: login_error(&provider.name, &account.method),
        trouble: RenewalError::Permanent,
    }
}

/// The stages of an attempt, without `credential`, which waits for this login.
pub(super) async fn attempt(
    route: &mut Route,
    credential: &Credential,
    retries: &mut RetryState,
) -> Result<UpstreamResponse, AttemptError> {
    let policy = route.subject.provider.policy();
    let expected = connect::connect(route, &policy, retries.has_failed()).await?;
    let granted = permit::permit(
        &route.subject,
        credential.fingerprint(),
        &mut retries.permits,
    )
    .await?;
    let sent = send::send(route, &policy, credential, granted, expected, retries).await?;
    Ok(learn::learn(&route.subject, &policy, credential.fingerprint(), sent).await)
}

async fn read_response(
    provider: &ActiveProvider,
    response: UpstreamResponse,
) -> Result<LoginResponse, LoginError> {
    let (status, class, retry_after) = (
        response.head.status.as_u16(),
        response.class,
        response.retry_after,
    );
    let most = provider.policy().provider.timeouts.first_byte;
    let whole = timer::within(Some(most), read_body(response.body)).await;
    let fault = match whole {
        Ok(Some(body)) => {
            return Ok(LoginResponse {
                status,
                class,
                retry_after,
                json: serde_json::from_slice(&body).ok(),
            });
        }
        Ok(None) => Fault::Reset,
        Err(_late) => Fault::Timeout,
    };
    Err(LoginError::new(
        &provider.name,
        NoToken::NoResponse(fault),
        None,
    ))
}

/// Reads a body up to the bound; a longer one is cut, and then is not valid JSON.
async fn read_body(mut body: ReplyBody) -> Option<BytesMut> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.ok()?.data_ref() {
            bytes.extend_from_slice(data);
        }
        if bytes.len() > RESPONSE_MAX {
            break;
        }
    }
    Some(bytes)
}

impl LoginResponse {
    /// The fields of a successful login.
    #[expect(
        clippy::result_large_err,
        reason = "an error is as large as that of a call, and a login is rare"
    )]
    fn into_fields(self, provider: &ActiveProvider) -> Result<Value, LoginError> {
        let LoginResponse {
            status,
            class,
            retry_after,
            json,
        } = self;
        if (200..300).contains(&status) {
            return json.ok_or_else(|| token_missing(provider));
        }
        // Too early, too many, too slow: the credentials may still be right.
        let may_pass = class.is_failure() || matches!(status, 408 | 425 | 429);
        let why = if may_pass {
            NoToken::Failed(status)
        } else {
            NoToken::Rejected(status)
        };
        Err(LoginError::new(&provider.name, why, retry_after))
    }
}

fn token_missing(provider: &ActiveProvider) -> LoginError {
    LoginError::new(&provider.name, NoToken::Missing, None)
}

/// A field of an object, or an element of a list by its number.
fn child<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    }
}

/// A token that fits into a header.
fn parse_token(value: &Value) -> Option<Secret> {
    let text = value.as_str()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_token = is_plain && !text.is_empty() && text.len() <= TOKEN_MAX;
    is_token.then(|| Secret::new(text.to_owned()))
}

/// `3600` or `"3600"`; some servers write a fraction.
fn seconds(value: &Value) -> Option<Span> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let whole = text.split('.').next()?;
    whole.parse().ok().map(Span::from_secs)
}
