//! Where the result of a source goes, as its file says it: a path below the folder of results, with placeholders.
//!
//! Promises: a path that was accepted stays below its folder whatever replaces the placeholders: no component is empty or
//! begins with a dot, and all are made of letters, digits, `-`, `_` and `.`. Lengths are bounded.
//!
//! Never: touches a file.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::time::Wall;

/// The longest path as written, and each component after replacement: file systems allow 255 bytes for one.
const LENGTH_MAX: usize = 200;

/// The most components: more is a mistake.
const COMPONENTS_MAX: usize = 8;

/// The file in a folder.
const IN_FOLDER: &str = "{name}-{date}-{time}.{ext}";

/// What a path may be, for messages.
pub const RESULT_PATH_FORM: &str = "`-`, an http or https URL without `?`, or a path of letters, digits, `-`, `_`, `.` and `/` with the placeholders {name}, {date}, {time} and {ext}, in which no part begins with a dot";

/// A path with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultPath {
    template: String,
}

impl ResultPath {
    /// Reads a path. One that ends with `/` is a folder: each result is a file in it.
    #[must_use]
    pub fn parse(text: &str) -> Option<ResultPath> {
        let template = match text.strip_suffix('/') {
            Some(folder) => format!("{folder}/{IN_FOLDER}"),
            None => text.to_owned(),
        };
        let path = ResultPath { template };
        let is_short =
            text.len() <= LENGTH_MAX && path.template.split('/').count() <= COMPONENTS_MAX;
        // With names that are harmless themselves: what else is in the path decides.
        let is_safe = is_short && path.expand("n", "bin", Wall(0)).is_some();
        is_safe.then_some(path)
    }

    /// The path of one result; `None` = it is not one that may be written.
    #[must_use]
    pub fn expand(&self, name: &str, ext: &str, now: Wall) -> Option<String> {
        let micros = i64::try_from(now.0).ok()?;
        let now = TimeZone::UTC.to_datetime(Timestamp::from_microsecond(micros).ok()?);
        let time = format!("{:02}{:02}{:02}", now.hour(), now.minute(), now.second());
        let path = self
            .template
            .replace("{name}", name)
            .replace("{date}", &now.date().to_string())
            .replace("{time}", &time)
            .replace("{ext}", ext);
        path.split('/').all(is_component).then_some(path)
    }
}

fn is_component(part: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_sized = (1..=LENGTH_MAX).contains(&part.len());
    is_sized && !part.starts_with('.') && part.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-01 06:05:09 UTC.
    const NOW: Wall = Wall(1_772_345_109_000_000);

    #[test]
    fn h5_a_path_has_placeholders_and_stays_below_its_folder() {
        let expand = |text: &str, name: &str| ResultPath::parse(text)?.expand(name, "json", NOW);
        for (text, path) in [
            ("news.json", "news.json"),
            ("{name}.{ext}", "fmp-aapl.json"),
            (
                "a/{date}/{name}-{time}.{ext}",
                "a/2026-03-01/fmp-aapl-060509.json",
            ),
            ("prices/", "prices/fmp-aapl-2026-03-01-060509.json"),
        ] {
            assert_eq!(expand(text, "fmp-aapl").as_deref(), Some(path), "{text}");
        }
        let long = "a".repeat(LENGTH_MAX + 1);
        let deep = "a/".repeat(COMPONENTS_MAX) + "b";
        for text in [
            "",
            "/",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a//b",
            "./a",
            ".hidden",
            "a/.ssh/x",
            "a\\b",
            "a b",
            "a\0b",
            "{user}",
            "{name",
            "~/x",
            "é",
            &long,
            &deep,
        ] {
            assert_eq!(ResultPath::parse(text), None, "{text}");
        }
        // A name may be made of dots.
        assert_eq!(expand("{name}/x", ".."), None);
        assert_eq!(expand("{name}/x", "."), None);
        assert_eq!(expand("{name}", ".bashrc"), None);
    }
}
