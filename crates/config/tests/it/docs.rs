//! The documentation says what the code does: its table is the one that the presets give.

use tollgate_config::check::PROVIDER;
use tollgate_config::config::CONFIG;
use tollgate_config::load::{CONFIG_NOT_USED_YET, PROVIDER_NOT_USED_YET};
use tollgate_config::overlay::keys;
use tollgate_config::shape::{Field, Shape};
use tollgate_config::{Environment, FileContent, Sources, preset};

use crate::test_host::{TestHost, files};

const PAGE: &str = include_str!("../../../../docs/providers.md");

/// M5: the table of the documentation is made from the presets; to renew it, paste what this
/// test prints.
#[test]
fn m5_the_documented_preset_table_matches_the_presets() {
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
        Ok(FileContent {
            text,
            readable_by_others: false,
        })
    };
    let environment = Environment {
        env: &|_| Some("key".to_owned()),
        read_file: &key_file,
        ..Environment::empty()
    };
    let mut examples = 0;
    for part in PAGE.split("```yaml\n").skip(1) {
        let text = part.split("```").next().unwrap_or_default();
        let checked = crate::check_in(text, &environment);
        assert!(
            !checked.problems.has_errors(),
            "{text}\n{}",
            checked.problems
        );
        examples += 1;
    }
    assert!(examples >= 3);
}

const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");

/// A table of the fields that are used, in Markdown, with everything below them.
fn table(fields: &[Field], not_used: &[&str]) -> String {
    let mut text = "| field | default | type | meaning |\n|---|---|---|---|\n".to_owned();
    rows(fields, "", not_used, &mut text);
    text
}

fn rows(fields: &[Field], above: &str, not_used: &[&str], text: &mut String) {
    let plain = |cell: &str| cell.replace('|', "\\|");
    for field in fields {
        let path = format!("{above}{}", field.name);
        if not_used.contains(&path.as_str()) {
            continue;
        }
        let default = match (field.default)().as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let (shape, doc) = (plain(&field.shape.in_words()), plain(field.meaning()));
        text.push_str(&format!("| `{path}` | {default} | {shape} | {doc} |\n"));
        let (below, path) = match &field.shape {
            Shape::Map(inner) => (inner.fields(), format!("{path}.NAME.")),
            Shape::List(inner) => (inner.fields(), format!("{path}[].")),
            shape => (shape.fields(), format!("{path}.")),
        };
        rows(below.unwrap_or_default(), &path, not_used, text);
    }
}

/// A14: the tables of the documentation are those of the fields; to renew one, paste what this
/// test prints.
#[test]
fn a14_the_documented_tables_match_the_fields() {
    let mut variables = "| variable | field | meaning |\n|---|---|---|\n".to_owned();
    let is_used = |path: &str| {
        let block = path.split('.').next().unwrap_or_default();
        !PROVIDER_NOT_USED_YET.contains(&block)
    };
    for key in keys().iter().filter(|key| is_used(&key.path)) {
        variables.push_str(&format!(
            "| `{}` | `{}` | {} |\n",
            key.name, key.path, key.doc
        ));
    }
    let tables = [
        ("tollgate.yaml", table(CONFIG, CONFIG_NOT_USED_YET)),
        ("provider", table(PROVIDER, PROVIDER_NOT_USED_YET)),
        ("variables", variables),
    ];
    let missing: Vec<String> = tables
        .iter()
        .filter(|(_, table)| !CONFIGURATION.contains(table.as_str()))
        .map(|(what, table)| format!("@@{what}\n{table}"))
        .collect();
    let all = missing.concat();
    assert!(all.is_empty(), "docs/configuration.md needs:\n{all}@@");
    for path in CONFIG_NOT_USED_YET.iter().chain(PROVIDER_NOT_USED_YET) {
        assert!(
            CONFIGURATION.contains(&format!("`{path}`")),
            "not used yet: {path}"
        );
    }
}

