//! `tollgate top`: the providers of a running daemon in a terminal, live.
//!
//! Promises: shows what `tollgate status` shows, read again each second; ends with `q`, Escape or Ctrl-C and leaves the
//! terminal as it was. Without a terminal it prints one picture.
//!
//! Never: changes anything, and shows no key.

mod view;

use std::cmp::Reverse;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hyper::Method;
use ratatui::Terminal;
use ratatui::backend::{Backend, TestBackend};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;

use crate::admin_client::{AdminClient, segment};
use crate::options::Options;
use crate::provider_state::ProviderState;
use view::{Figures, Picture};

const EXAMPLES: &str = "\
Examples:
  tollgate top
  tollgate top --admin 127.0.0.1:4291
  tollgate top | cat       # one picture, for a log or a message";

/// The size of the picture that is printed without a terminal.
const PRINTED: (u16, u16) = (100, 30);

/// How many providers are asked for their details each time, worst first: as many as a tall screen shows.
const PROVIDERS_MAX: usize = 50;

/// How many of the last decisions are shown.
const DECISIONS: usize = 8;

/// Watch providers, limits, waiting calls and the last decisions in the terminal
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Top {
    /// How often to read, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,

    #[command(flatten)]
    options: Options,
}

impl Top {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let remote = AdminClient::find(&self.options)?;
        if !io::stdout().is_terminal() {
            let picture = read(&remote)?;
            let text = printed(&picture)?;
            crate::out::out().write_all(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        // Read once before the screen changes: an error is a plain line.
        let first = read(&remote)?;
        let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
        let ended = watch(
            &mut terminal,
            &remote,
            first,
            Duration::from_secs(self.every),
        );
        ratatui::restore();
        ended.map(|()| ExitCode::SUCCESS)
    }
}

/// Draws until the user ends it.
fn watch<B: Backend<Error: Send + Sync + 'static>>(
    terminal: &mut Terminal<B>,
    remote: &AdminClient,
    mut picture: Picture,
    every: Duration,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| picture.draw(frame))?;
        if event::poll(every)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let is_ctrl_c = key.code == KeyCode::Char('c')
                        && key.modifiers.contains(KeyModifiers::CONTROL);
                    if is_ctrl_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                _ => continue, // drawn again, in the new size
            }
        }
        match read(remote) {
            Ok(next) => picture = next,
            // The last picture stays, with the reason.
            Err(error) => picture.problem = Some(format!("{error:#}")),
        }
    }
}

/// Everything that is shown.
fn read(remote: &AdminClient) -> anyhow::Result<Picture> {
    let list = remote.request(Method::GET, "/v1/providers", None)??;
    let mut providers = items(&list["providers"]);
    let waiting = providers.iter().filter_map(|one| one["waiting"].as_u64());
    let waiting = waiting.sum();
    // What is not asked is what flows.
    providers.sort_by_key(urgency);
    let mut details = Vec::new();
    for provider in providers.iter().take(PROVIDERS_MAX) {
        let name = provider["name"].as_str().unwrap_or_default();
        let path = format!("/v1/providers/{}", segment(name)?);
        // One that was removed meanwhile is not shown.
        details.extend(remote.request(Method::GET, &path, None)?.ok());
    }
    let decisions = remote.request(
        Method::GET,
        &format!("/v1/decisions?limit={DECISIONS}"),
        None,
    )??;
    let alerts = remote.request(Method::GET, "/api/rate-limit/metrics", None)??;
    let history = remote.request(Method::GET, "/v1/history?span=1m", None)??;
    Ok(Picture {
        providers: details,
        hidden: providers.len().saturating_sub(PROVIDERS_MAX),
        waiting,
        figures: Some(Figures::of(&history)),
        decisions: items(&decisions["decisions"]),
        alerts: items(&alerts["alerts"]),
        problem: list["problems"]
            .get(0)
            .and_then(Value::as_str)
            .map(str::to_owned),
    })
}

/// Worst first, then whose queue is longest.
fn urgency(provider: &Value) -> (u8, Reverse<u64>) {
    let waiting = provider["waiting"].as_u64().unwrap_or_default();
    (ProviderState::of(provider).rank, Reverse(waiting))
}

