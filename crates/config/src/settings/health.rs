//! The settings of the health machine, with the names and defaults of the documentation.
//!
//! Promises: `health: adaptive`, `breaker` or `off` is the whole block with its defaults.
//!
//! Never: is the machine. That is `core`'s.

use tollgate_core::time::Span;

use crate::amount::{self, Millionths};
use crate::field::{At, Fields, Setting, block, read_text, words};
use crate::problem::Problems;

words! {
    /// Which machine.
    Mode {
        /// Error ratio, throttle, sleep.
        Adaptive = "adaptive",
        /// Consecutive failures only: closed, open, half open.
        Breaker = "breaker",
        /// None: every call goes.
        Off = "off",
    }
}

words! {
    /// What a call meets while the scope is closed.
    WhenBlocked {
        /// It waits if its deadline allows.
        Wait = "wait",
        /// It is refused at once.
        Reject = "reject",
    }
}

words! {
    /// After which outages the rate climbs slowly.
    After {
        /// After refusals: the provider asked for less.
        Refusals = "429",
        /// After any.
        Any = "any",
    }
}

block! {
    /// How the rate climbs after a recovery.
    Ramp {
        /// How much faster at each step.
        factor: Millionths = Millionths(1_100_000),
        /// How long a step takes.
        every: Span = Span::from_secs(300),
        /// After what.
        after: After = After::Refusals,
    }
}

/// How long until something happens by itself; a bare number is minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minutes(pub Span);

impl Setting for Minutes {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Minutes> {
        let read = |text: &str| match amount::number(text) {
            Some(minutes) => Some(Minutes(Span::from_secs(minutes.saturating_mul(60)))),
            None => amount::span(text).map(Minutes),
        };
        read_text(
            at,
            problems,
            read,
            "is not a length of time",
            "write `15m`, a number of minutes, or `off`",
        )
    }
}

block! {
    /// Every threshold of the health machine.
    Thresholds {
        /// Which machine.
        mode: Mode = Mode::Adaptive,
        /// Results older than this do not count in the error ratio.
        window: Span = Span::from_secs(30),
        /// Nor do results before the last so many.
        window_results: u64 = 300,
        /// With fewer results the ratio is 0: one failure of two calls is no trend.
        min_results: u64 = 10,
        /// On how many evaluations in a row a ratio must hold, so that nothing flaps.
        confirm: u64 = 2,
        /// Ratio at which calls are throttled.
        p_throttle: Millionths = Millionths(200_000),
        /// Refusals in a row at which calls are throttled.
        n_throttle: u64 = 3,
        /// What is left of rate and concurrency then.
        throttle_factor: Millionths = Millionths(500_000),
        /// But not fewer calls a second than this.
        throttle_min_rate: u64 = 5,
        /// Nor fewer at a time.
        throttle_min_concurrency: u64 = 1,
        /// Ratio below which a recovery counts.
        p_recover: Millionths = Millionths(100_000),
        /// Successes until a recovery is tried.
        s_recover: u64 = 10,
        /// Refusals in a row at which the provider sleeps (the name is historical).
        n_cacheonly: u64 = 5,
        /// Ratio at which the provider sleeps.
        p_sleep: Millionths = Millionths(600_000),
        /// For how long that ratio must hold.
        p_sleep_for: Span = Span::from_secs(300),
        /// The shortest sleep.
        sleep_min: Span = Span::from_secs(2),
        /// The longest sleep that we compute; the provider's own time is not capped.
        sleep_max: Span = Span::from_secs(300),
        /// How much longer each further sleep is.
        cooldown_factor: Millionths = Millionths(2_000_000),
        /// The first sleep.
        sleep_first: Span = Span::from_secs(30),
        /// What a `Retry-After` of 0 means.
        retry_after_floor: Span = Span::from_secs(1),
        /// Successful probes until all is well.
        probe_success: u64 = 5,
        /// Probes a second.
        probe_rate: u64 = 3,
        /// Probes at a time.
        probe_concurrency: u64 = 1,
        /// Ratio below which probes count.
        p_probe: Millionths = Millionths(100_000),
        /// How the rate climbs afterwards.
        ramp: Ramp = Ramp::default(),
        /// When cache-only ends by itself.
        auto_recover: Option<Minutes> = None,
        /// After how much unbroken trouble only the cache is used.
        cache_only_after: Option<Minutes> = None,
        /// What calls meet while closed.
        when_blocked: WhenBlocked = WhenBlocked::Wait,
        /// Failures of any kind in a row that close it.
        failure_threshold: Option<u64> = Some(5),
        /// How long the breaker stays open.
        reset_timeout: Span = Span::from_secs(300),
        /// Successes that close the breaker again.
        success_threshold: u64 = 2,
    }
}

