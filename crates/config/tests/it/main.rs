//! Provider files from outside: what a user writes and what comes of it.

mod docs;
#[cfg(feature = "watch")]
mod edge;
mod environment;
mod grammar;
mod h1;
mod h2;
mod m5;
mod fields_used;
mod test_host;
mod presets;
mod problems;
mod reload;
mod resp;
mod secrets;
mod settings;
mod soft_limits;

use tollgate_config::{Checked, Environment, Level, Provider, ProviderFile};

/// Checks a text as `test.yaml`.
fn check(text: &str) -> Checked {
    check_in(text, &Environment::empty())
}

fn check_in(text: &str, environment: &Environment<'_>) -> Checked {
    match ProviderFile::read("test.yaml", text) {
        Ok(draft) => draft.check(environment),
        Err(problems) => Checked::rejected(problems),
    }
}

/// The provider of a text that has no errors.
fn provider(text: &str) -> Provider {
    let checked = check(text);
    let problems = checked.problems.to_string();
    checked
        .provider
        .unwrap_or_else(|| panic!("{text}\n{problems}"))
}

/// Every error of a text, one per line.
fn errors(text: &str) -> Vec<String> {
    let checked = check(text);
    let errors = checked.problems.iter();
    errors
        .filter(|problem| problem.level == Level::Error)
        .map(ToString::to_string)
        .collect()
}
