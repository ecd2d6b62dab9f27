//! A login: credentials are posted, a token comes back.
//!
//! It is a call like any other, most urgent, under the limits of its provider: permit, connect,
//! send, learn. Only the credential stage is left out, because this is what it waits for.
//!
//! Promises: credentials go to the address that the file names and nowhere else. OAuth 2 as in
//! RFC 6749: client credentials, or a refresh token whose successors are remembered.
//!
//! Never: follows a redirect, logs in again by itself, or repeats what a login answered in an error.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate_config::Secret;
use tollgate_config::provider::{ClientAuth, OAuth2, Upstream};
use tollgate_core::health::{Class, Fault};
use tollgate_core::renewal::Trouble;
use tollgate_core::time::Span;

use super::account::{Account, Post, Way};
use super::credential::{Credential, Whose};
use super::learn::{self, Answered};
use super::retry::{AGAIN_MAX, Ended, Tries};
use super::route::Route;
use super::{admit, connect, send};
use crate::body::ReplyBody;
use crate::error::NoToken;
use crate::shop::Live;
use crate::{Error, timer};

/// The largest answer of a login. Those seen have some 4 KiB.
const ANSWER_MAX: usize = 64 * 1024;

/// The longest token that is believed; the longest seen (JWTs with claims) have some 4 KiB.
const TOKEN_MAX: usize = 16 * 1024;

/// The life of a token of OAuth 2 whose answer does not say it: an hour is what most have, and a
/// shorter one is found out by its first 401.
const LIFE: Span = Span::from_secs(3_600);

/// How long before its end a token of OAuth 2 is renewed, as for logins.
const RENEW_BEFORE: Span = Span::from_secs(300);

/// What one login teaches the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// The refresh token that came with the last answer, in place of the file's.
    refresh: Option<Secret>,
    /// How id and secret were accepted: `true` = in the form.
    in_form: Option<bool>,
}

/// A new token.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) token: Secret,
    pub(crate) life: Span,
    pub(crate) renew_before: Span,
    pub(crate) memory: Memory,
}

/// No new token.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) trouble: Trouble,
}

/// A whole answer.
struct Answer {
    status: u16,
    class: Class,
    retry_after: Option<Span>,
    json: Option<Value>,
}

impl Failed {
    pub(crate) fn new(live: &Live, why: NoToken, retry_after: Option<Span>) -> Failed {
        Failed {
            error: Error::NoCredential {
                provider: live.name.clone(),
                why,
                retry_in: retry_after,
            },
            trouble: if why.is_lasting() {
                Trouble::Lasting
            } else {
                Trouble::Passing { retry_after }
            },
        }
    }
}

/// Logs in once.
pub(super) async fn login(
    live: &Arc<Live>,
    account: &Account,
    memory: Memory,
) -> Result<Fetched, Failed> {
    match &account.way {
        Way::Login(login) => {
            let post = account.login(login);
            let answer = answer(live, account, &login.url, post).await?;
            let fields = answer.granted(live)?;
            let token = login.token.split('.').try_fold(&fields, deeper);
            Ok(Fetched {
                token: token.and_then(token_of).ok_or_else(|| missing(live))?,
                life: login.lifetime,
                renew_before: login.refresh_before,
                memory,
            })
        }
        Way::OAuth2(oauth2) => self::oauth2(live, account, oauth2, memory).await,
    }
}

async fn oauth2(
    live: &Arc<Live>,
    account: &Account,
    oauth2: &OAuth2,
    mut memory: Memory,
) -> Result<Fetched, Failed> {
    let known = match oauth2.client_auth {
        ClientAuth::Auto => memory.in_form,
        ClientAuth::Basic => Some(false),
        ClientAuth::Body => Some(true),
    };
    let refresh = memory.refresh.as_ref().or(oauth2.refresh_token.as_ref());
    let post = account.oauth2(oauth2, refresh, known.unwrap_or(false));
    let mut answer = self::answer(live, account, &oauth2.token_url, post).await?;
    let was_refused = known.is_none() && matches!(answer.status, 400 | 401 | 403);
    if was_refused {
        let post = account.oauth2(oauth2, refresh, true);
        answer = self::answer(live, account, &oauth2.token_url, post).await?;
    }
    let fields = answer.granted(live)?;
    memory.in_form = known.or(Some(was_refused));
    let token = fields.get("access_token").and_then(token_of);
    memory.refresh = fields
        .get("refresh_token")
        .and_then(token_of)
        .or(memory.refresh);
    Ok(Fetched {
        token: token.ok_or_else(|| missing(live))?,
        life: fields.get("expires_in").and_then(seconds).unwrap_or(LIFE),
        renew_before: RENEW_BEFORE,
        memory,
    })
}