/// The page's own examples load, and every field of both kinds of file stands in one of them, except
/// those that are not used yet: who copies an example must get what it says.
#[test]
fn the_examples_of_the_configuration_page_load_and_name_every_field() {
    let blocks: Vec<&str> = CONFIGURATION
        .split("```yaml\n")
        .skip(1)
        .map(|part| part.split("```").next().unwrap_or_default())
        .collect();
    let machine = [
        "KEY",
        "K1",
        "K2",
        "X",
        "TMDB_API_KEY",
        "TOLLGATE_ADMIN_TOKEN",
        "BF",
        "HOOK_SECRET",
    ]
    .iter()
    .fold(TestHost::new(), |machine, name| machine.env(name, "key"));
    for (index, text) in blocks.iter().enumerate() {
        let is_config = text.contains("\nproviders:") || text.starts_with("providers:");
        let (file, sources) = if is_config {
            ("tollgate.yaml", Sources::default())
        } else {
            ("provider.yaml", files(&["provider.yaml"]))
        };
        let loaded = machine.clone().file(file, text).load(&sources);
        assert!(
            loaded.is_ok(),
            "example {index}: {}",
            loaded.err().unwrap_or_default()
        );
    }
    let all = blocks.concat();
    for (fields, not_used) in [
        (CONFIG, CONFIG_NOT_USED_YET),
        (PROVIDER, PROVIDER_NOT_USED_YET),
    ] {
        for field in fields {
            let stands = all.contains(&format!("{}:", field.name));
            let is_used = !not_used.contains(&field.name);
            assert_eq!(stands, is_used, "an example of `{}`", field.name);
        }
    }
}

/// The examples of the recipes and of the migration page load, with warnings at most.
#[test]
fn the_examples_of_the_recipes_load() {
    const RECIPES: &str = include_str!("../../../../docs/recipes.md");
    const MIGRATION: &str = include_str!("../../../../docs/migration.md");
    const LLM: &str = include_str!("../../../../docs/llm.md");
    const PRESETS: &str = include_str!("../../../../docs/presets.md");
    const MANY_HOSTS: &str = include_str!("../../../../docs/many-hosts.md");
    const README: &str = include_str!("../../../../README.md");
    let keys = "TMDB_API_KEY ACME_KEY OPENAI_API_KEY K1 K2 GITHUB_TOKEN ANTHROPIC_API_KEY SPOTIFY_ID \
        SPOTIFY_SECRET ALPHAVANTAGE_KEY DISCORD_TOKEN STRIPE_KEY SLACK_TOKEN";
    let machine = keys.split(' ').fold(TestHost::new(), |machine, name| {
        machine.env(name.trim(), "key")
    });
    let pages = [
        (RECIPES, 2),
        (MIGRATION, 5),
        (LLM, 2),
        (PRESETS, 10),
        (MANY_HOSTS, 2),
        (README, 1),
    ];
    for (page, at_least) in pages {
        let blocks: Vec<&str> = page
            .split("```yaml\n")
            .skip(1)
            .map(|part| part.split("```").next().unwrap_or_default())
            .collect();
        assert!(blocks.len() >= at_least);
        for text in blocks {
            let is_config = ["providers:", "guard_store:", "store:"];
            let (file, sources) = if is_config.iter().any(|first| text.starts_with(first)) {
                ("tollgate.yaml", Sources::default())
            } else {
                ("provider.yaml", files(&["provider.yaml"]))
            };
            machine.clone().file(file, text).loaded(&sources);
        }
    }
}

/// Defaults that are not a value that could be written.
const IN_WORDS: [&str; 13] = [
    "name",
    "methods",
    "upstream",
    "auth.login.lifetime",
    "auth.oauth2.client_auth",
    "auth.login.refresh_before",
    "auth.replace",
    "concurrency.low",
    "off_peak.timezone",
    "off_peak.applies_to",
    "algorithm",
    "entities.from",
    "degrade",
];

/// Every default of a table, with the way to its field.
fn defaults(fields: &'static [Field], above: &str, found: &mut Vec<(String, String)>) {
    for field in fields {
        let path = format!("{above}{}", field.name);
        let default = (field.default)();
        match field.shape.fields() {
            Some(below) => defaults(below, &format!("{path}."), found),
            None if !default.is_empty() && !IN_WORDS.contains(&path.as_str()) => {
                found.push((path, default));
            }
            None => {}
        }
    }
}

/// The defaults in the tables are the effective ones: writing one changes nothing.
#[test]
fn documented_defaults_are_the_effective_defaults() {
    let text = "domain: a.example.org\nlimits: [5/1d]\n";
    let silent = crate::provider(text);
    let mut found = Vec::new();
    defaults(PROVIDER, "", &mut found);
    assert!(found.len() > 60, "{}", found.len());
    for (path, default) in found {
        let mut draft = tollgate_config::ProviderFile::read("test.yaml", text).expect("it is YAML");
        draft
            .set(&path, &default, "--set")
            .unwrap_or_else(|problems| panic!("{path}: {problems}"));
        let checked = draft.check(&Environment::empty());
        let is = checked
            .provider
            .unwrap_or_else(|| panic!("{path}: {}", checked.problems));
        assert_eq!(is, silent, "{path}: {default}");
    }
}
