//! One line of the log, from the fields of an event.
//!
//! Promises: `ts`, `lvl` and `comp` first. With `comp=ratelimiter` all keys of [`STANDARD`] follow
//! in order; other fields come after them. No value can start a new line or another key.
//!
//! Never: leaves a field out.

use std::fmt::{self, Write};

use serde_json::{Map, Value};
use tollgate_core::health::HealthState;
use tracing::field::{Field, Visit};

/// The keys of every line of the rate limiter (A16).
const STANDARD: [&str; 8] = [
    "state",
    "event",
    "sleep",
    "consec429",
    "err_rate_30s",
    "rate",
    "sem",
    "retry_after",
];

/// The component of these lines.
const RATE_LIMITER: &str = "ratelimiter";

/// The text for an unknown value.
const NONE: &str = "none";

/// Keys whose values are states, which JSON spells in snake_case.
const STATES: [&str; 3] = ["state", "from", "to"];

/// A line under construction.
#[derive(Debug)]
pub(super) struct LogLine {
    ts: String,
    level: &'static str,
    comp: String,
    fields: Vec<(&'static str, Value)>,
}

impl LogLine {
    /// `target`: the module of the event, used if it names no component.
    pub(super) fn new(ts: String, level: &'static str, target: &str) -> LogLine {
        let comp = target.split("::").next().unwrap_or(target).to_owned();
        LogLine {
            ts,
            level,
            comp,
            fields: Vec::new(),
        }
    }

    /// `key=value`, with quotes where they are needed.
    pub(super) fn logfmt(&self) -> String {
        let mut text = format!("ts={} lvl={} comp=", self.ts, self.level);
        quote(&mut text, &self.comp);
        for (name, value) in self.in_order() {
            text.push(' ');
            text.push_str(name);
            text.push('=');
            match value {
                Some(Value::String(value)) => quote(&mut text, value),
                // Writing to a string does not fail.
                Some(value) => drop(write!(text, "{value}")),
                None => text.push_str(NONE),
            }
        }
        text
    }

    /// For people: the time of day, the event, then what is known as `key=value`.
    pub(super) fn pretty(&self) -> String {
        let time = self.ts.split_once('T').map_or(&*self.ts, |(_, time)| time);
        let mut text = format!("{time} {:<5} ", self.level);
        quote(&mut text, &self.comp);
        for (name, value) in self.in_order() {
            let Some(value) = value.filter(|value| value.as_str() != Some(NONE)) else {
                continue;
            };
            text.push(' ');
            if name != "event" {
                text.push_str(name);
                text.push('=');
            }
            match value {
                Value::String(value) => quote(&mut text, value),
                // Writing to a string does not fail.
                value => drop(write!(text, "{value}")),
            }
        }
        text
    }

    /// One object; an unknown value is `null`.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("ts".to_owned(), self.ts.clone().into());
        object.insert("lvl".to_owned(), self.level.to_ascii_lowercase().into());
        object.insert("comp".to_owned(), self.comp.clone().into());
        for (name, value) in self.in_order() {
            let value = match value {
                Some(Value::String(text)) if text == NONE => Value::Null,
                Some(Value::String(text)) if STATES.contains(&name) => json_state(text).into(),
                Some(value) => value.clone(),
                None => Value::Null,
            };
            object.insert(name.to_owned(), value);
        }
        Value::Object(object)
    }

    /// The fields in the order of the standard.
    fn in_order(&self) -> Vec<(&'static str, Option<&Value>)> {
        let standard: &[&str] = if self.comp == RATE_LIMITER {
            &STANDARD
        } else {
            &["event"]
        };
        let find = |name: &str| self.fields.iter().find(|field| field.0 == name);
        let first = STANDARD.iter().filter(|name| standard.contains(*name));
        let first = first.filter_map(|name| {
            let found = find(name).map(|field| &field.1);
            (found.is_some() || self.comp == RATE_LIMITER).then_some((*name, found))
        });
        let rest = self
            .fields
            .iter()
            .filter(|field| !standard.contains(&field.0));
        first
            .chain(rest.map(|(name, value)| (*name, Some(value))))
            .collect()
    }

    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("comp", Value::String(comp)) => self.comp = comp,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for LogLine {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
}

/// `HalfOpen` as `half_open`.
fn json_state(state: &str) -> &str {
    let all = [
        HealthState::Normal,
        HealthState::Throttle,
        HealthState::Sleep,
        HealthState::HalfOpen,
        HealthState::CacheOnly,
    ];
    let found = all.iter().find(|one| one.log_name() == state);
    found.map_or(state, |one| one.as_str())
}

/// A value, in quotes if a parser could misread it.
fn quote(text: &mut String, value: &str) {
    let is_plain = |letter: char| !letter.is_control() && !matches!(letter, ' ' | '"' | '=' | '\\');
    if !value.is_empty() && value.chars().all(is_plain) {
        text.push_str(value);
        return;
    }
    text.push('"');
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '\n' => text.push_str("\\n"),
            letter if letter.is_control() => text.extend(letter.escape_unicode()),
            letter => text.push(letter),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(comp: &str, fields: &[(&'static str, Value)]) -> LogLine {
        LogLine {
            ts: "2026-01-02T03:04:05.000000Z".to_owned(),
            level: "INFO",
            comp: comp.to_owned(),
            fields: fields.to_vec(),
        }
    }

    /// A16: every key of the standard, in its order, then the rest.
    #[test]
    fn a16_a_line_of_the_rate_limiter_has_every_key_in_order() {
        let fields = [
            ("event", "state_transition".into()),
            ("from", "Throttle".into()),
            ("state", "HalfOpen".into()),
            ("consec429", 3.into()),
        ];
        assert_eq!(
            line("ratelimiter", &fields).logfmt(),
            "ts=2026-01-02T03:04:05.000000Z lvl=INFO comp=ratelimiter state=HalfOpen \
             event=state_transition sleep=none consec429=3 err_rate_30s=none rate=none sem=none \
             retry_after=none from=Throttle"
        );
        let json = line("ratelimiter", &fields).json();
        assert_eq!(
            (&json["state"], &json["from"], &json["sem"]),
            (&"half_open".into(), &"throttle".into(), &Value::Null)
        );
    }

    #[test]
    fn other_lines_have_their_own_keys_only() {
        let fields = [("status", 200.into()), ("event", "completed".into())];
        let text = line("tollgate", &fields).logfmt();
        assert!(
            text.ends_with("comp=tollgate event=completed status=200"),
            "{text}"
        );
    }

    /// A value from a provider cannot start a line or a key.
    #[test]
    fn no_value_can_forge_a_line_or_a_key() {
        let evil = "x\r\nts=0 lvl=INFO event=\"ok\"\u{1b}[2J\u{85}";
        let text = line("tollgate", &[("error", evil.into())]).logfmt();
        assert_eq!(text.lines().count(), 1);
        assert!(!text.chars().any(char::is_control), "{text}");
        assert!(
            text.ends_with(r#"error="x\u{d}\nts=0 lvl=INFO event=\"ok\"\u{1b}[2J\u{85}""#),
            "{text}"
        );
        let pretty = line("tollgate", &[("error", evil.into())]).pretty();
        assert_eq!(
            pretty,
            r#"03:04:05.000000Z INFO  tollgate error="x\u{d}\nts=0 lvl=INFO event=\"ok\"\u{1b}[2J\u{85}""#
        );
        let json = line("tollgate", &[("error", evil.into())]).json();
        assert_eq!(json.to_string().lines().count(), 1);
    }
}
