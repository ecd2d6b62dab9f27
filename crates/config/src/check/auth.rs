//! How a key is attached to a call.
//!
//! Promises: one auth method at a time; a checked login or OAuth 2 block is complete.
//!
//! Never: attaches anything. `send` does, and only for the provider's own hosts.

use std::net::IpAddr;

use tollgate_core::time::Span;

use super::table::{AUTH, LOGIN, OAUTH2};
use super::{endpoint, secrets};
use crate::field::{At, Fields};
use crate::problem::{Level, Problems};
use crate::provider::{Auth, AuthStyle, Login, OAuth2, Upstream};
use crate::raw::{Node, Value};
use crate::secret::{Environment, Secret, expand_with};
use crate::setting::open;

/// Fields that select the auth method.
pub(super) const STYLES: &[&str] = &["query", "header", "bearer", "basic", "oauth2", "login"];

/// A token that lasts a day is what providers with logins give; refreshing five minutes early
/// leaves room for a slow login and a wrong clock.
const LIFETIME: Span = Span::from_secs(86_400);
const REFRESH_BEFORE: Span = Span::from_secs(300);

pub(super) fn auth(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Auth {
    let mut auth = Auth {
        style: AuthStyle::None,
        replace: true,
        also: Vec::new(),
    };
    let Some(at) = fields.get("auth") else {
        return auth;
    };
    let Some(block) = open(&at, AUTH, problems) else {
        return auth;
    };
    let mut ways = STYLES.iter().filter(|name| block.get(name).is_some());
    if let (Some(_), Some(second)) = (ways.next(), ways.next()) {
        let at = block.get(second).unwrap_or_else(|| at.clone());
        problems.push(at.error(
            "a key is attached in one way only",
            "keep one of query, header, bearer, basic, oauth2, login",
        ));
    }
    auth.style = style(&block, environment, problems).unwrap_or_default();
    auth.replace = block.read("replace", problems).unwrap_or(true);
    if let Some(at) = block.get("also") {
        for (name, _, value) in at.entries(problems) {
            // Query parameters and form fields may have any name; a header may not.
            let is_header = matches!(
                auth.style,
                AuthStyle::Header { .. } | AuthStyle::Bearer | AuthStyle::Basic
            );
            if is_header && !endpoint::is_token(name) {
                problems.push(value.error(
                    "has a name that no header can have",
                    "write letters, digits and `-` only",
                ));
                continue;
            }
            if let Some(secret) = secrets::secret(&value, environment, problems) {
                auth.also.push((name.to_owned(), secret));
            }
        }
    }
    auth
}

fn style(
    block: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<AuthStyle> {
    if let Some(at) = block.get("query") {
        return endpoint::header_name(&at, problems).map(|name| AuthStyle::Query { name });
    }
    if let Some(at) = block.get("header") {
        let prefix = prefix(block, problems).unwrap_or_default();
        let name = endpoint::header_name(&at, problems)?;
        return Some(AuthStyle::Header { name, prefix });
    }
    if let Some(at) = block.get("prefix") {
        problems.push(at.problem(
            Level::Warning,
            "has no effect: it applies to the key of `header` only",
            "remove it, or write `header: Authorization` in place of `bearer`",
        ));
    }
    if block.read("bearer", problems) == Some(true) {
        return Some(AuthStyle::Bearer);
    }
    if block.read("basic", problems) == Some(true) {
        return Some(AuthStyle::Basic);
    }
    if let Some(at) = block.get("oauth2") {
        return oauth2(&at, environment, problems).map(AuthStyle::OAuth2);
    }
    let at = block.get("login")?;
    login(&at, environment, problems).map(AuthStyle::Login)
}

/// The text before the key in its header; like a header it must not contain a line break.
fn prefix(block: &Fields<'_>, problems: &mut Problems) -> Option<String> {
    let at = block.get("prefix")?;
    let text = at.text(problems)?.to_owned();
    if text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic())
    {
        return Some(text);
    }
    problems.push(at.error(
        "has a character that no header can carry",
        "write printable ASCII such as `Token `",
    ));
    None
}

fn oauth2(at: &At<'_>, environment: &Environment<'_>, problems: &mut Problems) -> Option<OAuth2> {
    let block = open(at, OAUTH2, problems)?;
    require(
        at,
        &block,
        &["token_url", "client_id", "client_secret"],
        problems,
    );
    let token_url = credential_url(&block, "token_url", problems);
    let mut secret = |name: &str| secrets::secret(&block.get(name)?, environment, problems);
    let (id, password, refresh) = (
        secret("client_id"),
        secret("client_secret"),
        secret("refresh_token"),
    );
    Some(OAuth2 {
        token_url: token_url?,
        client_id: id?,
        client_secret: password?,
        scope: block.read("scope", problems),
        refresh_token: refresh,
        client_auth: block.read("client_auth", problems).unwrap_or_default(),
    })
}

/// Where credentials are posted. Warns if they are sent without TLS to another machine.
fn credential_url(block: &Fields<'_>, name: &str, problems: &mut Problems) -> Option<Upstream> {
    let at = block.get(name)?;
    let url = endpoint::exact_url(&at, problems)?;
    let host = url.host.as_str();
    let ip: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let stays = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    if !url.tls && !stays {
        problems.push(at.problem(
            Level::Warning,
            "the credentials are sent without TLS",
            "write `https://`",
        ));
    }
    Some(url)
}

fn login(at: &At<'_>, environment: &Environment<'_>, problems: &mut Problems) -> Option<Login> {
    let block = open(at, LOGIN, problems)?;
    require(at, &block, &["url", "body", "token"], problems);
    let url = credential_url(&block, "url", problems);
    let body = block
        .get("body")
        .and_then(|at| body(&at, environment, problems));
    let token = block.read("token", problems);
    let lifetime = block.read("lifetime", problems).unwrap_or(LIFETIME);
    let refresh_before = block
        .read("refresh_before", problems)
        .unwrap_or(REFRESH_BEFORE);
    if refresh_before >= lifetime {
        problems.push(at.error(
            "`refresh_before` is not shorter than `lifetime`",
            "lower it",
        ));
    }
    Some(Login {
        url: url?,
        body: body?,
        token: token?,
        lifetime,
        refresh_before,
    })
}

fn require(at: &At<'_>, block: &Fields<'_>, names: &[&str], problems: &mut Problems) {
    for name in names.iter().filter(|name| block.get(name).is_none()) {
        let remedy = format!("add `{name}:`");
        problems.push(at.error(&format!("`{name}` is missing"), &remedy));
    }
}

/// The body to post: written as text, or as a block that becomes JSON. A variable is inserted as
/// one escaped value: whatever characters it has, it cannot add another field.
fn body(at: &At<'_>, environment: &Environment<'_>, problems: &mut Problems) -> Option<Secret> {
    let Some(text) = at.node.text() else {
        let mut json = String::new();
        write_json(at.node, at, environment, problems, &mut json)?;
        return Some(Secret::new(json));
    };
    let is_json = text.trim_start().starts_with(['{', '[']);
    let written = if is_json { json_escape } else { form_encode };
    expand_with(text, environment, &written)
        .or_else(|name| secrets::not_set(at, &name, environment, problems).ok_or(()))
        .ok()
        .map(Secret::new)
}

/// Every value as a JSON string, because a key of digits is still text.
fn write_json(
    node: &Node,
    at: &At<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
    json: &mut String,
) -> Option<()> {
    match &node.value {
        Value::Null => json.push_str("null"),
        Value::Text(text) => {
            quote(&secrets::resolve(at, text, environment, problems)?, json);
        }
        Value::List(items) => {
            json.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                write_json(item, at, environment, problems, json)?;
            }
            json.push(']');
        }
        Value::Map(entries) => {
            json.push('{');
            for (index, entry) in entries.iter().enumerate() {
                if index > 0 {
                    json.push(',');
                }
                quote(&entry.name, json);
                json.push(':');
                write_json(&entry.node, at, environment, problems, json)?;
            }
            json.push('}');
        }
    }
    Some(())
}

fn quote(text: &str, json: &mut String) {
    json.push('"');
    json.push_str(&json_escape(text));
    json.push('"');
}

/// A text with the escapes that a JSON string needs.
fn json_escape(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => json.extend(['\\', letter]),
            letter if letter.is_control() => {
                json.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => json.push(letter),
        }
    }
    json
}

/// A text with the escapes that a form needs.
fn form_encode(text: &str) -> String {
    let mut form = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            form.push(char::from(byte));
        } else {
            form.push_str(&format!("%{byte:02X}"));
        }
    }
    form
}
