//! The demonstration as text: the table, one line a second, the verdict.
//!
//! Promises: pure; colours only when asked for; every state is a shape and a word; no line is wider
//! than 80 columns. A frame after the first is drawn over the one before it.
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
const DIRECT_AT: usize = 21;
const OURS_AT: usize = 49;

/// The width of a terminal: a wider line would wrap, and the next frame would miss its place.
const COLUMNS: usize = 80;

/// Length of a bar at the limit; a bar above the limit is at most twice as long.
const BAR: u64 = 7;

/// From here on the quota counts as used, in thousandths: the remainder is the time of responses in
/// flight and the spacing that lets clicks in.
const QUOTA_FULL: u64 = 970;

/// What separates two states.
const ARROW: &str = " → ";

const OK: &str = "32";
const STOP: &str = "31";
const WAIT: &str = "33";
const MUTE: &str = "2";
const BOLD: &str = "1";

/// Where to try it, and where to look.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoAddresses {
    pub(super) gateway: SocketAddr,
    pub(super) page: SocketAddr,
}

/// See the module.
pub(super) struct Screen {
    colours: bool,
    addresses: DemoAddresses,
    /// Lines of the previous frame; 0 = none.
    drawn: usize,
    /// The demonstration has ended.
    is_over: bool,
}

