//! Patterns over path segments: `odds/**`, `fixtures/*/stats`, `player-*`.
//!
//! Promises: matching costs at most segments × pattern steps, whatever the path.
//!
//! Never: matches a segment that servers read differently; the caller gets an error instead.

use super::path::Segment;
use super::{EntityError, SEGMENTS_MAX};

/// The most steps of a pattern: one more than the segments of the deepest known API.
const STEPS_MAX: usize = 16;

/// A pattern over the segments of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// `**`: any number of segments, none included.
    Any,
    /// `*`: one segment.
    One,
    /// Text with at most one `*` in it.
    Text {
        before: String,
        after: Option<String>,
    },
}

/// Why a pattern is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// Nothing in it, or too much.
    #[error("the pattern is empty or has more than 16 segments; write something like `odds/**`")]
    Length,
    /// A character that a normalized path never has.
    #[error(
        "the pattern has a blank, `%`, `;` or a letter outside ASCII; write the plain path, such as `odds/**`"
    )]
    Character,
    /// Two stars in one segment.
    #[error(
        "the pattern has more than one `*` in a segment; `*` stands for one segment, `**` for any number"
    )]
    Stars,
}

impl Glob {
    /// Reads a pattern. Slashes at both ends do not matter, nor does case.
    pub fn parse(pattern: &str) -> Result<Glob, GlobError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'%' | b';' | b'\\');
        if !pattern.bytes().all(plain) {
            return Err(GlobError::Character);
        }
        let lower = pattern.to_ascii_lowercase();
        let parts: Vec<&str> = lower.split('/').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() || parts.len() > STEPS_MAX {
            return Err(GlobError::Length);
        }
        let steps = parts.into_iter().map(step).collect::<Result<_, _>>()?;
        Ok(Glob { steps })
    }

    /// Does the whole path match?
    pub(super) fn matches(&self, segments: &[Segment]) -> Result<bool, EntityError> {
        // `open[i]`: the steps up to here can end right before segment i.
        let mut open = vec![false; segments.len() + 1];
        debug_assert!(open.len() <= 4 * SEGMENTS_MAX, "paths are bounded");
        open[0] = true;
        for step in &self.steps {
            open = advance(step, segments, &open)?;
        }
        Ok(open.last().copied().unwrap_or(false))
    }
}

fn advance(step: &Step, segments: &[Segment], open: &[bool]) -> Result<Vec<bool>, EntityError> {
    let mut next = vec![false; open.len()];
    if *step == Step::Any {
        let mut reached = false;
        for (slot, &was_open) in next.iter_mut().zip(open) {
            reached |= was_open;
            *slot = reached;
        }
        return Ok(next);
    }
    for ((segment, &is_open), slot) in segments.iter().zip(open).zip(next.iter_mut().skip(1)) {
        *slot = is_open && step.takes(segment)?;
    }
    Ok(next)
}

impl Step {
    fn takes(&self, segment: &Segment) -> Result<bool, EntityError> {
        match self {
            Step::Any | Step::One => Ok(true),
            Step::Text {
                before,
                after: None,
            } => Ok(segment.ascii_text()? == before),
            Step::Text {
                before,
                after: Some(after),
            } => {
                let text = segment.ascii_text()?;
                Ok(text
                    .strip_prefix(before.as_str())
                    .is_some_and(|rest| rest.ends_with(after)))
            }
        }
    }
}

fn step(part: &str) -> Result<Step, GlobError> {
    match part {
        "**" => return Ok(Step::Any),
        "*" => return Ok(Step::One),
        _ => {}
    }
    let Some((before, after)) = part.split_once('*') else {
        return Ok(Step::Text {
            before: part.to_owned(),
            after: None,
        });
    };
    if after.contains('*') {
        return Err(GlobError::Stars);
    }
    Ok(Step::Text {
        before: before.to_owned(),
        after: Some(after.to_owned()),
    })
}
