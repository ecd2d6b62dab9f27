//! The demonstration as text: the table, one line a second, the verdict.
//!
//! Promises: pure; colours only when asked for; every state is a shape and a word. A frame after
//! the first is drawn over the one before it.
//!
//! Never: shows what it was not given.

use std::net::SocketAddr;

use tollgate_core::health::HealthState;
use tollgate_core::time::Span;

use super::LIMIT;
use super::score::Side;
use super::twins::GovernedStatus;
use crate::check::plural;

/// Where the second column starts, in characters.
const DIRECT_AT: usize = 24;
const OURS_AT: usize = 62;

/// Length of a bar at the limit; a bar above the limit is at most twice as long.
const BAR: u64 = 10;

/// From here on the quota counts as used, in thousandths: the remainder is the time of responses in
/// flight and the spacing that lets clicks in.
const QUOTA_FULL: u64 = 970;

const OK: &str = "32";
const STOP: &str = "31";
const WAIT: &str = "33";
const MUTE: &str = "2";
const BOLD: &str = "1";

/// See the module.
pub(super) struct Screen {
    colours: bool,
    gateway_address: SocketAddr,
    /// Lines of the previous frame; 0 = none.
    drawn: usize,
    /// The demonstration has ended.
    is_over: bool,
}

impl Screen {
    pub(super) fn new(colours: bool, gateway_address: SocketAddr) -> Screen {
        Screen {
            colours,
            gateway_address,
            drawn: 0,
            is_over: false,
        }
    }

    /// Marks the next table as the last one, without hints.
    pub(super) fn set_over(&mut self) {
        self.is_over = true;
    }

    /// The table, over the one before it.
    pub(super) fn frame(
        &mut self,
        sides: &[Side; 2],
        now: &GovernedStatus,
        second: u64,
        of: Option<u64>,
    ) -> String {
        let lines = self.lines(sides, now, second, of);
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        let end = if self.drawn > 0 { "\x1b[K\n" } else { "\n" };
        for line in &lines {
            text.push_str(line);
            text.push_str(end);
        }
        self.drawn = lines.len();
        text
    }

    fn lines(
        &self,
        sides: &[Side; 2],
        now: &GovernedStatus,
        second: u64,
        of: Option<u64>,
    ) -> Vec<String> {
        let [direct, ours] = sides;
        let (from, to) = now.outage;
        let limit = if now.halved {
            format!("{LIMIT} calls in any 1 s, then half, announced by header only")
        } else {
            format!("{LIMIT} calls in any 1 s")
        };
        let title = format!(
            "{}    two identical providers · strict: {limit} · same 5 clients ask 60/s    {second} s{}",
            self.paint(BOLD, "tollgate demo"),
            of.map(|of| format!(" of {of}")).unwrap_or_default(),
        );
        let heads = self.row(
            "",
            &self.paint(MUTE, "DIRECT, retry on 429"),
            &self.paint(BOLD, "THROUGH TOLLGATE"),
        );
        let refused = |side: &Side| {
            self.paint(
                if side.violations == 0 { OK } else { STOP },
                &side.violations.to_string(),
            )
        };
        let waits = format!("{}   ({})", p99(ours), waits(now));
        let outage = |side: &Side| format!("{} sent into it, {} lost", side.into_outage, side.lost);
        vec![
            title,
            heads,
            self.row(
                "most in any 1 s",
                &self.bar(direct.most),
                &self.bar(ours.most),
            ),
            self.row("429s from provider", &refused(direct), &refused(ours)),
            self.row("quota used", &percent(direct.used), &percent(ours.used)),
            self.row("user click, p99", &p99(direct), &waits),
            self.row(
                &format!("outage {from}–{to} s"),
                &outage(direct),
                &outage(ours),
            ),
            self.row("provider is", "", &self.states(&now.states)),
            self.hints(),
        ]
    }

    /// Hints on what to try. At the end the line is empty, not missing: it overwrites the previous
    /// one.
    fn hints(&self) -> String {
        if self.is_over {
            return String::new();
        }
        format!(
            " try it   curl -i http://{}/demo/items/1      keys  o outage · h halve limit · u user burst · q end",
            self.gateway_address
        )
    }

