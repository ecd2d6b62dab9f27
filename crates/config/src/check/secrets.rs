//! Keys and headers: resolved, made secret, never repeated.
//!
//! Promises: a key that cannot be found is an error that names its variable or file, and nothing of
//! its value; a key file that other users can read is a warning (H3).
//!
//! Never: lets a control character into a header.

use crate::field::{At, Fields};
use crate::origin::Origin;
use crate::problem::{Level, Problems};
use crate::raw::{Node, Value};
use crate::secret::{Environment, Lookup, SECRET_MAX, Secret, expand, lookup};

/// Headers that the gateway sets itself, or that would change where a message ends.
const RESERVED_HEADERS: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "proxy-connection",
];

/// `api_key` or `api_keys`.
pub(crate) fn keys(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Vec<Secret> {
    let (one, many) = (fields.get("api_key"), fields.get("api_keys"));
    if let (Some(at), Some(_)) = (&one, &many) {
        problems.push(at.error(
            "`api_key` and `api_keys` are two forms of one setting",
            "keep one of them",
        ));
    }
    let mut keys: Vec<Secret> = one
        .iter()
        .filter_map(|at| secret(at, environment, problems))
        .collect();
    if let Some(at) = many {
        let items = at.list().unwrap_or_else(|| vec![at.clone()]);
        keys.extend(
            items
                .iter()
                .filter_map(|item| secret(item, environment, problems)),
        );
    }
    keys
}

/// Headers to send where the caller sends none. Their values may be keys, so they are secrets.
pub(crate) fn headers(
    fields: &Fields<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Vec<(String, Secret)> {
    let Some(at) = fields.get("headers") else {
        return Vec::new();
    };
    let mut headers = Vec::new();
    for (name, place, value) in at.entries(problems) {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let lower = name.to_ascii_lowercase();
        if name.is_empty() || !name.bytes().all(known) || RESERVED_HEADERS.contains(&lower.as_str())
        {
            let mut problem = at.error("a header has a name that cannot be set here", "use letters, digits and `-`; the gateway sets Host, Content-Length and Connection itself");
            problem.place = place;
            problems.push(problem);
            continue;
        }
        if let Some(value) = secret(&value, environment, problems) {
            headers.push((lower, value));
        }
    }
    headers
}

/// A secret: a literal, `${ENV}`, or `file:/path`.
pub(crate) fn secret(
    at: &At<'_>,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<Secret> {
    let text = resolve(at, at.text(problems)?, environment, problems)?;
    if text.is_empty() {
        problems.push(at.error("is empty", "write a literal, `${VARIABLE}` or `file:/path`"));
        return None;
    }
    let plain = text.len() <= SECRET_MAX && !text.chars().any(char::is_control);
    if !plain {
        problems.push(at.error(
            "is longer than 16 KiB or has a control character",
            "a key is one line of text",
        ));
        return None;
    }
    Some(Secret::new(text))
}

/// Resolves a text: its variables, or the file that it names.
pub(super) fn resolve(
    at: &At<'_>,
    text: &str,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<String> {
    match lookup(text) {
        Lookup::Text(text) => expand(text, environment)
            .or_else(|name| not_set(at, &name, environment, problems).ok_or(()))
            .ok(),
        Lookup::File(path) => from_file(at, path, environment, problems),
    }
}

/// Reports a missing variable by name; the name is not secret. Returns what stands for its key, if it is
/// no problem.
pub(super) fn not_set(
    at: &At<'_>,
    name: &str,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<String> {
    if environment.missing_key.is_none() {
        let what = format!("the environment variable `{name}` is not set");
        problems.push(at.error(&what, "export it, or put it into the file of --env-file"));
    }
    environment.missing_key.map(str::to_owned)
}

fn from_file(
    at: &At<'_>,
    path: &str,
    environment: &Environment<'_>,
    problems: &mut Problems,
) -> Option<String> {
    // Like all paths in files, it is relative to the folder of the file that names it.
    let path = crate::load::gather::resolve_path(&at.node.place.file, path);
    match (environment.read_file)(&path) {
        Ok(file) => {
            if file.readable_by_others {
                let remedy = "run `chmod 600` on it";
                problems.push(at.problem(Level::Warning, "others can read this key file", remedy));
            }
            Some(file.text.trim_end_matches(['\r', '\n']).to_owned())
        }
        Err(_) if environment.missing_key.is_some() => environment.missing_key.map(str::to_owned),
        Err(why) => {
            let what = format!("the key file cannot be read ({why})");
            problems.push(at.error(&what, "check the path and who may read it"));
            None
        }
    }
}

/// Has a run-time change moved the provider, or its login, to another host? A key belongs to the
/// host that it was configured for, and a change that also brings a key could name any variable, so
/// only a file can bring both.
pub(crate) fn are_withheld(fields: &Fields<'_>) -> bool {
    let find = |path: &str| {
        let mut names = path.split('.');
        let first = fields.get(names.next()?)?.node;
        names.try_fold(first, |node, name| node.get(name))
    };
    let targets = [
        "upstream",
        "domain",
        "domains",
        "auth.login.url",
        "auth.oauth2.token_url",
    ];
    targets.into_iter().filter_map(find).any(is_partly_set)
}

/// Is any value below this node set at run time?
fn is_partly_set(node: &Node) -> bool {
    match (&node.value, node.entries()) {
        (Value::List(items), _) => items.iter().any(is_partly_set),
        (_, Some(entries)) => entries.iter().any(|entry| is_partly_set(&entry.node)),
        (_, None) => Origin::of(&node.place) == Origin::Set,
    }
}
