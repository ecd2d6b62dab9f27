//! The state of a provider in words, for `status` and `top`: the same words, and the same order.
//!
//! Promises: what stops calls comes first: a lost store, an operator, sleep, then a used-up limit, degrade mode and
//! cool-downs. `Flowing` means that nothing of it is so.
//!
//! Never: asks anybody.

use serde_json::Value;

use crate::times::time_of_day;

/// A limit of this many seconds or more that is used up is a state; a shorter one is in good use.
const LONG: f64 = 60.0;

/// A state, and how bad it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderState {
    pub(crate) text: String,
    /// 0 is the worst.
    pub(crate) rank: u8,
}

impl ProviderState {
    /// From an entry of the list of providers, or from the details of one.
    pub(crate) fn of(provider: &Value) -> ProviderState {
        let state = |text: String, rank| ProviderState { text, rank };
        if provider["store"] == "lost" || provider["store"]["state"] == "lost" {
            return state("store lost".to_owned(), 0);
        }
        let health = match &provider["health"] {
            Value::Null => provider,
            health => health,
        };
        let word = health["state"].as_str().unwrap_or_default();
        let hold = health["hold"].as_str();
        match word {
            "sleep" | "cache_only" => return state(state_word(word, hold).to_owned(), 1),
            "half_open" => return state(state_word(word, hold).to_owned(), 5),
            _ => {}
        }
        if let Some(limit) = used_up(provider) {
            let until = match &limit["reset_at"] {
                Value::Null => String::new(),
                at => format!(" until {}", time_of_day(at)),
            };
            return state(format!("Used up{until}"), 2);
        }
        let mut entities = provider["entities"].as_object().into_iter().flatten();
        if provider["degraded"] == true || entities.any(|(_, part)| part["degraded"] == true) {
            return state("Saving quota".to_owned(), 3);
        }
        let mut cooldowns = provider["cooldowns"].as_array().into_iter().flatten();
        if let Some(one) = cooldowns.find(|one| one["of"] == "provider") {
            let text = format!("Cooling down until {}", time_of_day(&one["until"]));
            return state(text, 4);
        }
        let rank = if word == "normal" { 7 } else { 6 };
        state(state_word(word, hold).to_owned(), rank)
    }
}

/// A limit of a minute or longer of which nothing remains.
fn used_up(provider: &Value) -> Option<&Value> {
    let listed = Some(&provider["used_up"]).filter(|one| one.is_object());
    listed.or_else(|| {
        let mut limits = provider["limits"].as_array().into_iter().flatten();
        limits.find(|limit| {
            let is_long = limit["period"]
                .as_f64()
                .is_some_and(|period| period >= LONG);
            is_long && limit["remaining"] == 0
        })
    })
}

/// The words for people; JSON has its own.
pub(crate) fn state_word<'a>(state: &'a str, hold: Option<&str>) -> &'a str {
    match (state, hold) {
        ("normal", _) => "Flowing",
        ("throttle", _) => "Slowed",
        ("sleep", Some("paused")) => "Paused by an operator",
        ("sleep", Some(_)) => "Set offline by an operator",
        ("sleep", None) => "Sleeping",
        ("half_open", _) => "Testing",
        ("cache_only", Some(_)) => "Cache only, set by an operator",
        ("cache_only", None) => "Cache only",
        (unknown, _) => unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A provider whose day was used up and one in degrade mode were shown as `Flowing`.
    #[test]
    fn what_stops_calls_is_the_state() {
        let of = |value: Value| ProviderState::of(&value).text;
        let health = json!({ "state": "normal", "hold": null });
        let limit = |remaining: u64, period: f64| json!({ "name": "l", "remaining": remaining, "period": period, "reset_at": 45_605.0 });
        assert_eq!(
            of(json!({ "health": health, "limits": [limit(0, 86_400.0)] })),
            "Used up until 12:40:05 UTC"
        );
        assert_eq!(
            of(json!({ "health": health, "limits": [limit(0, 1.0)] })),
            "Flowing"
        );
        assert_eq!(
            of(json!({ "health": health, "limits": [], "degraded": true })),
            "Saving quota"
        );
        assert_eq!(
            of(json!({ "state": "normal", "used_up": limit(0, 60.0) })),
            "Used up until 12:40:05 UTC"
        );
        assert_eq!(
            of(json!({ "state": "sleep", "hold": "paused", "used_up": limit(0, 60.0) })),
            "Paused by an operator"
        );
        assert_eq!(
            of(json!({ "state": "normal", "store": "lost" })),
            "store lost"
        );
    }
}
