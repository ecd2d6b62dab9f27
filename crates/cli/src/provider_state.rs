//! The state of a provider in words, for `status` and `top`: the same words, and the same order.
//!
//! Promises: what stops calls comes first: a lost store, an operator, sleep, then a used-up limit, degrade mode and
//! cool-downs. `Flowing` means that nothing of it is so.
//!
//! Never: asks anybody.

use serde_json::Value;

use crate::times::{day_and_time, time_of_day};

/// A limit of this many seconds or more that is used up is a state; a shorter one is in good use.
const LONG: f64 = 60.0;

/// Seconds of a day: a limit that is longer has a reset with a date.
const DAY: f64 = 86_400.0;

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
        if let Some(one) = cooldown(provider) {
            let text = format!("Cooling down until {}", time_of_day(&one["until"]));
            return state(text, 4);
        }
        let rank = if word == "normal" { 7 } else { 6 };
        let rate = health["rate"].as_f64().filter(|_| word == "throttle");
        let rate = rate.map_or(String::new(), |rate| format!(" to {}/s", rounded(rate)));
        state(format!("{}{rate}", state_word(word, hold)), rank)
    }

    /// Its first words, for a narrow column: what follows is in [`reason`].
    pub(crate) fn short(&self) -> &str {
        let ends = [" until ", " by an operator", ", set by"];
        let end = ends.iter().filter_map(|end| self.text.find(end)).min();
        end.and_then(|end| self.text.get(..end))
            .unwrap_or(&self.text)
    }
}