/// The health block: a word or every threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health(pub Thresholds);

impl Health {
    /// The names of the settings.
    pub const NAMES: &[&str] = Thresholds::NAMES;
}

impl Setting for Health {
    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Health> {
        if at.node.text().is_some() {
            let mode = Mode::read(at, problems)?;
            return Some(Health(preset_of(mode)));
        }
        let mut thresholds = Thresholds::read(at, problems)?;
        let fields = Fields { at: at.clone() };
        // The breaker refuses at once unless the file says otherwise (M9).
        if thresholds.mode == Mode::Breaker && fields.get("when_blocked").is_none() {
            thresholds.when_blocked = WhenBlocked::Reject;
        }
        check(at, &fields, &thresholds, problems);
        Some(Health(thresholds))
    }
}

fn preset_of(mode: Mode) -> Thresholds {
    let when_blocked = match mode {
        Mode::Breaker => WhenBlocked::Reject,
        Mode::Adaptive | Mode::Off => WhenBlocked::Wait,
    };
    Thresholds {
        mode,
        when_blocked,
        ..Thresholds::default()
    }
}

/// What is wrong with the thresholds: setting, problem, remedy.
type Wrong = (&'static str, &'static str, &'static str);

fn check(at: &At<'_>, fields: &Fields<'_>, is: &Thresholds, problems: &mut Problems) {
    for (name, what, remedy) in shares(is).chain(counts(is)).chain(orders(is)) {
        let place = fields.get(name).unwrap_or_else(|| at.clone());
        problems.push(place.error(what, remedy));
    }
}

fn shares(is: &Thresholds) -> impl Iterator<Item = Wrong> + use<> {
    let shares = [
        ("p_throttle", is.p_throttle),
        ("p_recover", is.p_recover),
        ("p_sleep", is.p_sleep),
        ("p_probe", is.p_probe),
        ("throttle_factor", is.throttle_factor),
    ];
    let outside = |(_, share): &(&str, Millionths)| share.0 == 0 || *share > Millionths::ONE;
    shares.into_iter().filter(outside).map(|(name, _)| {
        let remedy = "write a share such as `0.2` or `20%`";
        (name, "is not between 0 and 1", remedy)
    })
}

fn counts(is: &Thresholds) -> impl Iterator<Item = Wrong> + use<> {
    let counts = [
        ("window_results", is.window_results),
        ("min_results", is.min_results),
        ("confirm", is.confirm),
        ("n_throttle", is.n_throttle),
        ("s_recover", is.s_recover),
        ("n_cacheonly", is.n_cacheonly),
        ("probe_success", is.probe_success),
        ("probe_rate", is.probe_rate),
        ("probe_concurrency", is.probe_concurrency),
        ("success_threshold", is.success_threshold),
        ("failure_threshold", is.failure_threshold.unwrap_or(1)),
    ];
    let zero = counts.into_iter().filter(|(_, count)| *count == 0);
    zero.map(|(name, _)| (name, "must be at least 1", "write a number from 1"))
}

fn orders(is: &Thresholds) -> impl Iterator<Item = Wrong> + use<> {
    let orders = [
        (
            is.p_recover >= is.p_throttle,
            (
                "p_recover",
                "is not below p_throttle, so health would flap",
                "lower p_recover or raise p_throttle",
            ),
        ),
        (
            is.sleep_min > is.sleep_max,
            (
                "sleep_min",
                "is longer than sleep_max",
                "lower sleep_min or raise sleep_max",
            ),
        ),
        (
            is.cooldown_factor < Millionths::ONE,
            (
                "cooldown_factor",
                "is below 1, so every sleep would be shorter than the one before",
                "write `2.0`",
            ),
        ),
        (
            is.window == Span::ZERO,
            ("window", "is empty", "write `30s`"),
        ),
    ];
    let wrong = orders.into_iter().filter(|(is_wrong, _)| *is_wrong);
    wrong.map(|(_, wrong)| wrong)
}