/// Posts credentials and reads the whole answer.
async fn answer(
    live: &Arc<Live>,
    account: &Account,
    to: &Upstream,
    post: Post,
) -> Result<Answer, Failed> {
    let headers = post
        .headers()
        .ok_or_else(|| Failed::new(live, NoToken::Missing, None))?;
    let mut route = Route::post(live.clone(), to, headers, Bytes::from(post.body));
    let credential = Credential {
        whose: Whose::Clients,
        mark: Some(account.mark.clone()),
    };
    let mut tries = Tries::default();
    for _ in 0..AGAIN_MAX {
        match attempt(&mut route, &credential, &mut tries).await {
            Ok(answered) => return read(live, answered).await,
            Err(Ended::Again | Ended::OtherKey) => {}
            Err(Ended::Fault { fault, .. }) => {
                return Err(Failed::new(live, NoToken::Unanswered(fault), None));
            }
            Err(Ended::Refused(error)) => {
                let retry_after = match &error {
                    Error::NoPermit { retry_in, .. } | Error::NotInCache { retry_in, .. } => {
                        *retry_in
                    }
                    _other => None,
                };
                let trouble = Trouble::Passing { retry_after };
                return Err(Failed { error, trouble });
            }
        }
    }
    Err(Failed::new(live, NoToken::Unanswered(Fault::Reset), None))
}

/// The stages of an attempt, without the one that waits for it.
async fn attempt(
    route: &mut Route,
    credential: &Credential,
    tries: &mut Tries,
) -> Result<Answered, Ended> {
    let plan = route.live.plan();
    let expected = connect::connect(route, &plan).await?;
    let granted = admit::admit(route, credential, tries).await?;
    let sent = send::send(route, &plan, credential, granted, expected, tries).await?;
    Ok(learn::learn(route, &plan, credential, sent).await)
}

async fn read(live: &Live, answered: Answered) -> Result<Answer, Failed> {
    let (status, class, retry_after) = (
        answered.head.status.as_u16(),
        answered.class,
        answered.retry_after,
    );
    let most = live.plan().provider.timeouts.first_byte;
    let whole = timer::within(Some(most), whole(answered.body)).await;
    let fault = match whole {
        Ok(Some(body)) => {
            return Ok(Answer {
                status,
                class,
                retry_after,
                json: serde_json::from_slice(&body).ok(),
            });
        }
        Ok(None) => Fault::Reset,
        Err(_late) => Fault::Timeout,
    };
    Err(Failed::new(live, NoToken::Unanswered(fault), None))
}

/// A body up to the bound; what is longer is cut, and is no JSON then.
async fn whole(mut body: ReplyBody) -> Option<BytesMut> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.ok()?.data_ref() {
            bytes.extend_from_slice(data);
        }
        if bytes.len() > ANSWER_MAX {
            break;
        }
    }
    Some(bytes)
}

impl Answer {
    /// The fields of a login that went well.
    fn granted(self, live: &Live) -> Result<Value, Failed> {
        let Answer {
            status,
            class,
            retry_after,
            json,
        } = self;
        if (200..300).contains(&status) {
            return json.ok_or_else(|| missing(live));
        }
        // Too early, too many, too slow: the credentials may still be right.
        let may_pass = class.is_failure() || matches!(status, 408 | 425 | 429);
        let why = if may_pass {
            NoToken::Failed(status)
        } else {
            NoToken::Refused(status)
        };
        Err(Failed::new(live, why, retry_after))
    }
}

fn missing(live: &Live) -> Failed {
    Failed::new(live, NoToken::Missing, None)
}

/// A field of an object, or an element of a list by its number.
fn deeper<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        other => other.get(name),
    }
}

/// A token that a header can carry.
fn token_of(value: &Value) -> Option<Secret> {
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
