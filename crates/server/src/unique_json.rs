//! JSON in which every object has each name once.
//!
//! Which of two values counts is another one for every parser, so a proxy may check one and Tollgate use the
//! other.
//!
//! Promises: the same values as `serde_json` reads, or an error.
//!
//! Never: repeats what was sent.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value without repeated names.
struct UniqueValue(Value);

/// Reads a value; `None` if it is not JSON, or names something twice.
pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    let read: Result<UniqueValue, _> = serde_json::from_slice(bytes);
    read.ok().map(|UniqueValue(value)| value)
}

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueValue, D::Error> {
        from.deserialize_any(UniqueVisitor).map(UniqueValue)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueValue(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, UniqueValue(value))) = map.next_entry::<String, UniqueValue>()? {
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom("a name stands twice"));
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        for text in [
            "null",
            "[1, -2, 2.5, 1e3, true, \"a\\u00e9\"]",
            "{\"a\": {\"b\": [{}]}, \"c\": 18446744073709551615}",
            "1e400",
            "{",
            "",
        ] {
            let plain: Option<Value> = serde_json::from_str(text).ok();
            assert_eq!(parse(text.as_bytes()), plain, "{text}");
        }
    }

    #[test]
    fn a_name_that_stands_twice_is_an_error() {
        for text in [
            "{\"a\": 1, \"a\": 1}",
            "{\"a\": [{\"b\": 1, \"\\u0062\": 2}]}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
