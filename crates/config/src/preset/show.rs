//! Presets and providers as text: for `provider list`, `provider show` and the documentation.
//!
//! Promises: prints the settings in effect, because it prints the checked provider.
//! Keys are counted, never shown.
//!
//! Never: prints to a terminal by itself.

use tollgate_core::ask::CostUnit;
use tollgate_core::limit::Algorithm;

use super::{Preset, all, find};
use crate::amount::HumanSpan;
use crate::provider::{AuthStyle, Limit, Per, Provider};
use crate::raw::{Node, Value};
use crate::secret::Environment;

/// The width of row names.
const NAME_WIDTH: usize = 13;

/// Every preset in one line each: name, title, limits, batching advice.
#[must_use]
pub fn list() -> String {
    let mut text = String::new();
    for preset in all() {
        let title = preset.text_of("title").unwrap_or(preset.name);
        line(
            &mut text,
            &format!("{:<17} {title}: {}", preset.name, limits_of_preset(preset)),
        );
        if let Some(advice) = preset.text_of("batching") {
            line(&mut text, &format!("{:<17}   fewer calls: {advice}", ""));
        }
    }
    text
}

/// One preset with its plans, advice and the source of its numbers.
#[must_use]
pub fn show(name: &str) -> Option<String> {
    let preset = find(name)?;
    let mut text = format!(
        "{}: {}\n",
        preset.name,
        preset.text_of("title").unwrap_or_default()
    );
    if let Some(provider) = preset.provider(None, &Environment::empty()).provider {
        text.push_str(&describe(&provider));
    }
    for tier in preset.tiers() {
        if let Some(provider) = preset.provider(Some(tier), &Environment::empty()).provider {
            let note = preset
                .tree()
                .get("tiers")
                .and_then(|tiers| tiers.get(tier)?.get("note")?.text());
            let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
            row(
                &mut text,
                "tier",
                &format!("{tier}: {}{note}", joined(&provider.limits)),
            );
        }
    }
    let advice = [
        ("batching", "batching"),
        ("caching", "caching"),
        ("penalty", "penalty"),
        ("variant of", "variant_of"),
    ];
    for (label, field) in advice {
        if let Some(value) = preset.text_of(field) {
            row(&mut text, label, value);
        }
    }
    for note in texts(preset.tree().get("notes")) {
        row(&mut text, "note", note);
    }
    let source = preset.tree().get("source");
    let grade = source
        .and_then(|source| source.get("grade")?.text())
        .unwrap_or("unknown");
    let from = texts(source.and_then(|source| source.get("from"))).join("; ");
    row(
        &mut text,
        "source",
        format!("{grade}. {from}").trim_end_matches(['.', ' ']),
    );
    Some(text)
}

/// A checked provider as text.
#[must_use]
pub fn describe(provider: &Provider) -> String {
    let mut text = String::new();
    let domains: Vec<String> = provider.domains.iter().map(ToString::to_string).collect();
    let domains = if domains.is_empty() {
        "none (permits only)".to_owned()
    } else {
        domains.join(", ")
    };
    row(&mut text, "domains", &domains);
    if let Some(upstream) = &provider.upstream {
        let scheme = if upstream.tls { "https" } else { "http" };
        row(
            &mut text,
            "upstream",
            &format!(
                "{scheme}://{}:{}{}",
                upstream.host, upstream.port, upstream.base
            ),
        );
    }
    row(&mut text, "auth", &auth(provider));
    if provider.limits.is_empty() {
        let what = match provider.learned_limits().is_empty() {
            true if provider.learn => "none built in; calls slow down after a 429",
            true => "none",
            false => "none built in",
        };
        row(&mut text, "limits", what);
    }
    for limit in &provider.limits {
        row(&mut text, "limit", &limit_in_words(limit));
    }
    for limit in provider.learned_limits() {
        let what = format!("{} per key and entity, from responses", limit.name);
        row(&mut text, "learned", &what);
    }
    if let Some(concurrency) = &provider.concurrency {
        row(
            &mut text,
            "at a time",
            &concurrency.rule.limit().to_string(),
        );
    }
    row(&mut text, "cache", &provider.cache.ttl.to_string());
    for (entity, lifetime) in &provider.entity_ttl {
        row(&mut text, "", &format!("{entity} {lifetime}"));
    }
    row(&mut text, "order", provider.queue.order.word());
    if let Some(degrade) = &provider.degrade {
        row(
            &mut text,
            "degrade",
            &format!("below {}, until {}", degrade.below, degrade.recover),
        );
    }
    row(&mut text, "dialect", &provider.dialect);
    text
}

