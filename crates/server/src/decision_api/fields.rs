//! The fields of a request, read strictly.
//!
//! Promises: an unknown field is rejected with the nearest name, a wrong type with an example. What a
//! field does not say has its default.
//!
//! Never: repeats a value.

use axum::extract::Query;
use axum::http::Uri;
use serde_json::{Map, Value};
use tollgate::path::Target;
use tollgate_config::{amount, problem};
use tollgate_core::ask::Priority;
use tollgate_core::time::Span;

use crate::api::ApiError;
use crate::call_words::{self, CostsError};

/// The longest time that a request may wait, as on the gateway.
const TIMEOUT_MAX: Span = Span::from_secs(24 * 3_600);

/// The longest name, in characters: a URL may be longer.
pub(crate) const NAME_MAX: usize = 256;

/// The longest URL, as in a request head.
pub(crate) const URL_MAX: usize = 8 * 1_024;

const COST_HINT: &str =
    "to 9007199254740992, or numbers by unit such as tokens=1200 or {\"tokens\": 1200}; units are";

/// The fields of a request.
#[derive(Debug)]
pub(crate) struct RequestFields {
    fields: Map<String, Value>,
}

impl RequestFields {
    /// Fields of a JSON object; all must be known.
    pub(crate) fn new(
        fields: Map<String, Value>,
        known: &[&str],
    ) -> Result<RequestFields, ApiError> {
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(unknown_field(unknown, known));
        }
        Ok(RequestFields { fields })
    }

    /// The parameters of a query, each once.
    pub(crate) fn of_query(uri: &Uri, known: &[&str]) -> Result<RequestFields, ApiError> {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Some(Query(pairs)) = pairs.ok().filter(|Query(pairs)| is_utf8(uri, pairs)) else {
            return Err(ApiError::unreadable(axum::http::StatusCode::BAD_REQUEST));
        };
        let mut fields = Map::new();
        for (name, value) in pairs {
            if fields.insert(name, Value::String(value)).is_some() {
                return Err(ApiError::unreadable(axum::http::StatusCode::BAD_REQUEST));
            }
        }
        RequestFields::new(fields, known)
    }

    /// For a request whose query is not read: it has none. `in_body`: the fields of its body.
    pub(crate) fn no_query(uri: &Uri, in_body: &[&str]) -> Result<(), ApiError> {
        if uri.query().is_none() {
            return Ok(());
        }
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Ok(Query(pairs)) = pairs else {
            return Err(ApiError::unreadable(axum::http::StatusCode::BAD_REQUEST));
        };
        match pairs.first() {
            Some((name, _)) => Err(unread_parameter(name, in_body)),
            None => Ok(()),
        }
    }

    /// Whether the field is there; `null` counts as absent.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// A short text.
    pub(crate) fn name(&self, name: &str) -> Result<Option<String>, ApiError> {
        self.text(name, NAME_MAX)
    }

    /// The entity; as on the gateway, a plain name.
    pub(crate) fn entity(&self) -> Result<Option<String>, ApiError> {
        match self.name("entity")? {
            Some(name) if !call_words::is_entity(&name) => {
                Err(wrong("entity", call_words::ENTITY_FORM))
            }
            entity => Ok(entity),
        }
    }

    /// Who calls; as on the gateway, a plain name.
    pub(crate) fn caller(&self) -> Result<Option<String>, ApiError> {
        match self.name("caller")? {
            Some(name) if !call_words::is_caller(&name) => {
                Err(wrong("caller", call_words::CALLER_FORM))
            }
            caller => Ok(caller),
        }
    }

    fn text(&self, name: &str, max: usize) -> Result<Option<String>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if (1..=max).contains(&text.chars().count()) => {
                Ok(Some(text.clone()))
            }
            Some(_) => Err(wrong(name, &format!("a text of 1 to {max} characters"))),
        }
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(is_so)) => Ok(Some(*is_so)),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    /// Seconds as a number, or a text with a unit.
    pub(crate) fn span(&self, name: &str) -> Result<Option<Span>, ApiError> {
        let span = match self.get(name) {
            None => return Ok(None),
            Some(Value::Number(number)) => seconds(number),
            Some(Value::String(text)) => amount::span(text),
            Some(_) => None,
        };
        let span =
            span.ok_or_else(|| wrong(name, "a number of seconds, or a text such as \"10s\""))?;
        Ok(Some(span.min(TIMEOUT_MAX)))
    }

    /// A whole number, also in another form of JSON: 200 is the same number as 200.0 and 2e2.
    pub(crate) fn integer(&self, name: &str) -> Option<Option<u64>> {
        match self.get(name) {
            None => Some(None),
            Some(value) => Some(Some(integer(value)?)),
        }
    }

    pub(crate) fn priority(&self) -> Result<Option<Priority>, ApiError> {
        let word = self.name("priority")?;
        let Some(word) = word else {
            return Ok(None);
        };
        let priority = call_words::priority(&word);
        let expected = "high, normal or low (also user, webhook, ui, manual, background)";
        Ok(Some(priority.ok_or_else(|| wrong("priority", expected))?))
    }

    /// Costs by unit: a number is calls. `tokens` is another name of `cost`.
    pub(crate) fn costs(&self) -> Result<Vec<(String, u64)>, ApiError> {
        self.costs_by(call_words::cost, 1)
    }

    /// Costs that are known afterwards: a call may have cost nothing.
    pub(crate) fn real_costs(&self) -> Result<Vec<(String, u64)>, ApiError> {
        self.costs_by(call_words::real_cost, 0)
    }

    fn costs_by(
        &self,
        cost: fn(&str, u64) -> Option<(String, u64)>,
        least: u64,
    ) -> Result<Vec<(String, u64)>, ApiError> {
        let value = match (self.get("cost"), self.get("tokens")) {
            (None, None) => return Ok(Vec::new()),
            (Some(value), None) | (None, Some(value)) => value,
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request(
                    "`cost` and `tokens` are two names of one field",
                    "send one of them",
                ));
            }
        };
        let costs = match value {
            Value::Number(_) => {
                let cost = integer(value).and_then(|amount| cost("calls", amount));
                cost.map(|cost| vec![cost]).ok_or(CostsError::Invalid)
            }
            Value::String(text) => call_words::costs_by(text, cost),
            Value::Object(units) => units
                .iter()
                .map(|(unit, amount)| cost(unit, integer(amount)?))
                .collect::<Option<Vec<_>>>()
                .filter(|costs| !costs.is_empty())
                .ok_or(CostsError::Invalid)
                .and_then(call_words::distinct),
            Value::Null | Value::Bool(_) | Value::Array(_) => Err(CostsError::Invalid),
        };
        let hint = || {
            format!(
                "send a number from {least} {COST_HINT} {}",
                call_words::UNITS
            )
        };
        costs.map_err(|error| match error {
            CostsError::Invalid => match unknown_unit(value) {
                Some(unit) => {
                    let message = format!("`cost` has the unit `{unit}`, which does not exist");
                    ApiError::bad_request(&message, &hint())
                }
                None => ApiError::bad_request("`cost` is not a cost", &hint()),
            },
            CostsError::Repeated => ApiError::bad_request("`cost` names a unit twice", &hint()),
        })
    }

    /// A URL as it was sent.
    pub(crate) fn url(&self) -> Result<Option<String>, ApiError> {
        self.text("url", URL_MAX)
    }

    /// The provider or the URL that is called; exactly one of them.
    pub(crate) fn target(&self) -> Result<Target, ApiError> {
        let (provider, url) = (self.name("provider")?, self.url()?);
        match (provider, url) {
            (Some(name), None) => Ok(Target::from(name.as_str())),
            (None, Some(url)) => call_words::url(&url).ok_or_else(|| {
                wrong(
                    "url",
                    "an absolute URL such as \"https://api.example.org/v1/x\"",
                )
            }),
            (Some(_), Some(_)) => Err(ApiError::bad_request(
                "`provider` and `url` both say what is called",
                "send one of them",
            )),
            (None, None) => Err(ApiError::bad_request(
                "the request does not say what is called",
                "send `provider` or `url`",
            )),
        }
    }
}

