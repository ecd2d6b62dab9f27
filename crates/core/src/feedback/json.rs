//! Bodies: the few JSON fields that a dialect names, and nothing else.
//!
//! Promises: memory and time are bounded by the body's size, whatever is in it. Fields that the
//! dialect does not name are skipped and not stored, so megabytes of data around a `rate_limit`
//! object cost a scan and not a tree.
//!
//! Never: stores a body, or reads one larger than [`BODY_MAX`].

use super::number::Decimal;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// The largest body read. Limited responses are below 64 KiB; the exception is data with a quota
/// beside it (SportMonks pages of 50 fixtures with includes are 200-900 KiB, nested includes make
/// them a few times larger). The reader must buffer a body to its end; above this bound that costs
/// more than the quota is worth, and only the headers count.
pub const BODY_MAX: usize = 4 * 1024 * 1024;

/// How much of a body is searched for free text: limited responses are short pages.
pub const TEXT_MAX: usize = 4 * 1024;

/// The most elements stored of one array: the violations, errors or details of one response.
const ELEMENTS_MAX: usize = 32;

/// The most values stored of one document: thirty times what the largest limited response has.
const VALUES_MAX: usize = 4_096;

/// The part of a JSON document that a dialect asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    /// `null`, and every value that was not asked for.
    Nothing,
    Bool(bool),
    /// Absent if negative or too large to be a count or a time.
    Number(Option<Decimal>),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads `body` and stores only object members whose name is in `wanted` (sorted).
    pub(super) fn read(body: &[u8], wanted: &[String]) -> Option<Json> {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let first = body.iter().find(|byte| !byte.is_ascii_whitespace())?;
        if body.len() > BODY_MAX || !matches!(first, b'{' | b'[') {
            return None;
        }
        let mut source = serde_json::Deserializer::from_slice(body);
        let room = Cell::new(VALUES_MAX);
        let json = Pruned {
            wanted,
            room: &room,
        }
        .deserialize(&mut source)
        .ok()?;
        source.end().ok().map(|()| json)
    }

    /// Every value at `path`: names joined by dots, `[]` after a name (or alone, for the whole
    /// document) for each element of an array. The empty path is the value itself.
    pub(super) fn at<'j>(&'j self, path: &str) -> Vec<&'j Json> {
        let mut found = vec![self];
        for step in path.split('.').filter(|step| !step.is_empty()) {
            let (name, each) = match step.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (step, false),
            };
            if !name.is_empty() {
                found = found
                    .into_iter()
                    .filter_map(|json| json.member(name))
                    .collect();
            }
            if each {
                found = found
                    .into_iter()
                    .flat_map(Json::elements)
                    .take(ELEMENTS_MAX)
                    .collect();
            }
        }
        found
    }

    fn member(&self, name: &str) -> Option<&Json> {
        match self {
            // The last of two members with one name, as in every common parser.
            Json::Object(members) => members
                .iter()
                .rev()
                .find(|member| member.0 == name)
                .map(|member| &member.1),
            Json::Nothing | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_) => None,
        }
    }

    fn elements(&self) -> &[Json] {
        match self {
            Json::List(elements) => elements,
            Json::Nothing | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Object(_) => {
                &[]
            }
        }
    }

    /// The number, written as a JSON number or as a string.
    pub(super) fn number(&self) -> Option<Decimal> {
        match self {
            Json::Number(number) => *number,
            Json::Text(text) => Decimal::parse(text.trim()),
            Json::Nothing | Json::Bool(_) | Json::List(_) | Json::Object(_) => None,
        }
    }

    /// The text; numbers and booleans as written, because a code can be any of them.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Json::Text(text) => Some(text.clone()),
            Json::Bool(truth) => Some(truth.to_string()),
            Json::Number(number) => (*number)
                .filter(|number| !number.is_fractional())
                .map(|number| number.whole().to_string()),
            Json::Nothing | Json::List(_) | Json::Object(_) => None,
        }
    }
}

/// The names that the steps of `path` go through.
pub(super) fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('.')
        .map(|step| step.strip_suffix("[]").unwrap_or(step))
        .filter(|s| !s.is_empty())
}

/// Reads a value and skips every member that was not asked for.
#[derive(Clone, Copy)]
struct Pruned<'w> {
    wanted: &'w [String],
    room: &'w Cell<usize>,
}

