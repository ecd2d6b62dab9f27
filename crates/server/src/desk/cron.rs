//! The times of a source as cron writes them: minute, hour, day of the month, month, day of the week.
//!
//! Promises: what is accepted here, every cron reads.
//!
//! Never: computes a time; schedulers do.

/// The least and the greatest number of each field, and its names from the least number on.
const FIELDS: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (
        1,
        12,
        &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    ),
    // Sunday is 0 and 7.
    (0, 7, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// Whether a text has five fields such as `*/5 6-18 * * mon,fri`.
pub(crate) fn is_cron(text: &str) -> bool {
    let fields: Vec<&str> = text.split_whitespace().collect();
    fields.len() == FIELDS.len()
        && fields
            .iter()
            .zip(FIELDS)
            .all(|(field, bounds)| field.split(',').all(|part| is_part(part, bounds)))
}

/// `*`, `5`, `1-5`, and with a step `*/15`, `0-30/10`.
fn is_part(part: &str, bounds: (u32, u32, &[&str])) -> bool {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    let is_step = |step: &str| number(step).is_some_and(|step| (1..=bounds.1).contains(&step));
    if !step.is_none_or(is_step) {
        return false;
    }
    match range.split_once('-') {
        // Not every cron knows a step behind a single number.
        None => range == "*" || (step.is_none() && value(range, bounds).is_some()),
        Some((from, to)) => match (value(from, bounds), value(to, bounds)) {
            (Some(from), Some(to)) => from <= to,
            _ => false,
        },
    }
}

fn value(text: &str, (least, most, names): (u32, u32, &[&str])) -> Option<u32> {
    let named = names
        .iter()
        .position(|name| text.eq_ignore_ascii_case(name));
    let named = named
        .and_then(|at| u32::try_from(at).ok())
        .map(|at| at + least);
    let value = named.or_else(|| number(text))?;
    (least..=most).contains(&value).then_some(value)
}

/// Digits only: `parse` would also take a sign.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_cron_reads_them() {
        for text in [
            "0 6 * * *",
            "*/5 6-18 * * mon,FRI",
            "0,30 0-12/2 1 jan-mar 0-7",
            "59 23 31 12 7",
        ] {
            assert!(is_cron(text), "{text}");
        }
        for text in [
            "",
            "a b c d e",
            "0 6 * *",
            "0 6 * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "1, * * * *",
            "+1 * * * *",
            "-1 * * * *",
            "1/ * * * *",
            "5/10 * * * *",
            "mon * * * *",
            "99999999999 * * * *",
        ] {
            assert!(!is_cron(text), "{text}");
        }
    }
}
