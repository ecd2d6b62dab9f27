//! Presets: all load without a word of complaint, and each is found where it should be.

use std::collections::BTreeMap;
use std::path::Path;

use tollgate_config::preset::{self, PRESET_FIELDS};
use tollgate_config::raw::Value;
use tollgate_config::{Environment, Provider, check};
use tollgate_core::ask::CostUnit;
use tollgate_core::domain::Host;
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};
use tollgate_core::time::Span;

const SECOND: Span = Span::from_secs(1);

pub(crate) fn built_in(name: &str) -> Provider {
    let preset = preset::find(name).expect("a preset of this name");
    let checked = preset.provider(None, &Environment::empty());
    assert!(checked.problems.is_empty(), "{}", checked.problems);
    checked.provider.expect("no problems, so a provider")
}

/// Every preset and every tier of it is obeyed without a word of complaint.
#[test]
fn every_preset_and_tier_loads_without_problems() {
    assert!(preset::problems().is_empty(), "{}", preset::problems());
    assert_eq!(preset::all().len(), 64);
    for built_in in preset::all() {
        for tier in std::iter::once(None).chain(built_in.tiers().map(Some)) {
            let is = built_in
                .provider(tier, &Environment::empty())
                .provider
                .unwrap();
            let ruled = !is.limits.is_empty() || is.concurrency.is_some() || is.learn;
            assert!(ruled, "{} {tier:?}", built_in.name);
        }
    }
}

/// Presets have only known fields, in the file and in its tiers, and say where their numbers come from.
#[test]
fn presets_have_only_known_fields_and_name_their_source() {
    const GRADES: [&str; 6] = [
        "documented",
        "observed",
        "requirement",
        "secondary",
        "recalled",
        "guess",
    ];
    for built_in in preset::all() {
        for entry in built_in.tree().entries().unwrap() {
            let known = check::FIELDS.contains(&entry.name.as_str())
                || PRESET_FIELDS.contains(&entry.name.as_str());
            assert!(known, "{}: {}", built_in.name, entry.name);
        }
        for tier in built_in.tiers() {
            let tier = built_in.tree().get("tiers").unwrap().get(tier).unwrap();
            for entry in tier.entries().unwrap() {
                let known = check::FIELDS.contains(&entry.name.as_str()) || entry.name == "note";
                assert!(known, "{}: {}", built_in.name, entry.name);
            }
        }
        let grade = built_in
            .tree()
            .get("source")
            .unwrap()
            .get("grade")
            .unwrap()
            .text()
            .unwrap();
        assert!(GRADES.contains(&grade), "{}", built_in.name);
        assert!(built_in.tree().get("title").is_some() && built_in.tree().get("api_key").is_none());
    }
}

/// A domain belongs to one preset, or the others say whose variant they are.
#[test]
fn domains_are_unique_or_explained() {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for built_in in preset::all() {
        let variant_of = built_in
            .tree()
            .get("variant_of")
            .map(|node| node.text().unwrap());
        for domain in built_in.domains() {
            match variant_of {
                Some(main) => assert!(preset::find(main).unwrap().domains().contains(&domain)),
                None => assert_eq!(owners.insert(domain.to_string(), built_in.name), None),
            }
        }
    }
    assert_eq!(owners.get("api.themoviedb.org"), Some(&"tmdb"));
}

/// A preset's dialect is the name of the provider it is about.
#[test]
fn a_dialect_is_the_name_of_the_main_preset() {
    for built_in in preset::all() {
        let is = built_in.tree().get("dialect").unwrap().text().unwrap();
        let main = built_in
            .tree()
            .get("variant_of")
            .map_or(built_in.name, |node| node.text().unwrap());
        let own =
            is == main || is == built_in.name || (built_in.name == "local" && is == "generic");
        assert!(own, "{}", built_in.name);
    }
}

/// Every dialect of a preset, and of its tiers, is one that the reader of answers knows.
#[test]
fn every_dialect_of_a_preset_is_known() {
    let known = tollgate_core::feedback::Dialects::built_in();
    for built_in in preset::all() {
        for tier in std::iter::once(None).chain(built_in.tiers().map(Some)) {
            let is = built_in
                .provider(tier, &Environment::empty())
                .provider
                .unwrap();
            assert!(
                known.get(&is.dialect).is_some(),
                "{} {tier:?}",
                built_in.name
            );
        }
    }
    let problems_text = crate::errors("preset: tmdb\ndialect: omdbb\n");
    assert_eq!(
        problems_text,
        ["test.yaml:2:10: dialect: there is no dialect of this name; did you mean `omdb`?"]
    );
}