/// Why a provider does not flow or has waiting calls, and until when; `None` if it flows and nobody waits. From the
/// details of one.
pub(crate) fn reason(provider: &Value) -> Option<String> {
    let state = ProviderState::of(provider);
    let health = &provider["health"];
    let name = provider["name"].as_str().unwrap_or_default();
    let until = |at: &Value| match at.is_number() {
        true => format!(" until {}", time_of_day(at)),
        false => format!(" until `tollgate resume {name}`"),
    };
    let why = match state.rank {
        0 => provider["store"]["trouble"].as_str().map(str::to_owned),
        1 if health["hold"].is_string() => {
            Some(format!("by an operator{}", until(&health["sleep_until"])))
        }
        1 => Some(format!("after failures{}", until(&health["sleep_until"]))),
        2 => used_up(provider).map(|limit| {
            let limit_name = limit["name"].as_str().unwrap_or_default();
            match limit["reset_at"].is_number() {
                true => format!("{limit_name} is used up{}", until(&limit["reset_at"])),
                false => format!("{limit_name} is used up"),
            }
        }),
        3 => Some("little of a quota remains: only the cache responds".to_owned()),
        4 => cooldown(provider).map(|one| {
            let why = one["reason"].as_str().unwrap_or_default();
            format!("{why}{}", until(&one["until"]))
        }),
        5 => Some("test calls show whether it has recovered".to_owned()),
        6 => {
            let failed = health["err_rate_30s"].as_f64().unwrap_or_default() * 100.0;
            Some(format!("{failed:.0} % of calls failed in 30 s"))
        }
        _ => None,
    };
    let parts: Vec<String> = why.into_iter().chain(waiting_for(provider)).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What the waiting calls wait for, the most first: `4 wait for a limit`.
fn waiting_for(provider: &Value) -> Option<String> {
    let causes = provider["queue"]["waiting_for"].as_object()?;
    let mut causes: Vec<(u64, &str)> = causes
        .iter()
        .filter_map(|(cause, count)| Some((count.as_u64().filter(|count| *count > 0)?, &**cause)))
        .collect();
    causes.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let text = |(count, cause): (u64, &str)| {
        let verb = if count == 1 { "waits" } else { "wait" };
        format!("{count} {verb} for {}", cause_words(cause))
    };
    let texts: Vec<String> = causes.into_iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// What calls wait for, as the page says it.
fn cause_words(cause: &str) -> &str {
    match cause {
        "limit" => "a limit",
        "estimated_limit" => "the pace learned from 429s",
        "concurrency" => "a free slot",
        "cooldown" => "a cool-down",
        "sleep" => "the provider to recover",
        "paused" | "offline" => "an operator",
        "retry" => "the next try",
        "off_peak" => "off-peak hours",
        "store" | "store_lost" => "the store",
        other => other,
    }
}

/// The limits of a provider and its entities that have a count, the tightest first: those that calls wait for, then
/// those of which the smallest share remains, of a minute or longer before shorter ones. With whose it is.
pub(crate) fn tightest_first(provider: &Value) -> Vec<(String, &Value)> {
    let entities = provider["entities"].as_object().into_iter().flatten();
    let entities = entities.map(|(entity, part)| (format!("{entity} "), &part["limits"]));
    let own = std::iter::once((String::new(), &provider["limits"]));
    let of_all = own.chain(entities).flat_map(|(of, limits)| {
        let limits = limits.as_array().into_iter().flatten();
        limits.map(move |limit| (of.clone(), limit))
    });
    let mut counted: Vec<(String, &Value)> = of_all
        .filter(|(_, limit)| limit["remaining"].is_number())
        .collect();
    counted.sort_by(|(_, one), (_, other)| tightness(one).total_cmp(&tightness(other)));
    counted
}

fn tightness(limit: &Value) -> f64 {
    let number = |name: &str| limit[name].as_f64().unwrap_or_default();
    let depth = limit["depth"].as_f64().unwrap_or_else(|| number("limit"));
    let share = number("remaining") / depth.max(1.0);
    let is_waited_for = number("waiting") > 0.0;
    let is_short = number("period") < LONG;
    share - if is_waited_for { 4.0 } else { 0.0 } + if is_short { 2.0 } else { 0.0 }
}

/// `, resets 12:40:05 UTC`; of a limit longer than a day with the day. Empty where nothing is used, or it is a matter of
/// seconds.
pub(crate) fn reset_text(limit: &Value) -> String {
    let is_used = limit["used"].as_u64().is_none_or(|used| used > 0);
    let period = limit["period"].as_f64();
    if !limit["reset_at"].is_number() || !is_used || period.is_some_and(|period| period < 10.0) {
        return String::new();
    }
    let at = &limit["reset_at"];
    match period.is_some_and(|period| period > DAY) {
        true => format!(", resets {}", day_and_time(at)),
        false => format!(", resets {}", time_of_day(at)),
    }
}

/// The same for a narrow column, which says itself that times are UTC: to the minute.
pub(crate) fn short_reset_text(limit: &Value) -> String {
    let text = reset_text(limit);
    let text = text.strip_suffix(" UTC").unwrap_or(&text);
    let has_seconds = text.matches(':').count() == 2;
    let end = text.len() - if has_seconds { 3 } else { 0 };
    text.get(..end).unwrap_or(text).to_owned()
}

/// With one decimal below ten.
fn rounded(rate: f64) -> String {
    let text = if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    };
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// The cool-down of the whole provider.
fn cooldown(provider: &Value) -> Option<&Value> {
    let mut cooldowns = provider["cooldowns"].as_array().into_iter().flatten();
    cooldowns.find(|one| one["of"] == "provider")
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

    /// "Slowed" without its rate, and nothing about why calls waited.
    #[test]
    fn a_provider_that_does_not_flow_says_why() {
        let slowed = json!({
            "name": "x", "health": { "state": "throttle", "hold": null, "rate": 17.04, "err_rate_30s": 0.125 },
            "queue": { "waiting_for": { "limit": 4, "retry": 1, "sleep": 0 } },
        });
        assert_eq!(ProviderState::of(&slowed).text, "Slowed to 17/s");
        assert_eq!(
            reason(&slowed).as_deref(),
            Some("12 % of calls failed in 30 s; 4 wait for a limit, 1 waits for the next try")
        );
        let held = |hold: Value, until: Value| json!({ "name": "x", "health": { "state": "sleep", "hold": hold, "sleep_until": until } });
        let paused = held(json!("paused"), json!(45_605.0));
        assert_eq!(ProviderState::of(&paused).short(), "Paused");
        for (provider, why) in [
            (paused, "by an operator until 12:40:05 UTC"),
            (
                held(json!("offline"), Value::Null),
                "by an operator until `tollgate resume x`",
            ),
            (
                held(Value::Null, json!(45_605.0)),
                "after failures until 12:40:05 UTC",
            ),
        ] {
            assert_eq!(reason(&provider).as_deref(), Some(why));
        }
        assert_eq!(
            reason(&json!({ "name": "x", "health": { "state": "normal" } })),
            None
        );
    }

    /// The first limits of the file were shown, whatever remained of the others.
    #[test]
    fn the_tightest_limit_comes_first() {
        let limit = |name: &str, period: f64, depth: u64, remaining: u64| json!({ "name": name, "period": period, "depth": depth, "limit": 100, "remaining": remaining });
        let provider = json!({
            "limits": [limit("second", 1.0, 20, 0), limit("bucket", 60.0, 20, 20), limit("day", 86_400.0, 100, 40)],
            "entities": { "odds": { "limits": [limit("hour", 3_600.0, 100, 7)] } },
        });
        let names = tightest_first(&provider);
        let names: Vec<String> = names
            .iter()
            .map(|(of, limit)| format!("{of}{}", limit["name"]))
            .collect();
        assert_eq!(
            names,
            ["odds \"hour\"", "\"day\"", "\"bucket\"", "\"second\""]
        );
    }

    /// Resets were shown for the budgets of callers only.
    #[test]
    fn a_reset_is_shown_once_something_is_used() {
        let limit = |period: f64, used: u64| json!({ "period": period, "used": used, "reset_at": 2_592_000.0 });
        assert_eq!(reset_text(&limit(86_400.0, 1)), ", resets 00:00:00 UTC");
        assert_eq!(
            reset_text(&limit(2_592_000.0, 1)),
            ", resets 1970-01-31 00:00 UTC"
        );
        assert_eq!(reset_text(&limit(86_400.0, 0)), "");
        assert_eq!(reset_text(&limit(1.0, 1)), "");
    }

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
