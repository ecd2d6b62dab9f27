//! The picture of `tollgate top`.
//!
//! Promises: fits every size of terminal; what does not fit is left out from the bottom.
//!
//! Never: reads anything.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};
use serde_json::Value;
use tollgate_core::time::Span as Duration;

use crate::provider_state::{ProviderState, reason, short_reset_text, tightest_first};
use crate::times::time_of_day;

/// How many callers of a provider have a line: more would hide other providers.
const CALLERS_MAX: usize = 4;

/// Everything that is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Picture {
    pub(super) providers: Vec<Value>,
    /// Providers beyond those that were asked.
    pub(super) hidden: usize,
    /// Calls that wait, those of hidden providers included.
    pub(super) waiting: u64,
    pub(super) figures: Option<Figures>,
    pub(super) decisions: Vec<Value>,
    pub(super) alerts: Vec<Value>,
    pub(super) problem: Option<String>,
}

/// What all providers did in the last minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Calls per second, of the last five seconds.
    pub(super) calls: f64,
    /// Calls that the cache or another call saved, and those that were sent.
    pub(super) saved: u64,
    pub(super) sent: u64,
    pub(super) limited: u64,
}

impl Figures {
    /// From `GET /v1/history?span=1m`.
    pub(super) fn of(history: &Value) -> Figures {
        let numbers = |name: &str| {
            let list = history[name].as_array().into_iter().flatten();
            list.filter_map(Value::as_u64).collect::<Vec<u64>>()
        };
        let sum = |name: &str| numbers(name).iter().sum::<u64>();
        let calls = numbers("calls");
        let newest = calls.iter().rev().take(5);
        let seconds = u32::try_from(newest.len().max(1)).unwrap_or(1);
        // A sum of no floats is -0.
        let newest = u32::try_from(newest.sum::<u64>()).unwrap_or(u32::MAX);
        Figures {
            calls: f64::from(newest) / f64::from(seconds),
            saved: sum("saved"),
            sent: sum("sent_high") + sum("sent_normal") + sum("sent_low"),
            limited: sum("limited"),
        }
    }

    fn text(&self) -> String {
        let all = self.saved + self.sent;
        let saved = match all {
            0 => String::new(),
            all => format!(", {} % saved", self.saved * 100 / all),
        };
        format!(
            ", {:.1} calls/s{saved}, {} × 429/min",
            self.calls, self.limited
        )
    }
}

impl Picture {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let alerts = u16::try_from(self.alerts.len()).unwrap_or(u16::MAX).min(4);
        let decisions = u16::try_from(self.decisions.len()).unwrap_or(u16::MAX);
        let parts = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(if alerts > 0 { alerts + 1 } else { 0 }),
            Constraint::Length(if decisions > 0 { decisions + 1 } else { 0 }),
            Constraint::Length(1),
        ]);
        let [title, providers, alerts, decisions, foot] = parts.areas(frame.area());
        frame.render_widget(Paragraph::new(self.title()), title);
        self.draw_providers(frame, providers);
        self.draw_alerts(frame, alerts);
        self.draw_decisions(frame, decisions);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn title(&self) -> Line<'static> {
        let waiting = self.waiting;
        let providers = self.providers.len() + self.hidden;
        let plural = |count: bool| if count { "" } else { "s" };
        let text = format!(
            "tollgate: {providers} provider{}, {waiting} call{} waiting{}{}",
            plural(providers == 1),
            plural(waiting == 1),
            self.figures.as_ref().map_or(String::new(), Figures::text),
            match self.hidden {
                0 => String::new(),
                hidden => format!(
                    "; the worst {} shown, {hidden} more not",
                    self.providers.len()
                ),
            },
        );
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }

    fn foot(&self) -> Line<'static> {
        match &self.problem {
            Some(problem) => Line::styled(problem.clone(), Style::new().fg(Color::Red)),
            None => Line::raw(
                "q or Esc ends · tollgate why ID explains a call · tollgate status NAME shows a provider",
            ),
        }
    }

    fn draw_providers(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.providers.is_empty() {
            frame.render_widget(
                Paragraph::new("No provider has a file or was called."),
                area,
            );
            return;
        }
        let [name, state, waiting_title, done, limits] = [
            "provider",
            "state",
            "waiting",
            "done in",
            "remaining, resets (UTC)",
        ];
        let header = format!("{name:<15} {state:<20} {waiting_title} {done:<8} {limits}");
        let header = Line::styled(header, Style::new().add_modifier(Modifier::UNDERLINED));
        // Worst first: what does not fit is what flows.
        let mut sorted: Vec<&Value> = self.providers.iter().collect();
        sorted.sort_by_key(|one| (ProviderState::of(one).rank, std::cmp::Reverse(waiting(one))));
        let rows = sorted.into_iter().flat_map(|one| {
            let dim = Style::new().add_modifier(Modifier::DIM);
            let why = reason(one).map(|why| Line::styled(format!("  {why}"), dim));
            std::iter::once(row(one)).chain(why).chain(callers(one))
        });
        let lines: Vec<Line<'_>> = std::iter::once(header).chain(rows).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn draw_alerts(&self, frame: &mut Frame<'_>, area: Rect) {
        let line = |alert: &Value| {
            let color = if alert["level"] == "critical" {
                Color::Red
            } else {
                Color::Yellow
            };
            let text = alert["message"].as_str().unwrap_or_default().to_owned();
            Line::styled(text, Style::new().fg(color))
        };
        let lines: Vec<Line<'_>> = self.alerts.iter().map(line).collect();
        let block = Block::new().title("alerts");
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }

    fn draw_decisions(&self, frame: &mut Frame<'_>, area: Rect) {
        let lines: Vec<Line<'_>> = self.decisions.iter().map(decision).collect();
        let block = Block::new().title("last calls (tollgate why ID)");
        frame.render_widget(Paragraph::new(lines).block(block), area);
    }
}