fn items(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The picture as plain text.
fn printed(picture: &Picture) -> anyhow::Result<String> {
    printed_in(picture, PRINTED)
}

/// The same in a terminal of this size.
fn printed_in(picture: &Picture, (columns, rows): (u16, u16)) -> anyhow::Result<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows))?;
    terminal.draw(|frame| picture.draw(frame))?;
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width).max(1);
    let symbols: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = symbols
        .chunks(width)
        .map(|row| row.concat().trim_end().to_owned());
    let text = lines.collect::<Vec<_>>().join("\n");
    Ok(text.trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn provider(name: &str, state: &str, queue: &Value, limits: &Value) -> Value {
        json!({
            "name": name, "health": { "state": state, "hold": null, "err_rate_30s": 0.125, "count_429": 3 },
            "queue": queue, "limits": limits, "cooldowns": [], "degraded": false,
            "saved": { "hits": 75, "stale": 0 }, "store": { "state": "up" },
        })
    }

    #[test]
    fn the_picture_shows_providers_limits_alerts_and_decisions() {
        let queue = json!({
            "high": 1, "normal": 4, "low": 0, "eta": 12.4, "starved": 0,
            "callers": {
                "web": { "waiting": 1, "starved": 0, "eta": 0.5 },
                "batch": { "waiting": 4, "starved": 0, "eta": 12.4 },
            },
        });
        let limits = json!([
            { "name": "40/10s", "limit": 40, "used": 40, "remaining": 0 },
            { "name": "1000/1d", "limit": 1_000, "used": 250, "remaining": 750 },
        ]);
        let none = json!({ "high": 0, "normal": 0, "low": 0, "eta": 0.0 });
        let mut second = provider("odds", "sleep", &none, &json!([]));
        second["cooldowns"] =
            json!([{ "of": "provider", "until": 45_605.0, "reason": "429, Retry-After 1 min" }]);
        let picture = Picture {
            providers: vec![provider("tmdb", "normal", &queue, &limits), second],
            hidden: 0,
            waiting: 5,
            figures: Some(Figures {
                calls: 12.4,
                saved: 83,
                sent: 17,
                limited: 3,
            }),
            decisions: vec![json!({
                "id": "4f1c2a", "ts": 45_605.25, "provider": "tmdb", "method": "GET", "path": "/3/movie/550",
                "decision": "queue", "reason": "limit", "limit": "40/10s", "wait": 2.5, "status": 200, "source": "upstream",
            })],
            alerts: vec![
                json!({ "level": "warning", "message": "Warning: tmdb has 250 requests remaining" }),
            ],
            problem: None,
        };
        insta::assert_snapshot!(printed(&picture).expect("a picture"));
    }

    /// A daemon that has just started said "-0.0 calls/s".
    #[test]
    fn no_calls_are_zero_calls_a_second() {
        let figures = Figures::of(&json!({ "calls": [] }));
        assert!(figures.calls.is_sign_positive(), "{figures:?}");
    }

    /// There was no figure of all, no reason of a wait, no reset, and the day's count was cut off.
    #[test]
    fn eighty_columns_show_why_until_when_and_how_much_remains() {
        let at = |hold: Value, state: &str| json!({ "state": state, "hold": hold, "sleep_until": 45_605.0, "rate": 17.0, "err_rate_30s": 0.25 });
        let day = |remaining: u64| json!({ "name": "1000/1d", "limit": 1_000, "depth": 1_000, "period": 86_400.0, "used": 1_000 - remaining, "remaining": remaining, "reset_at": 86_400.0 });
        let second = json!({ "name": "35/1s", "limit": 35, "depth": 35, "period": 1.0, "used": 35, "remaining": 0, "reset_at": 45_605.0 });
        let waiting = json!({ "high": 0, "normal": 90, "low": 0, "eta": 45.0, "starved": 0, "waiting_for": { "limit": 90 }, "callers": { "backfill": { "waiting": 90, "starved": 0, "eta": 45.0 } } });
        let none = json!({ "high": 0, "normal": 0, "low": 0, "eta": 0.0 });
        let mut slowed = provider("odds", "throttle", &waiting, &json!([second, day(600)]));
        slowed["health"] = at(Value::Null, "throttle");
        let mut paused = provider("igdb", "sleep", &none, &json!([day(750)]));
        paused["health"] = at(json!("paused"), "sleep");
        let history = json!({ "calls": [9, 9, 9, 10, 12, 14, 11, 15], "saved": [8], "sent_high": [1], "sent_normal": [1], "sent_low": [0], "limited": [2, 1] });
        let picture = Picture {
            providers: vec![
                slowed,
                provider("omdb", "normal", &none, &json!([day(0)])),
                paused,
            ],
            waiting: 90,
            figures: Some(Figures::of(&history)),
            ..Picture::default()
        };
        insta::assert_snapshot!(printed_in(&picture, (80, 14)).expect("a picture"));
    }

    /// The first 50 in the order of their names were shown, whatever state they were in.
    #[test]
    fn the_worst_providers_are_shown_and_the_rest_is_counted() {
        let one = |name: &str, state: &str, waiting: u64| json!({ "name": name, "state": state, "waiting": waiting });
        let mut all = [
            one("a", "normal", 0),
            one("b", "normal", 9),
            one("z", "sleep", 0),
        ];
        all.sort_by_key(urgency);
        let names = all.iter().filter_map(|one| one["name"].as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["z", "b", "a"]);
        let picture = Picture {
            providers: vec![provider("z", "sleep", &json!({}), &json!([]))],
            hidden: 2,
            waiting: 9,
            ..Picture::default()
        };
        let text = printed(&picture).expect("a picture");
        let title = "tollgate: 3 providers, 9 calls waiting; the worst 1 shown, 2 more not";
        assert!(text.starts_with(title), "{text}");
    }

    #[test]
    fn a_problem_and_no_providers_are_said() {
        let picture = Picture {
            problem: Some("error: the store is lost: disk full".to_owned()),
            ..Picture::default()
        };
        let text = printed(&picture).expect("a picture");
        assert!(
            text.contains("the store is lost: disk full") && text.contains("No provider"),
            "{text}"
        );
    }
}
