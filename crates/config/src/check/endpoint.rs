//! Names, hosts, addresses and hours: where a provider is and when it may be called.
//!
//! Promises: a name is safe in a path, a metric label and an environment variable; a URL has only
//! the parts that a call needs.
//!
//! Never: resolves a host.

use std::net::SocketAddr;

use jiff::tz::TimeZone;
use tollgate_core::domain::Domain;

use super::RESERVED;
use super::table::OFF_PEAK;
use crate::field::{At, Fields};
use crate::origin::Origin;
use crate::overlay::first_words;
use crate::problem::Problems;
use crate::provider::{OffPeak, Upstream};
use crate::setting::{Setting, open, read_text};

/// The longest name: it is a metric label and a folder of URLs.
const NAME_MAX: usize = 64;

pub(crate) fn name(fields: &Fields<'_>, stem: &str, problems: &mut Problems) -> Option<String> {
    let written = fields.get("name");
    let at = written.clone().unwrap_or_else(|| fields.at.clone());
    let name = match &written {
        Some(at) => at.text(problems)?.trim().to_owned(),
        None => stem.to_owned(),
    };
    let known = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
    };
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if name.len() > NAME_MAX || !begins || !name.bytes().all(known) {
        let remedy = "write `name:` with lower-case letters, digits, `-` and `_`, 64 at most";
        let what = if written.is_some() {
            "is not a name"
        } else {
            "the file's name is not a valid provider name"
        };
        problems.push(at.error(what, remedy));
        return None;
    }
    if RESERVED.contains(&name.as_str()) {
        problems.push(at.error(
            &format!(
                "`{name}` is a name that the gateway uses itself (health, ready, metrics, v1, api)"
            ),
            "choose another with `name:`",
        ));
        return None;
    }
    if first_words().contains(&name) {
        problems.push(at.error(
            &format!("the name `{name}` is the first word of a setting, so TOLLGATE_<NAME>_<SETTING> could be read in two ways"),
            "choose another with `name:`",
        ));
        return None;
    }
    Some(name)
}

pub(crate) fn domains(fields: &Fields<'_>, problems: &mut Problems) -> Vec<Domain> {
    let mut domains: Vec<Domain> = Vec::new();
    for field in ["domain", "domains"] {
        let Some(at) = fields.get(field) else {
            continue;
        };
        for item in at.list().unwrap_or_else(|| vec![at.clone()]) {
            let Some(text) = item.text(problems) else {
                continue;
            };
            match Domain::parse(text.trim()) {
                Ok(domain) if domains.contains(&domain) => {
                    problems.push(item.error("this domain is listed twice", "remove one"));
                }
                Ok(domain) => domains.push(domain),
                Err(error) => problems.push(item.error_from(&error)),
            }
        }
    }
    domains
}

/// The domains that do not come from a preset.
pub(crate) fn own_domains(fields: &Fields<'_>) -> Vec<Domain> {
    let all = ["domain", "domains"].map(|name| fields.get(name));
    let items = all.into_iter().flatten();
    let items = items.flat_map(|at| at.list().unwrap_or_else(|| vec![at.clone()]));
    items
        .filter(|item| !matches!(Origin::of(&item.node.place), Origin::Preset(_)))
        .filter_map(|item| Domain::parse(item.node.text()?.trim()).ok())
        .collect()
}

pub(crate) fn listen(fields: &Fields<'_>, problems: &mut Problems) -> Option<SocketAddr> {
    fields.read("listen", problems)
}

pub(crate) fn upstream(
    fields: &Fields<'_>,
    name: &str,
    problems: &mut Problems,
) -> Option<Upstream> {
    let at = fields.get(name)?;
    url(&at, problems)
}

/// `https://host[:port][/path]`, the base of paths.
pub(crate) fn url(at: &At<'_>, problems: &mut Problems) -> Option<Upstream> {
    let mut upstream = exact_url(at, problems)?;
    upstream
        .base
        .truncate(upstream.base.trim_end_matches('/').len());
    Some(upstream)
}

/// `https://host[:port][/path]`, unchanged: for some servers a trailing slash matters.
pub(crate) fn exact_url(at: &At<'_>, problems: &mut Problems) -> Option<Upstream> {
    const REMEDY: &str = "write `https://host/path`, without a user name, `?` or `#`";
    let text = at.text(problems)?.trim();
    let split = text
        .split_once("://")
        .and_then(|(scheme, rest)| match scheme {
            "https" => Some((true, rest)),
            "http" => Some((false, rest)),
            _ => None,
        });
    let Some((tls, rest)) = split else {
        problems.push(at.error("is not an http or https address", REMEDY));
        return None;
    };
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    let upstream = Upstream::new(tls, authority, path)
        .map_err(|error| problems.push(at.error_from(&error)))
        .ok()?;
    let plain = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\'));
    if !plain {
        problems.push(at.error(
            "the path has a character that an address does not have",
            REMEDY,
        ));
        return None;
    }
    Some(upstream)
}