/// Was the query UTF-8 before it was decoded? What is not has become the replacement character.
fn is_utf8(uri: &Uri, decoded: &[(String, String)]) -> bool {
    let is_replaced = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
    let query = || uri.query().unwrap_or_default().to_ascii_lowercase();
    let mut pairs = decoded.iter();
    !pairs.any(|(name, value)| is_replaced(name) || is_replaced(value))
        || query().contains("%ef%bf%bd")
}

/// A unit of a cost that does not exist.
fn unknown_unit(cost: &Value) -> Option<String> {
    match cost {
        Value::Object(units) => call_words::unknown_unit(units.keys().map(String::as_str)),
        Value::String(text) => call_words::unknown_unit_in(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// A whole number from 0; JSON has more than one form of it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is whole and not negative, and above 2^53 it is rejected"
)]
fn integer(value: &Value) -> Option<u64> {
    let is_exact = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
    let number = match value.as_u64() {
        Some(number) => number,
        None => value.as_f64().filter(is_exact)? as u64,
    };
    (number <= call_words::COST_MAX).then_some(number)
}

/// A time in seconds, at most [`TIMEOUT_MAX`].
fn seconds(number: &serde_json::Number) -> Option<Span> {
    if let Some(exact) = amount::millionths(&number.to_string()) {
        return Some(Span(exact.0));
    }
    let seconds = number.as_f64().filter(|seconds| *seconds >= 0.0)?;
    let micros = std::time::Duration::try_from_secs_f64(seconds).ok();
    let micros = micros.and_then(|time| u64::try_from(time.as_micros()).ok());
    Some(micros.map_or(TIMEOUT_MAX, Span))
}

/// A field of another type.
pub(crate) fn wrong(name: &str, expected: &str) -> ApiError {
    let message = format!("`{name}` is not {expected}");
    ApiError::bad_request(&message, &format!("send {expected} as `{name}`"))
}

/// A parameter where the query is not read.
fn unread_parameter(name: &str, in_body: &[&str]) -> ApiError {
    let message = format!(
        "`{}` is not a parameter: this request has none",
        shown(name)
    );
    let hint = match problem::nearest(name, in_body) {
        Some(near) => format!("send `{near}` as a field of the JSON body"),
        None if name == "for" => {
            "leave it out; of the commands only `pause` and `cache-only` last `for` a time"
                .to_owned()
        }
        None if in_body.is_empty() => "leave the query out".to_owned(),
        None => format!("the fields of the JSON body are {}", in_body.join(", ")),
    };
    ApiError::bad_request(&message, &hint)
}

/// The name that was sent, safe in a reply.
fn shown(name: &str) -> String {
    let shown = name.chars().take(64).filter(|one| !one.is_control());
    shown.collect()
}

fn unknown_field(name: &str, known: &[&str]) -> ApiError {
    let shown = shown(name);
    let message = format!("`{shown}` is not a field of this request");
    let hint = match problem::nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("its fields are {}", known.join(", ")),
    };
    ApiError::bad_request(&message, &hint)
}
