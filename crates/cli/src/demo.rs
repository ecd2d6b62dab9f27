//! `tollgate demo`: twin strict providers, the same greedy clients, one side direct, one through
//! Tollgate, with an outage on the way.
//!
//! Promises: violations come from the providers' own logs; lost and completed calls come from the
//! clients. Exit 0 only if the provider behind Tollgate counted no violation and no call through
//! Tollgate was lost; a busy machine alone fails nothing. On a terminal the table is drawn in place and keys inject faults; elsewhere
//! there is one line a second, then the table.
//!
//! Never: calls another machine. Everything is on loopback.

mod twins;
mod clients;
mod outages;
mod page;
mod score;
mod screen;
mod picture;
mod keys;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use keys::{DemoKey, Keys};
use score::Side;
use screen::Screen;
use twins::Twins;

/// The limit that both providers enforce and that Tollgate is configured with.
const LIMIT: u64 = 20;

/// The time between two frames: bars move smoothly, and drawing costs next to nothing.
const FRAME: Duration = Duration::from_millis(250);
const FRAMES_PER_SECOND: u64 = 4;

/// How long it runs without `--seconds` and without a terminal; also the base of the planned
/// outage.
const SECONDS: u64 = 20;

/// The shortest run: in a shorter one the outage and its aftermath leave no second in which quota
/// use can be measured.
const SECONDS_MIN: u64 = 10;

/// The longest run: the providers' logs hold every call of it.
const SECONDS_MAX: u64 = 600;

const EXAMPLES: &str = "\
Example:
  tollgate demo --seconds 20";

/// Watch two identical strict providers: one called directly, one through Tollgate
///
/// On a terminal: o = outage, h = halve the limit, u = user burst, q = end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How long it runs, 10 to 600 s; default: until q on a terminal (10 minutes at most), else 20 s
    #[arg(long, value_parser = clap::value_parser!(u64).range(SECONDS_MIN..=SECONDS_MAX))]
    seconds: Option<u64>,

    /// Write the last table as an SVG picture, for light and dark themes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Demo {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        let ended = runtime.block_on(self.show());
        // The thread that reads keys blocks in a system call; do not wait for it.
        runtime.shutdown_background();
        ended
    }

    async fn show(&self) -> anyhow::Result<ExitCode> {
        let is_watched = io::stdout().is_terminal();
        let length = RunLength::of(self.seconds, is_watched && io::stdin().is_terminal());
        let mut twins = Twins::start(length).await?;
        let (sides, seconds) = if is_watched {
            draw(&mut twins, length).await?
        } else {
            print_lines(&twins, length).await?
        };
        if let Some(path) = &self.svg {
            let mut screen = Screen::new(true, twins.addresses());
            screen.set_over();
            let now = twins.now();
            let table = screen.frame(&sides, &now, seconds, length.shown);
            let text = table + &screen.verdict(&sides[1], now.waiting, seconds);
            std::fs::write(path, picture::svg(&text))
                .with_context(|| format!("could not write {}", path.display()))?;
        }
        twins.end().await;
        Ok(if screen::passed(&sides[1]) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// How long it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunLength {
    /// It ends after this many seconds, or earlier by key.
    most: u64,
    /// The length that is shown; `None` = it runs until a key is pressed.
    shown: Option<u64>,
    /// The planned outage is in the middle of this many seconds.
    planned: u64,
}

impl RunLength {
    fn of(wanted: Option<u64>, has_keys: bool) -> RunLength {
        let shown = wanted.or((!has_keys).then_some(SECONDS));
        RunLength {
            most: shown.unwrap_or(SECONDS_MAX),
            shown,
            planned: shown.unwrap_or(SECONDS),
        }
    }
}

/// Draws the table in place and handles keys; returns both sides and how long it ran.
async fn draw(twins: &mut Twins, length: RunLength) -> anyhow::Result<([Side; 2], u64)> {
    let mut screen = Screen::new(!is_plain(), twins.addresses());
    let mut keys = Keys::listen();
    let mut beat = tokio::time::interval(FRAME);
    let mut seconds = length.most;
    'frames: for frame in 0..=length.most * FRAMES_PER_SECOND {
        beat.tick().await;
        while let Some(key) = keys.pressed() {
            match key {
                DemoKey::Outage => twins.outage()?,
                DemoKey::Halve => twins.halve()?,
                DemoKey::Burst => twins.burst(),
                DemoKey::Quit => {
                    seconds = frame / FRAMES_PER_SECOND;
                    break 'frames;
                }
            }
        }
        let second = frame / FRAMES_PER_SECOND;
        print(&screen.frame(&twins.sides(), &twins.now(), second, length.shown))?;
    }
    drop(keys); // the terminal is as it was, before the last lines
    print_summary(twins, &mut screen, seconds, length)
}

/// One line a second, then the table once.
async fn print_lines(twins: &Twins, length: RunLength) -> anyhow::Result<([Side; 2], u64)> {
    let mut screen = Screen::new(false, twins.addresses());
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    beat.tick().await;
    print(&format!(
        "look: http://{} shows both sides\n",
        twins.addresses().page
    ))?;
    print(screen::LINE_HEADS)?;
    for second in 1..=length.most {
        beat.tick().await;
        print(&screen::line(&twins.sides(), &twins.now(), second))?;
    }
    print_summary(twins, &mut screen, length.most, length)
}

/// Prints the last table and the verdict.
fn print_summary(
    twins: &Twins,
    screen: &mut Screen,
    seconds: u64,
    length: RunLength,
) -> anyhow::Result<([Side; 2], u64)> {
    let sides = twins.sides();
    let now = twins.now();
    screen.set_over();
    print(&screen.frame(&sides, &now, seconds, length.shown))?;
    print(&screen.verdict(&sides[1], now.waiting, seconds))?;
    Ok((sides, seconds))
}

fn is_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn print(text: &str) -> io::Result<()> {
    let mut out = crate::out::out();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a demonstration runs in real time"
)]
async fn sleep(span: Duration) {
    tokio::time::sleep(span).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_length_the_demo_runs_until_a_key_is_pressed() {
        let length = |most, shown, planned| RunLength {
            most,
            shown,
            planned,
        };
        assert_eq!(RunLength::of(None, true), length(600, None, 20));
        assert_eq!(RunLength::of(None, false), length(20, Some(20), 20));
        assert_eq!(RunLength::of(Some(60), true), length(60, Some(60), 60));
    }
}