pub(crate) fn statuses(fields: &Fields<'_>, problems: &mut Problems) -> Vec<u16> {
    let Some(at) = fields.get("free_status") else {
        return Vec::new();
    };
    let mut statuses = Vec::new();
    for item in at.list().unwrap_or_else(|| vec![at.clone()]) {
        let read = |text: &str| {
            text.parse()
                .ok()
                .filter(|status: &u16| (100..600).contains(status))
        };
        statuses.extend(read_text(
            &item,
            problems,
            read,
            "is not a status",
            "write a number such as `304`",
        ));
    }
    statuses
}

/// The methods that calls may have. CONNECT is not one: there is no request to forward.
pub(crate) fn methods(fields: &Fields<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let at = fields.get("methods")?;
    let mut methods: Vec<String> = Vec::new();
    for item in at.list().unwrap_or_else(|| vec![at.clone()]) {
        let read = |text: &str| {
            let method = text.to_ascii_uppercase();
            (is_token(&method) && method != "CONNECT").then_some(method)
        };
        methods.extend(read_text(
            &item,
            problems,
            read,
            "is not a method that can be forwarded",
            "write a name such as `GET`; CONNECT cannot be allowed",
        ));
    }
    if methods.is_empty() {
        problems.push(at.error("no method is allowed", "write `[GET, HEAD]`, or remove it"));
    }
    Some(methods)
}

pub(crate) fn zone(at: &At<'_>, problems: &mut Problems) -> Option<TimeZone> {
    let read = |text: &str| match text {
        "UTC" | "utc" | "Z" => Some(TimeZone::UTC),
        name => TimeZone::get(name).ok(),
    };
    read_text(
        at,
        problems,
        read,
        "is not a time zone",
        "write `UTC` or a name such as `Europe/Berlin`",
    )
}

pub(crate) fn off_peak(fields: &Fields<'_>, problems: &mut Problems) -> Option<OffPeak> {
    let at = fields.get("off_peak")?;
    if at.node.text() == Some("off") {
        return None;
    }
    let block = open(&at, OFF_PEAK, problems)?;
    let zone = match block.get("timezone") {
        Some(at) => zone(&at, problems),
        None => Some(TimeZone::UTC),
    };
    let applies_to = super::or_default(&block, "applies_to", problems);
    let Some(hours) = block.get("hours") else {
        problems.push(at.error("`hours` is missing", "write `hours: \"01:00-06:00\"`"));
        return None;
    };
    let (from_minute, to_minute) = read_text(
        &hours,
        problems,
        |text| {
            let (from, to) = text.split_once('-')?;
            let (from, to) = (minute(from.trim())?, minute(to.trim())?);
            (from != to).then_some((from, to))
        },
        "is not a part of the day",
        "write `\"01:00-06:00\"`, from and to",
    )?;
    Some(OffPeak {
        from_minute,
        to_minute,
        zone: zone?,
        applies_to,
    })
}

/// The minute of the day of `23:59`.
fn minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let two = |part: &str| {
        let digits = part.len() <= 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u16>().ok().filter(|_| digits)
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

/// Whether a header may have this name (RFC 9110, 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(known)
}

/// The name of a header or parameter, unchanged.
pub(crate) fn header_name(at: &At<'_>, problems: &mut Problems) -> Option<String> {
    let text = String::read(at, problems)?;
    if is_token(&text) {
        return Some(text);
    }
    problems.push(at.error(
        "is not the name of a header or parameter",
        "write letters, digits and `-` only",
    ));
    None
}

#[cfg(test)]
mod tests {
    use tollgate_core::domain::Host;

    use crate::check::ProviderFile;
    use crate::secret::Environment;

    /// H4: a domain of a preset is a public host, whatever address its name resolves to.
    #[test]
    fn own_domains_are_only_those_of_the_file_itself() {
        let names = |text: &str, host: &str| {
            let draft = ProviderFile::read("x.yaml", text).unwrap();
            let provider = draft.check(&Environment::empty()).provider.unwrap();
            provider.names_host(&Host::parse(host).unwrap())
        };
        let own = "domains: [api.internal, b.internal]\nlimits: [1/1s]\n";
        assert!(names(own, "b.internal") && names(own, "eu.api.internal"));
        assert!(!names(own, "internal"));
        let preset = "preset: tmdb\napi_key: k\n";
        assert!(!names(preset, "api.themoviedb.org"));
        let both = "preset: tmdb\napi_key: k\ndomain: tmdb.internal\n";
        assert!(names(both, "tmdb.internal") && !names(both, "api.themoviedb.org"));
    }
}