    /// The verdict on the governed side.
    pub(super) fn verdict(&self, ours: &Side, waiting: usize, seconds: u64) -> String {
        let mark = |fine: bool| {
            if fine {
                self.paint(OK, "✓")
            } else {
                self.paint(STOP, "✗")
            }
        };
        let quota = match ours.used {
            Some(used) => format!(
                "{} {} of quota",
                mark(used >= QUOTA_FULL),
                percent(ours.used)
            ),
            None => "quota not measured: it ended too early".to_owned(),
        };
        let waiting = match waiting {
            0 => String::new(),
            waiting => format!(", {waiting} still waiting at the end"),
        };
        format!(
            "{} {} in {seconds} s   {quota}   {} {} lost{waiting}      next: tollgate init tmdb\n",
            mark(ours.violations == 0),
            plural(ours.violations, "violation"),
            mark(ours.lost == 0),
            plural(ours.lost, "call"),
        )
    }

    fn row(&self, name: &str, direct: &str, ours: &str) -> String {
        let mut line = format!(" {name}");
        pad(&mut line, DIRECT_AT);
        line.push_str(direct);
        pad(&mut line, OURS_AT);
        line.push_str(ours);
        line
    }

    /// `██████████▓▓▓▓ 28 / 20 ✗`
    fn bar(&self, most: u64) -> String {
        let within = (most.min(LIMIT) * BAR / LIMIT) as usize;
        let above = (most.saturating_sub(LIMIT) * BAR / LIMIT).min(BAR) as usize;
        let fine = most <= LIMIT;
        let (colour, mark) = if fine { (OK, "✓") } else { (STOP, "✗") };
        let bar = format!("{}{}", "█".repeat(within), "▓".repeat(above));
        format!(
            "{} {most} / {LIMIT} {}",
            self.paint(colour, &bar),
            self.paint(colour, mark)
        )
    }

