//! `tollgate demo`: twin strict providers, the same greedy clients, one side direct, one through
//! Tollgate, with an outage on the way.
//!
//! Promises: what providers say comes from the providers' own logs; what callers met comes from the
//! callers. Exit 0 only if the provider behind Tollgate counted no violation. On a terminal the table
//! is drawn in place and keys make trouble; elsewhere there is one line a second, then the table.
//!
//! Never: leaves this machine. Everything is on loopback.

mod twins;
mod crowd;
mod trouble;
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

use keys::{Key, Keys};
use score::Side;
use screen::Screen;
use twins::Twins;

/// What both providers enforce, and what Tollgate is told of it.
const LIMIT: u64 = 20;

/// Redrawn so often: often enough for a bar to glide, seldom enough to cost nothing.
const FRAME: Duration = Duration::from_millis(250);
const FRAMES_PER_SECOND: u64 = 4;

const EXAMPLES: &str = "\
Example:
  tollgate demo --seconds 20";

/// Watch two identical strict providers: one called directly, one through Tollgate
///
/// On a terminal: o = outage, h = halve the limit, u = user burst, q = end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How long it runs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,

    /// Keep the last table as a picture, for both themes
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
        // The reader of keys waits in a system call; nobody waits for it.
        runtime.shutdown_background();
        ended
    }

    async fn show(&self) -> anyhow::Result<ExitCode> {
        let mut twins = Twins::start(self.seconds).await?;
        let sides = if io::stdout().is_terminal() {
            self.draw(&mut twins).await?
        } else {
            self.list(&twins).await?
        };
        if let Some(path) = &self.svg {
            let mut screen = Screen::new(true, twins.door());
            let table = screen.frame(&sides, &twins.now(), self.seconds, self.seconds);
            let text = table + "\n" + &screen.verdict(&sides[1], self.seconds);
            std::fs::write(path, picture::svg(&text))
                .with_context(|| format!("could not write {}", path.display()))?;
        }
        twins.end().await;
        Ok(if sides[1].violations == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The table, drawn in place, with keys.
    async fn draw(&self, twins: &mut Twins) -> anyhow::Result<[Side; 2]> {
        let mut screen = Screen::new(!is_plain(), twins.door());
        let mut keys = Keys::listen();
        let mut beat = tokio::time::interval(FRAME);
        for frame in 0..=self.seconds * FRAMES_PER_SECOND {
            beat.tick().await;
            while let Some(key) = keys.pressed() {
                match key {
                    Key::Outage => twins.outage()?,
                    Key::Halve => twins.halve()?,
                    Key::Burst => twins.burst(),
                    Key::Quit => {
                        return self.last(twins, &mut screen, frame / FRAMES_PER_SECOND, keys);
                    }
                }
            }
            let seconds = frame / FRAMES_PER_SECOND;
            say(&screen.frame(&twins.sides(), &twins.now(), seconds, self.seconds))?;
        }
        self.last(twins, &mut screen, self.seconds, keys)
    }

    fn last(
        &self,
        twins: &Twins,
        screen: &mut Screen,
        seconds: u64,
        keys: Keys,
    ) -> anyhow::Result<[Side; 2]> {
        drop(keys); // the terminal is as it was, before the last lines
        let sides = twins.sides();
        say(&screen.frame(&sides, &twins.now(), seconds, self.seconds))?;
        say(&screen.verdict(&sides[1], seconds))?;
        Ok(sides)
    }

    /// One line a second, then the table once.
    async fn list(&self, twins: &Twins) -> anyhow::Result<[Side; 2]> {
        let mut screen = Screen::new(false, twins.door());
        let mut beat = tokio::time::interval(Duration::from_secs(1));
        beat.tick().await;
        for second in 1..=self.seconds {
            beat.tick().await;
            say(&screen::line(&twins.sides(), &twins.now(), second))?;
        }
        let sides = twins.sides();
        say(&screen.frame(&sides, &twins.now(), self.seconds, self.seconds))?;
        say(&screen.verdict(&sides[1], self.seconds))?;
        Ok(sides)
    }
}

fn is_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a demonstration runs in real time"
)]
async fn rest(span: Duration) {
    tokio::time::sleep(span).await;
}
