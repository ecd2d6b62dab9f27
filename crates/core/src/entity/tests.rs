//! Entities: the document's examples, every dodge by name, and providers that read paths in their
//! own ways against random spellings.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

fn sports() -> Entities {
    Entities::default().strip("/v3/football").unwrap()
}

fn by_path(entities: &Entities, path: &str) -> Result<Routed, Refusal> {
    entities.route(&Asked {
        path,
        ..Asked::default()
    })
}

fn name(entities: &Entities, path: &str) -> Option<String> {
    let routed = by_path(entities, path).unwrap();
    routed.entity.map(|entity| entity.to_string())
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// S1: the entity is the first segment after the prefix.
#[test]
fn s1_the_entity_is_taken_from_the_path() {
    let sports = sports();
    assert_eq!(name(&sports, "/v3/football/fixtures/123"), some("fixtures"));
    assert_eq!(
        name(&sports, "/v3/football/odds/fixtures/123"),
        some("odds")
    );
    assert_eq!(name(&sports, "/v3/football/livescores"), some("livescores"));
    assert_eq!(name(&sports, "/v3/football"), None);
    assert_eq!(name(&sports, "/v3/core/countries"), some("core"));
}

/// S1: segments that are versions are skipped.
#[test]
fn s1_versions_are_skipped() {
    let any = Entities::default();
    assert_eq!(name(&any, "/3/movie/550"), some("movie"));
    assert_eq!(name(&any, "/v4/series/1"), some("series"));
    assert_eq!(name(&any, "/v3.1/x"), some("v3.1"));
    assert_eq!(name(&any, "/vault/x"), some("vault"));
    assert_eq!(name(&any, "/"), None);
    assert_eq!(name(&any, "/12/34"), None);
}

/// S1: rules name the entity of deeper paths, the first match wins.
#[test]
fn s1_rules_come_before_the_first_segment() {
    let rule = |text: &str| Glob::parse(text).unwrap();
    let entities = sports()
        .rule(rule("fixtures/*/odds"), Entity::named("odds").unwrap())
        .rule(rule("**/live-*"), Entity::named("live").unwrap())
        .rule(rule("Odds/**"), Entity::named("Odds").unwrap());
    assert_eq!(
        name(&entities, "/v3/football/fixtures/1/odds"),
        some("odds")
    );
    assert_eq!(
        name(&entities, "/v3/football/fixtures/1/2/odds"),
        some("fixtures")
    );
    assert_eq!(name(&entities, "/v3/football/a/b/live-now"), some("live"));
    assert_eq!(name(&entities, "/v3/football/odds"), some("odds"));
    assert_eq!(name(&entities, "/v3/football/teams"), some("teams"));
}

/// S1: a caller can name the entity.
#[test]
fn s1_the_callers_name_wins() {
    let asked = Asked {
        named: Some("Odds"),
        path: "/v3/football/teams",
        ..Asked::default()
    };
    let routed = sports().route(&asked).unwrap();
    assert_eq!(routed.entity, Some(Entity::named("odds").unwrap()));
    for bad in ["", " ", "a b", "ödds", &"x".repeat(ENTITY_MAX + 1)] {
        let asked = Asked {
            named: Some(bad),
            ..asked
        };
        assert_eq!(sports().route(&asked), Err(Refusal::Name), "{bad}");
    }
}

/// S1, R-E3: spellings that providers treat alike are one entity, and the sent path has no dots.
#[test]
fn s1_other_spellings_are_the_same_entity() {
    for (path, sent) in [
        ("/v3/football/%6fdds", "/v3/football/odds"),
        ("/v3/football/ODDS", "/v3/football/ODDS"),
        ("//v3//football//odds//", "//v3//football//odds//"),
        ("/v3/football/odds;x=1/7", "/v3/football/odds;x=1/7"),
        ("/v3/football;a/odds%3bx", "/v3/football;a/odds%3Bx"),
        ("/v3/football/odds.", "/v3/football/odds."),
        ("/v3/football/odds%2e%20", "/v3/football/odds.%20"),
        ("/v3/football/odds.json", "/v3/football/odds.json"),
        ("/v3/football/teams/../odds", "/v3/football/odds"),
        ("/v3/football/teams/%2e%2E/odds", "/v3/football/odds"),
        ("/v3/./football/odds/.", "/v3/football/odds/"),
        ("/../../v3/football/odds", "/v3/football/odds"),
        ("/v3/football/odds/a%2fb", "/v3/football/odds/a%2Fb"),
    ] {
        let routed = by_path(&sports(), path).unwrap();
        assert_eq!(routed.entity.unwrap().as_str(), "odds", "{path}");
        assert_eq!(routed.path, sent, "{path}");
    }
}

/// S1, R-E3: what can be read in two ways is refused, with the reason.
#[test]
fn s1_ambiguous_paths_are_refused() {
    let sports = sports();
    for (path, why) in [
        ("v3/football/odds", Refusal::NoSlash),
        ("/v3/football/odds x", Refusal::Character),
        ("/v3\\football/odds", Refusal::Character),
        ("/v3/football/odds?x", Refusal::Character),
        ("/v3/football/ödds", Refusal::Character),
        ("/v3/football/odds%", Refusal::Percent),
        ("/v3/football/odds%2", Refusal::Percent),
        ("/v3/football/odds%zz", Refusal::Percent),
        ("/v3/football/odds%00", Refusal::Control),
        ("/v3/football/odds%2500", Refusal::Control),
        ("/v3/football/odds%0a", Refusal::Control),
        ("/v3/football/teams/%c0%ae%c0%ae/odds", Refusal::Overlong),
        ("/v3/football/teams/..;/odds", Refusal::HiddenDots),
        ("/v3/football/teams/..%3b/odds", Refusal::HiddenDots),
        ("/v3/football/teams%2f..%2fodds", Refusal::HiddenDots),
        ("/v3/football/teams/..%5codds", Refusal::HiddenDots),
        ("/v3/football/teams/%252e%252e/odds", Refusal::HiddenDots),
        ("/v3/football/teams/.../odds", Refusal::HiddenDots),
        ("/v3/football/%2525252525", Refusal::HiddenDots),
        ("/v3%2ffootball/odds", Refusal::Path),
        ("/v3/football%2fodds", Refusal::Path),
        ("/v3/football/odds%2f7", Refusal::Path),
        ("/v3/football/odds%5c7", Refusal::Path),
        ("/v3/football/%256fdds", Refusal::Path),
        ("/v3/football/%ef%bd%8fdds", Refusal::NotAscii),
    ] {
        assert_eq!(by_path(&sports, path), Err(why), "{path}");
    }
    let long = format!("/{}", "a".repeat(PATH_MAX));
    assert_eq!(by_path(&sports, &long), Err(Refusal::TooLong));
    let deep = "/a".repeat(SEGMENTS_MAX + 1);
    assert_eq!(by_path(&sports, &deep), Err(Refusal::TooLong));
}

#[test]
fn doubt_means_no_entity_where_nothing_depends_on_it() {
    let entities = Entities {
        doubt: Doubt::NoEntity,
        ..Entities::default()
    };
    let routed = by_path(&entities, "/group%2fproject/issues").unwrap();
    assert_eq!(
        routed,
        Routed {
            entity: None,
            path: "/group%2Fproject/issues".to_owned()
        }
    );
    assert_eq!(by_path(&entities, "/a/..;/b"), Err(Refusal::HiddenDots));
}

#[test]
fn a_segment_too_long_for_a_name_has_no_entity() {
    let path = format!("/{}", "a".repeat(ENTITY_MAX + 1));
    assert_eq!(name(&Entities::default(), &path), None);
}

fn from(from: From, asked: Asked<'_>) -> Result<Option<String>, Refusal> {
    let entities = Entities {
        from,
        ..Entities::default()
    };
    let asked = Asked {
        path: "/query",
        ..asked
    };
    let routed = entities.route(&asked)?;
    Ok(routed.entity.map(|entity| entity.to_string()))
}

/// S1: entity by query parameter.
#[test]
fn s1_the_entity_is_taken_from_the_query() {
    let by = |query| {
        from(
            From::Query("function".into()),
            Asked {
                query,
                ..Asked::default()
            },
        )
    };
    assert_eq!(by("function=OVERVIEW&symbol=A"), Ok(some("overview")));
    assert_eq!(by("symbol=A&%46unction=over%76iew"), Ok(some("overview")));
    assert_eq!(by("function=a&FUNCTION=A"), Ok(some("a")));
    assert_eq!(by("symbol=A"), Ok(None));
    assert_eq!(by("function=a&function=b"), Err(Refusal::Query));
    assert_eq!(by("function[]=a"), Err(Refusal::Query));
    assert_eq!(by("function=a;function=b"), Err(Refusal::Query));
    assert_eq!(by("function=%ff"), Err(Refusal::NotAscii));
}

/// S1: entity by header and by host.
#[test]
fn s1_the_entity_is_taken_from_a_header_or_the_host() {
    let by = |headers| {
        from(
            From::Header("x-kind".into()),
            Asked {
                headers,
                ..Asked::default()
            },
        )
    };
    assert_eq!(by(&[("X-Kind", " Odds ")]), Ok(some("odds")));
    assert_eq!(
        by(&[("X-Kind", "a"), ("x-kind", "b")]),
        Err(Refusal::Header)
    );
    assert_eq!(by(&[]), Ok(None));
    let host = Host::parse("Shop-1.MyShopify.com:443").unwrap();
    let asked = Asked {
        host: Some(&host),
        ..Asked::default()
    };
    assert_eq!(from(From::Host, asked), Ok(some("shop-1.myshopify.com")));
}

/// S1: entity by field of the body.
#[test]
fn s1_the_entity_is_taken_from_the_body() {
    let field = || From::Body(vec!["model".to_owned()]);
    let by = |body: &str| {
        from(
            field(),
            Asked {
                body: body.as_bytes(),
                ..Asked::default()
            },
        )
    };
    assert_eq!(
        by(r#"{"messages":[{"model":"x"}],"model":"GPT-x"}"#),
        Ok(some("gpt-x"))
    );
    assert_eq!(by(r#"{"n":1}"#), Ok(None));
    assert_eq!(by(""), Ok(None));
    assert_eq!(by(r#"{"model":"a","model":"b"}"#), Err(Refusal::Body));
    assert_eq!(by(r#"{"model":"a","Model":"b"}"#), Err(Refusal::Body));
    assert_eq!(by(r#"{"model":"a"} {"model":"b"}"#), Err(Refusal::Body));
    assert_eq!(by("model=a"), Err(Refusal::Body));
    assert_eq!(by(&"[".repeat(10_000)), Err(Refusal::Body));
    assert_eq!(by(&" ".repeat(BODY_MAX + 1)), Err(Refusal::Body));
    let deep = From::Body(vec!["a".to_owned(), "b".to_owned()]);
    let asked = Asked {
        body: br#"{"a":{"b":7},"b":8}"#,
        ..Asked::default()
    };
    assert_eq!(from(deep, asked), Ok(some("7")));
}

#[test]
fn patterns_that_can_never_match_are_refused() {
    for (text, error) in [
        ("", GlobError::Length),
        ("/", GlobError::Length),
        ("a*b*c", GlobError::Stars),
        ("a b", GlobError::Character),
        ("ödds", GlobError::Character),
        ("a%2fb", GlobError::Character),
    ] {
        assert_eq!(Glob::parse(text), Err(error), "{text}");
    }
    assert_eq!(Glob::parse(&"a/".repeat(17)), Err(GlobError::Length));
}

/// How one make of server reads a path.
#[derive(Clone, Copy, Debug)]
struct Server {
    split_first: bool,
    decodes: usize,
    backslash: bool,
    merges: bool,
    cuts_parameters: bool,
    folds_case: bool,
    trims: bool,
    cuts_format: bool,
}

impl Server {
    fn all() -> impl Iterator<Item = Server> {
        (0..256_usize).flat_map(|bits| {
            let on = move |bit: usize| bits >> bit & 1 == 1;
            (1..=2).map(move |decodes| Server {
                split_first: on(0),
                decodes,
                backslash: on(1),
                merges: on(2),
                cuts_parameters: on(3),
                folds_case: on(4),
                trims: on(5),
                cuts_format: on(6),
            })
        })
    }

    fn decoded(self, bytes: &[u8]) -> String {
        let mut bytes = bytes.to_vec();
        for _ in 0..self.decodes {
            bytes = path::decode(&bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn split(self, text: &str) -> Vec<String> {
        let is_slash = |letter| letter == '/' || (self.backslash && letter == '\\');
        text.split(is_slash).skip(1).map(str::to_owned).collect()
    }

    /// The entity that this server serves under `/v3/football`, if it knows one.
    fn serves(self, sent: &str) -> Option<String> {
        let parts = if self.split_first {
            sent.split('/')
                .skip(1)
                .map(|part| self.decoded(part.as_bytes()))
                .collect()
        } else {
            self.split(&self.decoded(sent.as_bytes()))
        };
        let mut kept: Vec<String> = Vec::new();
        for part in parts {
            let part = self.segment(&part);
            match part.as_str() {
                "." => {}
                ".." => drop(kept.pop()),
                "" if self.merges => {}
                _ => kept.push(part),
            }
        }
        match kept
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice()
        {
            ["v3", "football", entity, ..] if ["odds", "teams"].contains(entity) => {
                Some((*entity).to_owned())
            }
            _ => None,
        }
    }

    fn segment(self, part: &str) -> String {
        let mut part = part.to_owned();
        if self.cuts_parameters {
            part.truncate(part.find(';').unwrap_or(part.len()));
        }
        if self.folds_case {
            part = part.to_lowercase();
        }
        if self.trims && !part.chars().all(|letter| letter == '.') {
            part = part
                .trim_start_matches(' ')
                .trim_end_matches(['.', ' '])
                .to_owned();
        }
        if self.cuts_format {
            part = part.strip_suffix(".json").unwrap_or(&part).to_owned();
        }
        part
    }
}

/// Ways to write a slash, most of them wrong somewhere.
const JOINTS: [&str; 20] = [
    "/",
    "/",
    "/",
    "/",
    "/",
    "/",
    "//",
    "/./",
    "/%2e/",
    "/a/../",
    "/..;/",
    "/..%3b/",
    "%2f",
    "%2F..%2f",
    "%5c",
    "%252f",
    "/%252e%252e/",
    ";x=1/",
    "/;/",
    "/.../",
];

/// Ways to write a segment.
fn segment_spelling() -> impl Strategy<Value = String> {
    let name = prop::sample::select(&["v3", "football", "odds", "teams", "", "7"][..]);
    (name, 0..16_usize).prop_map(|(name, way)| match way {
        0 => name.to_uppercase(),
        1 => name.replacen('o', "%6f", 1),
        2 => name.replacen('o', "%6F", 1),
        3 => name.replacen('o', "%256f", 1),
        4 => format!("{name}."),
        5 => format!("{name}%20"),
        6 => format!("{name};x=1"),
        7 => format!("{name}%3bx"),
        8 => format!("{name}%253bx"),
        9 => format!("{name}.json"),
        10 => name.replacen('o', "%ef%bd%8f", 1),
        _ => name.to_owned(),
    })
}

fn spelling() -> impl Strategy<Value = String> {
    let step = || (prop::sample::select(&JOINTS[..]), segment_spelling());
    let steps = prop::collection::vec(step(), 0..5);
    let open = prop::sample::select(
        &[
            "/v3/football",
            "/v3/football",
            "//V3%2ffootball",
            "/%763/football;a",
            "",
        ][..],
    );
    (open, steps).prop_map(|(open, steps)| {
        let rest: String = steps
            .into_iter()
            .flat_map(|(joint, name)| [joint.to_owned(), name])
            .collect();
        format!("{open}{rest}")
    })
}

fn config(seed: u64) -> ProptestConfig {
    ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(31))]

    /// S1, R-E3: whatever a server makes of the sent path, it is the entity that was counted.
    #[test]
    fn s1_no_spelling_reaches_an_entity_that_was_not_counted(paths in prop::collection::vec(spelling(), 8)) {
        for path in paths {
            let Ok(routed) = by_path(&sports(), &path) else { continue };
            let counted = routed.entity.map(|entity| entity.to_string());
            for server in Server::all() {
                if let Some(served) = server.serves(&routed.path) {
                    prop_assert_eq!(&counted, &Some(served), "{} sent as {} to {:?}", path, routed.path, server);
                }
            }
        }
    }

    /// What is sent is read again as the same, so a second gateway changes nothing.
    #[test]
    fn routing_the_sent_path_changes_nothing(path in spelling()) {
        if let Ok(routed) = by_path(&sports(), &path) {
            prop_assert_eq!(by_path(&sports(), &routed.path), Ok(routed));
        }
    }

    /// Nothing that comes over the wire panics.
    #[test]
    fn any_text_is_routed_or_refused(path in ".{0,40}", query in ".{0,40}", body in prop::collection::vec(any::<u8>(), 0..60)) {
        for source in [From::Path, From::Query("a".into()), From::Body(vec!["a".into()])] {
            let entities = Entities { from: source, ..Entities::default() };
            let slashed = format!("/{path}");
            let asked = Asked { path: &slashed, query: &query, body: &body, ..Asked::default() };
            drop(entities.route(&asked));
        }
        drop(Glob::parse(&path));
        drop(crate::domain::Domain::parse(&path));
    }
}