impl Screen {
    pub(super) fn new(colours: bool, addresses: DemoAddresses) -> Screen {
        Screen {
            colours,
            addresses,
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
            format!("{LIMIT} calls in any 1 s, then half")
        } else {
            format!("{LIMIT} calls in any 1 s")
        };
        let title = format!(
            "{}  strict twins: {limit}  {second} s{}",
            self.paint(BOLD, "tollgate demo"),
            of.map(|of| format!(" of {of}")).unwrap_or_default(),
        );
        let heads = self.row(
            "5 clients, 60/s",
            &self.paint(MUTE, "DIRECT, retry on 429"),
            &self.paint(BOLD, "THROUGH TOLLGATE"),
        );
        let refused = |side: &Side| {
            self.paint(
                if side.violations == 0 { OK } else { STOP },
                &side.violations.to_string(),
            )
        };
        // Calls are lost without an outage too, when every retry gets a 429.
        let outage = |side: &Side| match second < from {
            true => format!("not yet; {} lost so far", side.lost),
            false => format!("{} sent, {} lost", side.into_outage, side.lost),
        };
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
            self.row("user click, p99", &p99(direct), &p99(ours)),
            self.row("background waits", "", &waits(now)),
            self.row(
                &format!("outage {from}–{to} s"),
                &outage(direct),
                &outage(ours),
            ),
            self.row("provider is", &self.states(&now.states), ""),
            self.hint(&format!(
                " try it   curl -i http://{}/demo/items/1",
                self.addresses.gateway
            )),
            self.hint(&format!(" look     http://{}", self.addresses.page)),
            self.hint(" keys     o outage · h halve limit · u user burst · q end"),
        ]
    }

    /// What to try. At the end the line is empty, not missing: it overwrites the previous one.
    fn hint(&self, text: &str) -> String {
        if self.is_over {
            return String::new();
        }
        text.to_owned()
    }

    /// The verdict on the governed side. Quota use is a figure, not a verdict: on a busy machine
    /// every response is late, and that is nobody's fault.
    pub(super) fn verdict(&self, ours: &Side, waiting: usize, seconds: u64) -> String {
        let mark = |fine: bool| {
            if fine {
                self.paint(OK, "✓")
            } else {
                self.paint(STOP, "✗")
            }
        };
        let quota = match ours.used {
            Some(used) if used >= QUOTA_FULL => {
                format!("{} {} of quota", mark(true), percent(ours.used))
            }
            Some(_) => format!("{} {} of quota", self.paint(WAIT, "·"), percent(ours.used)),
            None => "quota not measured".to_owned(),
        };
        let mut text = format!(
            "{} {} in {seconds} s   {quota}   {} {} lost\n",
            mark(ours.violations == 0),
            plural(ours.violations, "violation"),
            mark(ours.lost == 0),
            plural(ours.lost, "call"),
        );
        if ours.used.is_some_and(|used| used < QUOTA_FULL) {
            let usual = percent(Some(QUOTA_FULL));
            text.push_str(&format!(
                "· an idle machine uses more than {usual}; a busy one responds late\n"
            ));
        }
        if waiting > 0 {
            text.push_str(&format!(
                "{} still waiting at the end\n",
                plural(waiting, "call")
            ));
        }
        text.push_str("next: tollgate init tmdb\n");
        text
    }

    fn row(&self, name: &str, direct: &str, ours: &str) -> String {
        let mut line = format!(" {name}");
        pad(&mut line, DIRECT_AT);
        line.push_str(direct);
        if !ours.is_empty() {
            pad(&mut line, OURS_AT);
            line.push_str(ours);
        }
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

    /// The latest states, as many as one line holds.
    fn states(&self, states: &[HealthState]) -> String {
        let width = |states: &[HealthState]| {
            let words = states
                .iter()
                .map(|state| state_label(*state).1.chars().count());
            words.sum::<usize>() + states.len().saturating_sub(1) * ARROW.chars().count()
        };
        let most = COLUMNS - DIRECT_AT;
        let first = (0..states.len())
            .find(|&first| width(states.get(first..).unwrap_or_default()) <= most)
            .unwrap_or(states.len());
        let shown: Vec<String> = states
            .iter()
            .skip(first)
            .map(|state| {
                let (colour, word) = state_label(*state);
                self.paint(colour, word)
            })
            .collect();
        shown.join(ARROW)
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
    ours.violations == 0 && ours.lost == 0
}

/// The heads above the lines of a run without a terminal.
pub(super) const LINE_HEADS: &str = concat!(
    "        DIRECT              THROUGH TOLLGATE\n",
    "        answered    429s    answered    429s   waiting   provider is\n"
);

/// One second of a run without a terminal.
pub(super) fn line(sides: &[Side; 2], now: &GovernedStatus, second: u64) -> String {
    let [direct, ours] = sides;
    let state = now.states.last().map_or("", |state| state_label(*state).1);
    format!(
        "{second:>4} s  {:>8}  {:>6}    {:>8}  {:>6}   {:>7}   {state}\n",
        direct.answered, direct.violations, ours.answered, ours.violations, now.waiting,
    )
}

/// How many calls wait, and when the last of them goes if no other call comes: one slot of the
/// limit is reserved for clicks.
fn waits(now: &GovernedStatus) -> String {
    let limit = if now.halved { LIMIT / 2 } else { LIMIT };
    let seconds = (now.waiting as u64).div_ceil(limit - 1);
    match now.waiting {
        0 => "none".to_owned(),
        waiting => format!("{waiting}, last done in {seconds} s"),
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
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = DemoAddresses {
            gateway: at(4290),
            page: at(4291),
        };
        Screen::new(colours, addresses)
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
            verdict.contains("✓ 0 calls lost\n364 calls still waiting at the end\n"),
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
            // Noise of the machine is no cross.
            (with(|side| side.used = Some(900)), true),
            (with(|side| side.lost = 1), false),
            (with(|side| side.violations = 1), false),
        ] {
            assert_eq!(passed(&side), fine, "{side:?}");
            assert_eq!(screen(false).verdict(&side, 0, 20).contains('✗'), !fine);
        }
        let noisy = with(|side| side.used = Some(900));
        let verdict = screen(false).verdict(&noisy, 0, 20);
        assert!(verdict.contains("· 90.0 % of quota"), "{verdict}");
        assert!(verdict.contains("a busy one responds late"), "{verdict}");
    }

    /// A line that wraps would leave every later frame one line too low.
    #[test]
    fn no_line_is_wider_than_80_columns() {
        let worst = Side {
            violations: 34_567,
            most: 999,
            used: Some(1_000),
            click_p99: Some(Span::from_secs(599)),
            into_outage: 9_999,
            answered: 35_999,
            lost: 9_999,
        };
        let sides = [worst.clone(), worst];
        let now = GovernedStatus {
            waiting: 99_999,
            states: [
                HealthState::CacheOnly,
                HealthState::Sleep,
                HealthState::HalfOpen,
            ]
            .repeat(3),
            outage: (596, 599),
            halved: true,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 65_535));
        let addresses = DemoAddresses {
            gateway: address,
            page: address,
        };
        let mut screen = Screen::new(false, addresses);
        let mut text = screen.frame(&sides, &now, 600, Some(600));
        text.push_str(&screen.verdict(&sides[1], 99_999, 600));
        let unmeasured = Side {
            used: None,
            ..sides[1].clone()
        };
        text.push_str(&screen.verdict(&unmeasured, 0, 600));
        text.push_str(LINE_HEADS);
        text.push_str(&line(&sides, &now, 600));
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
        let last = format!("{ARROW}◌ Testing");
        assert!(text.contains(&last), "the latest state is shown: {text}");
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
