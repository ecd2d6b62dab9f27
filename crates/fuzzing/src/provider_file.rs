//! A provider file: any text is a provider, or problems with a place and a remedy.
//!
//! Promises: reading and checking end without a panic, twice with the same result, and no problem
//! repeats a key of the file.
//!
//! Never: calls a file right; the tests of `config` do.

use tollgate_config::{Environment, Level, ProviderFile};

/// A key that no message may show.
const CANARY: &str = "canary5f1c9a7b";

/// Reads and checks the file.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let first = checked(text);
    assert_eq!(
        first,
        checked(text),
        "the same file gives the same problems"
    );
    let (has_provider, problems) = first;
    assert!(
        has_provider || !problems.is_empty(),
        "a file without a provider has a problem"
    );
    // In the first line it is the value of `api_key` and nothing else; elsewhere a tag or a quote
    // may make it the name of a field, and messages name fields.
    let key_line = text.strip_prefix("api_key: canary5f1c9a7b\n");
    if key_line.is_some_and(|rest| !rest.contains(CANARY)) {
        let shown = problems.iter().find(|problem| problem.contains(CANARY));
        assert_eq!(shown, None, "no message shows a key");
    }
}

fn checked(text: &str) -> (bool, Vec<String>) {
    let world = Environment {
        env: &|name| (name == "KEY").then(|| CANARY.to_owned()),
        ..Environment::empty()
    };
    match ProviderFile::read("x.yaml", text) {
        Ok(file) => {
            let checked = file.check(&world);
            let problems: Vec<_> = checked.problems.iter().collect();
            assert!(
                problems.iter().all(|problem| !problem.remedy.is_empty()),
                "every problem says what to do"
            );
            let errors = problems.iter().any(|problem| problem.level == Level::Error);
            assert!(errors || checked.provider.is_some(), "{problems:?}");
            let texts = problems.iter().map(ToString::to_string).collect();
            (checked.provider.is_some(), texts)
        }
        Err(problems) => (false, problems.iter().map(ToString::to_string).collect()),
    }
}
