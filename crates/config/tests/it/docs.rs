//! The documentation says what the code does: its table is the one that the presets give.

use tollgate_config::{KeyFile, World, preset};

const PAGE: &str = include_str!("../../../../docs/providers.md");

/// M5: the table of the documentation is made from the presets; to renew it, paste what this
/// test prints.
#[test]
fn m5_the_table_of_the_documentation_is_that_of_the_presets() {
    let table = preset::table_of_presets();
    assert!(
        PAGE.contains(&table),
        "docs/providers.md needs this table:\n{table}"
    );
}

/// Every example of the page that is a provider file loads.
#[test]
fn the_examples_of_the_documentation_load() {
    let key_file = |_: &str| {
        let text = "key".to_owned();
        Ok(KeyFile {
            text,
            open_to_others: false,
        })
    };
    let world = World {
        env: &|_| Some("key".to_owned()),
        key_file: &key_file,
        ..World::empty()
    };
    let mut examples = 0;
    for part in PAGE.split("```yaml\n").skip(1) {
        let text = part.split("```").next().unwrap_or_default();
        let checked = crate::check_in(text, &world);
        assert!(
            !checked.problems.has_errors(),
            "{text}\n{}",
            checked.problems
        );
        examples += 1;
    }
    assert!(examples >= 3);
}
