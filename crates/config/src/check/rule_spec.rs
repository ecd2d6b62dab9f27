//! The specification of one limit, and the rule of `core` that it means.
//!
//! Promises: a value that the algorithm cannot use is rejected, never adjusted.
//!
//! Never: reads the tree; it is given values.

use jiff::tz::TimeZone;
use tollgate_core::limit::{Calendar, CalendarPeriod as Window, HoldUntil, Rule, RuleError};
use tollgate_core::time::Span;

use crate::amount;
use crate::field::At;
use crate::problem::Problems;
use crate::setting::Setting;
use crate::settings::{Algorithm, Hold};
use crate::shape::Shape;

/// A period as written: a length, or a window of the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) enum Period {
    Length(Span),
    Window(Window),
}

impl Period {
    pub(super) fn parse(text: &str) -> Option<Period> {
        match text {
            "minute" => Some(Period::Window(Window::Minute)),
            "hour" => Some(Period::Window(Window::Hour)),
            "day" => Some(Period::Window(Window::Day)),
            "week" => Some(Period::Window(Window::Week)),
            "month" => Some(Period::Window(Window::Month)),
            _ => amount::span(text).map(Period::Length),
        }
    }

    /// The period of `35/1s`. A unit alone is one of it: `35/s`.
    pub(super) fn of_limit(text: &str) -> Option<Period> {
        let one = || amount::one_unit(text).map(Period::Length);
        Period::parse(text).or_else(one)
    }
}

impl Setting for Period {
    const SHAPE: Shape = Shape::Text;

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<Period> {
        crate::setting::read_text(
            at,
            problems,
            Period::parse,
            "is not a duration or has no unit",
            "write `10s`, `1m`, `1h`, `1d`, or `month` for the calendar's",
        )
    }
}

/// The settings that all limits of a provider share.
pub(super) struct SharedSettings {
    pub(super) hold: Hold,
    pub(super) counter_lag: Span,
    pub(super) edge_margin: Option<Span>,
}

/// The parts of a rule.
pub(super) struct RuleSpec {
    pub(super) limit: u64,
    pub(super) period: Period,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) burst: Option<u64>,
    pub(super) zone: TimeZone,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RuleSpecError {
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(
        "the calendar has no windows of this length; write `1m`, `1h`, `1d`, `week` or `month`"
    )]
    Window,
    #[error(
        "a window of the calendar needs `algorithm: calendar`; write a length such as `1d` instead"
    )]
    CalendarOnly,
}

impl RuleSpec {
    pub(super) fn rule(&self, shared: &SharedSettings) -> Result<Rule, RuleSpecError> {
        let rule = match (self.algorithm, self.period) {
            (Some(Algorithm::Calendar), Period::Length(length)) => self.calendar(
                calendar_window(length).ok_or(RuleSpecError::Window)?,
                shared,
            )?,
            (Some(Algorithm::Calendar) | None, Period::Window(window)) => {
                self.calendar(window, shared)?
            }
            (Some(_), Period::Window(_)) => return Err(RuleSpecError::CalendarOnly),
            (Some(Algorithm::Sliding) | None, Period::Length(length)) => {
                Rule::sliding(self.limit, length)?
            }
            (Some(Algorithm::Bucket), Period::Length(length)) => {
                Rule::bucket(self.limit, length, self.burst.unwrap_or(self.limit))?
            }
            (Some(Algorithm::Fixed), Period::Length(length)) => Rule::fixed(self.limit, length)?,
            (Some(Algorithm::Paced), Period::Length(length)) => Rule::paced(self.limit, length)?,
        };
        let hold = match shared.hold {
            Hold::Arrived => HoldUntil::Arrived,
            Hold::Response => HoldUntil::Response,
            Hold::Send => HoldUntil::Send,
        };
        Ok(rule.hold_until(hold).counter_lag(shared.counter_lag))
    }

    fn calendar(&self, window: Window, shared: &SharedSettings) -> Result<Rule, RuleError> {
        let mut calendar = Calendar::new(window, self.zone.clone());
        if let Some(margin) = shared.edge_margin {
            calendar = calendar.edge_margin(margin);
        }
        Rule::calendar(self.limit, calendar)
    }
}

fn calendar_window(length: Span) -> Option<Window> {
    match length.0 / 1_000_000 {
        60 => Some(Window::Minute),
        3_600 => Some(Window::Hour),
        86_400 => Some(Window::Day),
        604_800 => Some(Window::Week),
        _ => None,
    }
}