    fn states(&self, states: &[HealthState]) -> String {
        let words: Vec<String> = states
            .iter()
            .map(|state| {
                let (colour, word) = state_label(*state);
                self.paint(colour, word)
            })
            .collect();
        words.join(" → ")
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Whether nothing in the verdict is marked as bad.
pub(super) fn passed(ours: &Side) -> bool {
    ours.violations == 0 && ours.lost == 0 && ours.used.is_none_or(|used| used >= QUOTA_FULL)
}

/// One second of a run without a terminal.
pub(super) fn line(sides: &[Side; 2], now: &GovernedStatus, second: u64) -> String {
    let [direct, ours] = sides;
    let state = now.states.last().map_or("", |state| state_label(*state).1);
    format!(
        "{second:>3} s   direct: {:>4} answered, {:>4} × 429   through Tollgate: {:>4} answered, {:>2} × 429, {:>4} waiting, {state}\n",
        direct.answered, direct.violations, ours.answered, ours.violations, now.waiting,
    )
}

/// How many calls wait, and when the last of them goes if no other call comes: one slot of the
/// limit is reserved for clicks.
fn waits(now: &GovernedStatus) -> String {
    let limit = if now.halved { LIMIT / 2 } else { LIMIT };
    let seconds = (now.waiting as u64).div_ceil(limit - 1);
    match now.waiting {
        0 => "no background waits".to_owned(),
        waiting => format!("background waits: {waiting}, last done in {seconds} s"),
    }
}

fn state_label(state: HealthState) -> (&'static str, &'static str) {
    match state {
        HealthState::Normal => (OK, "● Flowing"),
        HealthState::Throttle => (WAIT, "◐ Slowed"),
        HealthState::Sleep => (STOP, "■ Sleeping"),
        HealthState::HalfOpen => (WAIT, "◌ Testing"),
        HealthState::CacheOnly => (WAIT, "▤ Cache only"),
    }
}

fn percent(thousandths: Option<u64>) -> String {
    match thousandths {
        Some(used) => format!("{}.{} %", used / 10, used % 10),
        None => "not measured yet".to_owned(),
    }
}

fn p99(side: &Side) -> String {
    side.click_p99.map_or_else(
        || "none yet".to_owned(),
        |p99| match p99 {
            Span(us) if us >= 1_000_000 => format!("{}.{} s", us / 1_000_000, us / 100_000 % 10),
            Span(us) => format!("{} ms", us.div_ceil(1_000)),
        },
    )
}

/// Blanks up to a column; at least one. Colours take no room.
fn pad(line: &mut String, column: usize) {
    let mut width = 0;
    let mut is_colour = false;
    for c in line.chars() {
        match c {
            '\x1b' => is_colour = true,
            'm' if is_colour => is_colour = false,
            _ if is_colour => {}
            _ => width += 1,
        }
    }
    let blanks = column.saturating_sub(width).max(1);
    line.extend(std::iter::repeat_n(' ', blanks));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides() -> [Side; 2] {
        let direct = Side {
            violations: 431,
            most: 58,
            used: Some(712),
            click_p99: Some(Span::from_millis(9_800)),
            into_outage: 148,
            answered: 312,
            lost: 63,
        };
        let ours = Side {
            most: 20,
            used: Some(991),
            click_p99: Some(Span::from_millis(31)),
            into_outage: 2,
            answered: 240,
            ..Side::default()
        };
        [direct, ours]
    }

    fn now() -> GovernedStatus {
        GovernedStatus {
            waiting: 212,
            states: vec![
                HealthState::Normal,
                HealthState::Sleep,
                HealthState::HalfOpen,
                HealthState::Normal,
            ],
            outage: (8, 11),
            halved: false,
        }
    }

    fn screen(colours: bool) -> Screen {
        Screen::new(colours, SocketAddr::from(([127, 0, 0, 1], 4290)))
    }

    #[test]
    fn the_table_shows_both_sides_and_the_verdict() {
        let mut screen = screen(false);
        let text =
            screen.frame(&sides(), &now(), 12, Some(20)) + &screen.verdict(&sides()[1], 0, 20);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_last_table_has_no_hints_and_shows_waiting_calls() {
        let mut screen = screen(false);
        screen.set_over();
        let table = screen.frame(&sides(), &now(), 20, Some(20));
        assert!(
            !table.contains("curl") && !table.contains("keys"),
            "{table}"
        );
        let verdict = screen.verdict(&sides()[1], 364, 20);
        assert!(
            verdict.contains("✓ 0 calls lost, 364 still waiting at the end"),
            "{verdict}"
        );
    }

    #[test]
    fn an_unmeasured_quota_shows_no_number_and_every_cross_fails_the_run() {
        let with = |change: fn(&mut Side)| {
            let [_, mut ours] = sides();
            change(&mut ours);
            ours
        };
        let unmeasured = with(|side| side.used = None);
        let verdict = screen(false).verdict(&unmeasured, 0, 5);
        assert!(
            !verdict.contains('%') && !verdict.contains('✗'),
            "{verdict}"
        );
        for (side, fine) in [
            (with(|_| {}), true),
            (unmeasured, true),
            (with(|side| side.used = Some(900)), false),
            (with(|side| side.lost = 1), false),
            (with(|side| side.violations = 1), false),
        ] {
            assert_eq!(passed(&side), fine, "{side:?}");
            assert_eq!(screen(false).verdict(&side, 0, 20).contains('✗'), !fine);
        }
    }

    #[test]
    fn a_second_frame_is_drawn_over_the_first() {
        let mut screen = screen(false);
        let first = screen.frame(&sides(), &now(), 1, Some(20));
        let second = screen.frame(&sides(), &now(), 2, Some(20));
        assert!(!first.contains('\x1b'));
        assert!(second.starts_with(&format!("\x1b[{}A", first.lines().count())));
    }

    #[test]
    fn colours_do_not_move_the_columns() {
        let plain = screen(false).lines(&sides(), &now(), 1, Some(20));
        let painted = screen(true).lines(&sides(), &now(), 1, Some(20));
        for (plain, painted) in plain.iter().zip(&painted) {
            assert_eq!(plain, &without_colours(painted));
        }
    }

    fn without_colours(text: &str) -> String {
        let mut parts = text.split('\x1b');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |line, part| {
            line + part.split_once('m').map_or("", |(_, rest)| rest)
        })
    }
}