/// H1, H4: a known host finds its preset with no file at all.
#[test]
fn h4_a_host_finds_its_preset() {
    for (host, name) in [
        ("api.themoviedb.org", Some("tmdb")),
        ("www.omdbapi.com", Some("omdb")),
        ("query2.finance.yahoo.com", Some("yahoo")),
        ("shop.myshopify.com", Some("shopify_rest")),
        ("acme.my.salesforce.com", Some("salesforce")),
        ("euw1.api.riotgames.com", Some("riot")),
        ("example.org", None),
        ("themoviedb.org", None),
    ] {
        let found = preset::for_host(&Host::parse(host).unwrap()).map(|preset| preset.name);
        assert_eq!(found, name, "{host}");
    }
}

/// Every file of the folder is built in, and nothing else.
#[test]
fn the_table_and_the_folder_agree() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../providers");
    let mut files: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let name = name
                .strip_suffix(".yaml")
                .expect("only .yaml files")
                .to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    let table: Vec<(String, String)> = preset::all()
        .iter()
        .map(|preset| (preset.name.to_owned(), preset.text().to_owned()))
        .collect();
    assert_eq!(files, table);
}

/// The kind of a provider's window decides the algorithm; units other than calls are kept.
#[test]
fn kinds_of_windows_become_the_right_algorithms() {
    let rule = |name: &str, limit: usize| built_in(name).limits[limit].rule.clone();
    assert!(matches!(
        rule("fmp", 0).algorithm(),
        Algorithm::Sliding { .. }
    ));
    assert!(matches!(
        rule("discogs", 0).algorithm(),
        Algorithm::Sliding { .. }
    ));
    assert!(matches!(
        rule("github", 0).algorithm(),
        Algorithm::Sliding { .. }
    ));
    assert!(matches!(
        rule("sportmonks", 0).algorithm(),
        Algorithm::Fixed { .. }
    ));
    assert!(matches!(
        rule("riot", 1).algorithm(),
        Algorithm::Fixed { .. }
    ));
    assert!(matches!(
        rule("arxiv", 0).algorithm(),
        Algorithm::Paced { .. }
    ));
    assert_eq!(
        rule("azure_arm", 0),
        Rule::bucket(25, SECOND, 250)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(
        rule("shopify_rest", 0),
        Rule::bucket(2, SECOND, 40)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(
        rule("kraken", 0),
        Rule::bucket(33, Span::from_secs(100), 15)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
            .unit(CostUnit::Points)
    );
    assert_eq!(
        (rule("binance", 0).cost_unit(), rule("jira", 1).cost_unit()),
        (CostUnit::Points, CostUnit::Points)
    );
    assert_eq!(built_in("binance").limits[0].unit, "weight");
    let free = |name| {
        let found = preset::find(name).unwrap();
        let checked = found.provider(Some("free"), &Environment::empty());
        checked.provider.unwrap()
    };
    let tokens = &free("mistral").limits[1].rule;
    assert_eq!(
        (tokens.cost_unit(), tokens.limit()),
        (CostUnit::Tokens, 500_000)
    );
    // Its other plans have other limits, which are learned.
    assert!(built_in("mistral").limits.is_empty());
    let free = free("gemini");
    assert!(matches!(
        free.limits[1].rule.algorithm(),
        Algorithm::Calendar(_)
    ));
}

/// Language models answer slowly and name their model in the body.
#[test]
fn presets_of_language_models_wait_ten_minutes() {
    for name in [
        "openai",
        "azure_openai",
        "anthropic",
        "gemini",
        "mistral",
        "groq",
        "cloudru",
    ] {
        let timeouts = built_in(name).timeouts;
        assert_eq!(timeouts.first_byte, Span::from_secs(600), "{name}");
        // A stream is silent while its model thinks.
        assert_eq!(timeouts.idle, Span::from_secs(600), "{name}");
    }
}

/// A preset never holds a key or a placeholder of the environment.
#[test]
fn presets_hold_no_keys() {
    for built_in in preset::all() {
        let checked = built_in
            .provider(None, &Environment::empty())
            .provider
            .unwrap();
        assert!(
            checked.keys.is_empty() && checked.auth.also.is_empty(),
            "{}",
            built_in.name
        );
        assert!(!matches!(built_in.tree().value, Value::Null));
    }
}