fn waiting(provider: &Value) -> u64 {
    let queue = &provider["queue"];
    ["high", "normal", "low"]
        .iter()
        .filter_map(|name| queue[*name].as_u64())
        .sum()
}

fn row(provider: &Value) -> Line<'static> {
    let state = ProviderState::of(provider);
    let color = match state.rank {
        0 | 1 => Color::Red,
        2..=6 => Color::Yellow,
        _ => Color::Green,
    };
    let waiting = waiting(provider);
    let eta = match waiting {
        0 => String::new(),
        _ => eta(&provider["queue"]),
    };
    let name = provider["name"].as_str().unwrap_or_default();
    Line::from(vec![
        Span::raw(format!("{name:<15.15} ")),
        Span::styled(format!("{:<20.20}", state.short()), Style::new().fg(color)),
        Span::raw(format!(" {waiting:>7} {eta:<8} {}", limits(provider))),
    ])
}

/// In how long the last waiting call is sent.
fn eta(queue: &Value) -> String {
    match queue["eta"].as_f64() {
        None if queue["starved"].as_u64().unwrap_or(0) > 0 => "unknown".to_owned(),
        None => "resumed".to_owned(),
        Some(eta) => std::time::Duration::try_from_secs_f64(eta).map_or_else(
            |_| String::new(),
            |eta| Duration(u64::try_from(eta.as_micros()).unwrap_or(u64::MAX)).in_words(),
        ),
    }
}

/// The lines below a provider: whose calls wait, and when the last one of each is sent. The longest queues first.
fn callers(provider: &Value) -> Vec<Line<'static>> {
    let count = |part: &Value| part["waiting"].as_u64().unwrap_or_default();
    let callers = provider["queue"]["callers"]
        .as_object()
        .into_iter()
        .flatten();
    let mut waiting: Vec<(&String, &Value)> = callers.filter(|(_, part)| count(part) > 0).collect();
    waiting.sort_by_key(|(_, part)| std::cmp::Reverse(count(part)));
    let rest: u64 = waiting
        .iter()
        .skip(CALLERS_MAX)
        .map(|(_, part)| count(part))
        .sum();
    let line = |name: String, waiting: u64, eta: String| {
        let name = format!("  {name}");
        let text = format!("{name:<36.36} {waiting:>7} {eta}");
        Line::styled(text, Style::new().add_modifier(Modifier::DIM))
    };
    let shown = waiting.iter().take(CALLERS_MAX);
    let shown = shown.map(|(name, part)| line((*name).clone(), count(part), eta(part)));
    let more = (rest > 0).then(|| line("others".to_owned(), rest, String::new()));
    shown.chain(more).collect()
}

/// What remains of each limit, the tightest first, and when it starts anew.
fn limits(provider: &Value) -> String {
    let of_limit = |(of, limit): (String, &Value)| {
        let name = limit["name"].as_str().unwrap_or_default();
        let (remaining, reset) = (&limit["remaining"], short_reset_text(limit));
        format!("{of}{name}: {remaining}{reset}")
    };
    let limits = tightest_first(provider).into_iter();
    let mut each: Vec<String> = limits.map(of_limit).collect();
    for one in provider["estimated_limits"]
        .as_array()
        .into_iter()
        .flatten()
    {
        each.extend(
            one["rate"]
                .as_f64()
                .map(|rate| format!("about {rate:.1}/s, learned")),
        );
    }
    each.join("; ")
}

/// One call in one line.
fn decision(call: &Value) -> Line<'static> {
    let text = |name: &str| call[name].as_str().unwrap_or("-").to_owned();
    let color = match call["decision"].as_str() {
        Some("allow") => Color::Green,
        Some("queue") => Color::Yellow,
        _ => Color::Red,
    };
    let wait = call["wait"].as_f64().unwrap_or_default();
    let status = call["status"]
        .as_u64()
        .map_or("-".to_owned(), |status| status.to_string());
    let rest = format!(
        " {status} {} {} {} {} ({}, waited {wait:.3} s) {}",
        text("provider"),
        text("method"),
        text("path"),
        text("source"),
        text("reason"),
        text("id"),
    );
    Line::from(vec![
        Span::raw(time_of_day(&call["ts"]) + " "),
        Span::styled(format!("{:<6}", text("decision")), Style::new().fg(color)),
        Span::raw(rest),
    ])
}