/// The table of the documentation, in Markdown.
#[must_use]
pub fn table_of_presets() -> String {
    let mut text =
        "| preset | provider | limits | tiers | grade |\n|---|---|---|---|---|\n".to_owned();
    for preset in all() {
        let tiers: Vec<&str> = preset.tiers().collect();
        let grade = preset
            .tree()
            .get("source")
            .and_then(|source| source.get("grade")?.text());
        let row = format!(
            "| `{}` | {} | {} | {} | {} |",
            preset.name,
            preset.text_of("title").unwrap_or_default(),
            limits_of_preset(preset),
            tiers.join(", "),
            grade.unwrap_or_default(),
        );
        line(&mut text, &row);
    }
    text
}

fn limits_of_preset(preset: &Preset) -> String {
    let provider = preset.provider(None, &Environment::empty()).provider;
    provider.as_ref().map(limits_in_short).unwrap_or_default()
}

/// All limits of a provider in one line.
#[must_use]
pub fn limits_in_short(provider: &Provider) -> String {
    let mut parts = Vec::new();
    if !provider.limits.is_empty() {
        parts.push(joined(&provider.limits));
    }
    if let Some(concurrency) = &provider.concurrency {
        parts.push(format!("{} at a time", concurrency.rule.limit()));
    }
    let learned = provider.learned_limits();
    if !learned.is_empty() {
        let names: Vec<String> = learned.into_iter().map(|limit| limit.name).collect();
        parts.push(format!("learned from responses: {}", names.join(", ")));
    } else if provider.learn {
        parts.push("reported in responses: slows down after a 429".to_owned());
    }
    parts.join(", ")
}

fn joined(limits: &[Limit]) -> String {
    limits
        .iter()
        .map(limit_in_words)
        .collect::<Vec<_>>()
        .join(", ")
}

/// `35/1s token-bucket burst 35`.
#[must_use]
pub fn limit_in_words(limit: &Limit) -> String {
    let rule = &limit.rule;
    let mut words = match rule.algorithm() {
        Algorithm::Calendar(calendar) => format!("{}/{}", rule.limit(), calendar.label()),
        Algorithm::InFlight => format!("{} at a time", rule.limit()),
        Algorithm::Sliding { period }
        | Algorithm::Bucket { period, .. }
        | Algorithm::Fixed { period }
        | Algorithm::Paced { period } => format!("{}/{}", rule.limit(), HumanSpan(*period)),
    };
    if rule.cost_unit() != CostUnit::Calls {
        words = format!("{words} {}", limit.unit);
    }
    let how = match rule.algorithm() {
        Algorithm::Sliding { .. } | Algorithm::InFlight => String::new(),
        Algorithm::Bucket { burst, .. } => format!(" token-bucket burst {burst}"),
        Algorithm::Fixed { .. } => " fixed-window".to_owned(),
        Algorithm::Calendar(_) => " calendar".to_owned(),
        Algorithm::Paced { .. } => " paced".to_owned(),
    };
    words.push_str(&how);
    if limit.reserve > 0 {
        words.push_str(&format!(" reserve {}", limit.reserve));
    }
    if limit.per != Per::Provider {
        words.push_str(&format!(" per {}", limit.per.word()));
    }
    words
}

fn auth(provider: &Provider) -> String {
    let how = match &provider.auth.style {
        AuthStyle::None => "none".to_owned(),
        AuthStyle::Query { name } => format!("query parameter {name}"),
        AuthStyle::Header { name, .. } => format!("header {name}"),
        AuthStyle::Bearer => "bearer token".to_owned(),
        AuthStyle::Basic => "basic".to_owned(),
        AuthStyle::OAuth2(_) => "OAuth 2".to_owned(),
        AuthStyle::Login(login) => format!("login, a token for {}", HumanSpan(login.lifetime)),
    };
    match provider.keys.len() {
        0 => how,
        1 => format!("{how}, key set"),
        keys => format!("{how}, {keys} keys set"),
    }
}

fn texts(node: Option<&Node>) -> Vec<&str> {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items.iter().filter_map(Node::text).collect(),
        Some(Value::Text(text)) => vec![text],
        Some(Value::Null | Value::Map(_)) | None => Vec::new(),
    }
}

fn row(text: &mut String, name: &str, value: &str) {
    line(text, &format!("  {name:<NAME_WIDTH$}{value}"));
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}