impl Pruned<'_> {
    /// Reserves room for one more value; without room the remaining values are skipped.
    fn has_room(self) -> bool {
        let room = self.room.get();
        self.room.set(room.saturating_sub(1));
        room > 0
    }
}

impl<'de> DeserializeSeed<'de> for Pruned<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Json, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pruned<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Nothing)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Json, E> {
        Ok(Json::Bool(truth))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(Decimal::from_json(&number.into())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        // Serde calls this for negative numbers only: never a count or a time, but maybe a code.
        Ok(Json::Text(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        let number = serde_json::Number::from_f64(number);
        Ok(Json::Number(
            number.and_then(|number| Decimal::from_json(&number)),
        ))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut elements = Vec::new();
        while elements.len() < ELEMENTS_MAX && self.has_room() {
            match access.next_element_seed(self)? {
                Some(element) => elements.push(element),
                None => return Ok(Json::List(elements)),
            }
        }
        while access.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Json::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some(name) = access.next_key::<String>()? {
            if self.wanted.binary_search(&name).is_err() || !self.has_room() {
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = access.next_value_seed(self)?;
            // A repeated name replaces the earlier value, so repeating cannot fill memory.
            members.retain(|member| member.0 != name);
            members.push((name, value));
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, wanted: &[&str]) -> Option<Json> {
        let mut wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        wanted.sort();
        Json::read(body.as_bytes(), &wanted)
    }

    #[test]
    fn paths_go_through_objects_and_arrays() {
        let body = r#"{"a":{"b":[{"c":1},{"c":"2"},{"x":3}]},"z":[[]]}"#;
        let json = read(body, &["a", "b", "c"]).unwrap();
        let found: Vec<_> = json
            .at("a.b[].c")
            .iter()
            .filter_map(|json| json.text())
            .collect();
        assert_eq!(found, ["1", "2"]);
        assert!(json.at("a.c").is_empty());
        assert!(json.at("z").is_empty(), "not wanted, so not stored");
        let list = read(r#"[{"c":true}]"#, &["c"]).unwrap();
        assert_eq!(list.at("[].c"), [&Json::Bool(true)]);
    }

    #[test]
    fn large_data_around_a_quota_is_skipped() {
        let rows = vec![r#"{"id":1,"name":"x"}"#; 200_000].join(",");
        let body = format!(r#"{{"data":[{rows}],"rate_limit":{{"remaining":7}}}}"#);
        let json = read(&body, &["rate_limit", "remaining"]).unwrap();
        assert_eq!(
            json.at("rate_limit.remaining")[0].number(),
            Decimal::parse("7")
        );
        assert!(matches!(&json, Json::Object(members) if members.len() == 1));
    }

    #[test]
    fn r_a14_hostile_documents_are_absent() {
        assert_eq!(read("", &[]), None);
        assert_eq!(read("\"text\"", &[]), None);
        assert_eq!(read("{\"a\":1", &["a"]), None, "cut off");
        assert_eq!(read("{\"a\":1}x", &["a"]), None);
        assert_eq!(read(&"[".repeat(100_000), &[]), None, "depth is bounded");
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(BODY_MAX));
        assert_eq!(read(&large, &["a"]), None);
        assert_eq!(Json::read(b"{\"a\":\"\xff\"}", &["a".to_owned()]), None);
        assert!(
            Json::read(b"\xef\xbb\xbf{\"a\":1}", &["a".to_owned()]).is_some(),
            "BOM"
        );
    }

    #[test]
    fn r_a14_stored_values_are_bounded() {
        let rows = vec!["[1,1,1,1,1,1,1,1]"; 32].join(",");
        let rows = vec![format!("[{rows}]"); 32].join(",");
        let json = read(&format!("{{\"a\":[{rows}],\"b\":1}}"), &["a", "b"]).unwrap();
        assert!(json.at("b").is_empty(), "there was no room for it");
    }

    #[test]
    fn the_last_of_repeated_names_wins() {
        let body = format!("{{{}\"a\":2}}", "\"a\":1,".repeat(1_000));
        let json = read(&body, &["a"]).unwrap();
        assert_eq!(json.at("a")[0].text().as_deref(), Some("2"));
    }
}
