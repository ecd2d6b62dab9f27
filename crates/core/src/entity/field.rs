//! Entities named by a query parameter, a header or a field of the body.
//!
//! Promises: a field with two different values is rejected, and so is a form that servers read
//! differently (`a[]=`, `;` between parameters, keys that differ in case).
//!
//! Never: reads more than [`BODY_MAX`] bytes of a body.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::EntityError;
use super::path::decode;

/// The longest body that is searched for a field: 1 MiB holds a prompt of 200 000 tokens.
pub const BODY_MAX: usize = 1 << 20;

/// The value of a query parameter, trimmed and in lower case.
pub(super) fn in_query(query: &str, name: &str) -> Result<Option<String>, EntityError> {
    if query.contains('#') {
        return Err(EntityError::Query);
    }
    let wanted = folded_name(name.as_bytes());
    let strict = parameters(query, &['&'], &wanted)?;
    // Older servers also split at `;`. Both ways must give the same value.
    if query.contains(';') && parameters(query, &['&', ';'], &wanted)? != strict {
        return Err(EntityError::Query);
    }
    Ok(strict)
}

fn parameters(query: &str, between: &[char], wanted: &str) -> Result<Option<String>, EntityError> {
    let mut found: Option<String> = None;
    for pair in query.split(between) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = folded_name(&decode(name.as_bytes()));
        if let Some(rest) = name.strip_prefix(wanted)
            && rest.starts_with('[')
        {
            return Err(EntityError::Query);
        }
        if name != wanted {
            continue;
        }
        let spaced = value.replace('+', " ");
        let value = folded(&decode(spaced.as_bytes()))?;
        if found
            .replace(value.clone())
            .is_some_and(|earlier| earlier != value)
        {
            return Err(EntityError::Query);
        }
    }
    Ok(found)
}

/// The value of a header, trimmed and in lower case.
pub(super) fn in_headers(
    headers: &[(&str, &str)],
    name: &str,
) -> Result<Option<String>, EntityError> {
    let mut found: Option<String> = None;
    for (_, value) in headers
        .iter()
        .filter(|(header, _)| header.eq_ignore_ascii_case(name))
    {
        let value = folded(value.as_bytes())?;
        if found
            .replace(value.clone())
            .is_some_and(|earlier| earlier != value)
        {
            return Err(EntityError::Header);
        }
    }
    Ok(found)
}

/// The value of a field of a JSON body, trimmed and in lower case. An empty body names no entity.
pub(super) fn in_body(body: &[u8], name: &[String]) -> Result<Option<String>, EntityError> {
    if body.is_empty() {
        return Ok(None);
    }
    if body.len() > BODY_MAX {
        return Err(EntityError::Body);
    }
    let mut values = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(body);
    let search = Search {
        name,
        values: &mut values,
    };
    search
        .deserialize(&mut json)
        .map_err(|_| EntityError::Body)?;
    json.end().map_err(|_| EntityError::Body)?;
    let mut found: Option<String> = None;
    for value in values {
        let value = folded(value.as_bytes())?;
        if found
            .replace(value.clone())
            .is_some_and(|earlier| earlier != value)
        {
            return Err(EntityError::Body);
        }
    }
    Ok(found)
}

/// Names of parameters as the most lenient server compares them: PHP turns `.` and blanks into `_`.
fn folded_name(name: &[u8]) -> String {
    let lower = String::from_utf8_lossy(name).trim().to_ascii_lowercase();
    lower.replace(['.', ' '], "_")
}

fn folded(value: &[u8]) -> Result<String, EntityError> {
    let plain = |byte: &u8| byte.is_ascii() && !byte.is_ascii_control();
    if !value.iter().all(plain) {
        return Err(EntityError::NotAscii);
    }
    Ok(String::from_utf8_lossy(value).trim().to_ascii_lowercase())
}

/// Collects every value of a field, also if a key is repeated, because servers choose different
/// ones. Keys compare case-insensitively, as in Go.
struct Search<'a> {
    name: &'a [String],
    values: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.name.split_first() {
                Some((wanted, rest)) if key.eq_ignore_ascii_case(wanted) => {
                    map.next_value_seed(Search {
                        name: rest,
                        values: &mut *self.values,
                    })?;
                }
                Some(_) | None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        if self.name.is_empty() {
            self.values.push(value.to_owned());
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.visit_str(&value.to_string())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.visit_str(if value { "true" } else { "false" })
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
