//! H1: the pipeline document's three files load unchanged.

use tollgate_config::amount::Lifetime;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Environment, Level, Provider, ProviderFile};
use tollgate_core::domain::Host;
use tollgate_core::limit::{HoldUntil, Rule};
use tollgate_core::time::Span;

const FMP: &str = "# fmp.yaml
domain: financialmodelingprep.com
limit: 300
period: 1m
api_key: your_fmp_api_key_here
";

const ALPHAVANTAGE: &str = "# alphavantage.yaml
domain: alphavantage.co
limit: 5
period: 1m
api_key: your_alphavantage_key_here
";

const YAHOO: &str = "# yahoo.yaml
domain: finance.yahoo.com
limit: 2000
period: 1h
# api_key is optional - not all providers need it
";

fn load(file: &str, text: &str) -> Provider {
    let draft = ProviderFile::read(file, text).expect("the file is YAML");
    let checked = draft.check(&Environment::empty());
    assert!(checked.problems.is_empty(), "{}", checked.problems);
    checked.provider.expect("no problems, so a provider")
}

/// H1: the three files load unchanged, with the file's name and a sliding window.
#[test]
fn h1_the_documents_three_files_load_unchanged() {
    for (file, text, limit, secs, host) in [
        (
            "/etc/hermes/fmp.yaml",
            FMP,
            300,
            60,
            "financialmodelingprep.com",
        ),
        (
            "alphavantage.yaml",
            ALPHAVANTAGE,
            5,
            60,
            "www.alphavantage.co",
        ),
        (
            "yahoo.yaml",
            YAHOO,
            2_000,
            3_600,
            "query1.finance.yahoo.com",
        ),
    ] {
        let provider = load(file, text);
        assert!(file.ends_with(&format!("{}.yaml", provider.name)));
        let rule = Rule::sliding(limit, Span::from_secs(secs))
            .unwrap()
            .hold_until(HoldUntil::Arrived);
        assert_eq!(provider.limits.len(), 1, "{file}");
        assert_eq!(provider.limits[0].rule, rule, "{file}");
        assert!(provider.domains[0].matches(&Host::parse(host).unwrap()));
        assert!(provider.preset.is_none());
    }
}

/// H1: auth style and dialect come from the preset of the domain, limits do not.
#[test]
fn h1_a_known_domain_brings_auth_and_dialect_but_no_limits() {
    let fmp = load("fmp.yaml", FMP);
    assert!(matches!(&fmp.auth.style, AuthStyle::Query { name } if name == "apikey"));
    assert_eq!(fmp.dialect, "fmp");
    assert_eq!(fmp.keys.len(), 1);
    assert_eq!(fmp.limits[0].name, "300/1m");
    let alpha = load("alphavantage.yaml", ALPHAVANTAGE);
    // The preset has a daily limit of 25 beside this one.
    assert_eq!(
        (alpha.dialect.as_str(), alpha.limits.len()),
        ("alphavantage", 1)
    );
    assert_eq!(load("yahoo.yaml", YAHOO).dialect, "yahoo");
}

/// H1: limits never come by the domain alone, nor does anything else but auth and dialect.
#[test]
fn h1_a_known_domain_alone_has_no_limits() {
    let tmdb = load("x.yaml", "domain: api.themoviedb.org\nconcurrency: 2\n");
    assert!(tmdb.limits.is_empty());
    assert_eq!(
        (tmdb.dialect.as_str(), tmdb.cache.ttl),
        ("tmdb", Lifetime::Off)
    );
    let omdb = load("x.yaml", "domain: www.omdbapi.com\nlimit: 1\nperiod: 1s\n");
    assert!(omdb.upstream.is_none());
}

/// H1: `preset: none` means nothing built in, and then the key is not attached and that is said.
#[test]
fn h1_without_a_preset_the_key_is_not_attached_and_a_warning_says_so() {
    for text in [
        format!("{FMP}preset: none\n"),
        FMP.replace("financialmodelingprep.com", "api.example.org"),
    ] {
        let checked = ProviderFile::read("fmp.yaml", &text)
            .unwrap()
            .check(&Environment::empty());
        let provider = checked.provider.unwrap();
        assert!(matches!(provider.auth.style, AuthStyle::None));
        assert_eq!(provider.dialect, "generic");
        let warning = checked.problems.iter().next().unwrap();
        assert_eq!(warning.level, Level::Warning);
        assert!(
            warning
                .to_string()
                .starts_with("fmp.yaml:5:10: warning: api_key: the key is not attached")
        );
    }
}

/// `check` found nothing, and every call came back with the provider's 401.
#[test]
fn h1_a_login_whose_key_is_missing_is_warned_of() {
    let file = |key: &str| {
        let text = format!(
            "domain: a.example.org\nlimits: [1/1s]\n{key}auth:\n  login: {{ url: 'https://a.example.org/login', body: \
             {{ apikey: '{{api_key}}' }}, token: token }}\n"
        );
        let checked = ProviderFile::read("a.yaml", &text)
            .unwrap()
            .check(&Environment::empty());
        let problems = checked.problems.iter().map(ToString::to_string);
        problems.collect::<Vec<_>>()
    };
    let problems = file("");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with(
            "a.yaml:4:3: warning: auth: the login posts `{api_key}`, and there is no key"
        ),
        "{problems:?}"
    );
    assert!(file("api_key: k\n").is_empty());
    let fixed = ProviderFile::read("tvdb.yaml", "preset: tvdb\n").unwrap();
    let problems = fixed.check(&Environment::empty()).problems;
    assert!(
        problems
            .iter()
            .all(|one| !one.to_string().contains("{api_key}"))
    );
}
