//! Entities: the document's examples, and every known way to bypass a limit.

use super::*;

pub(super) fn sports() -> Entities {
    Entities::default().strip("/v3/football").unwrap()
}

pub(super) fn by_path(entities: &Entities, path: &str) -> Result<EntityRoute, EntityError> {
    entities.route(&EntityRequest {
        path,
        ..EntityRequest::default()
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

/// Every path of a provider of language models names the same model.
#[test]
fn a_model_is_one_entity_whichever_path_names_it() {
    let model = Entities {
        source: EntitySource::Model,
        ..Entities::default()
    };
    let of = |path: &str, body: &str| {
        let request = EntityRequest {
            path,
            body: body.as_bytes(),
            ..EntityRequest::default()
        };
        let entity = model.route(&request).unwrap().entity;
        entity.map(|entity| entity.to_string())
    };
    for path in [
        "/v1beta/models/gemini-pro:generateContent",
        "/v1beta/models/gemini-pro:streamGenerateContent",
        "/v1/models/Gemini-Pro:countTokens",
        "/v1beta/models/gemini-pro%3AgenerateContent",
        "/openai/deployments/gemini-pro/chat/completions",
    ] {
        assert_eq!(
            of(path, r#"{"model":"other"}"#),
            some("gemini-pro"),
            "{path}"
        );
        assert!(!model.reads_body(path), "{path}");
    }
    for body in [
        r#"{"model":"gemini-pro"}"#,
        r#"{"model":"models/gemini-pro"}"#,
        r#"{"model":"tunedModels/gemini-pro"}"#,
    ] {
        assert_eq!(
            of("/v1beta/openai/chat/completions", body),
            some("gemini-pro")
        );
        assert_eq!(of("/openai/v1/responses", body), some("gemini-pro"));
    }
    assert!(model.reads_body("/openai/v1/responses"));
    assert_eq!(of("/v1beta/models", ""), None);
    assert_eq!(
        of("/v1/chat/completions", r#"{"model":"openai/gpt-oss"}"#),
        some("openai/gpt-oss")
    );
    let twice = EntityRequest {
        path: "/openai/v1/responses",
        body: br#"{"model":"a","model":"b"}"#,
        ..EntityRequest::default()
    };
    assert_eq!(model.route(&twice), Err(EntityError::Body));
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
    let request = EntityRequest {
        named: Some("Odds"),
        path: "/v3/football/teams",
        ..EntityRequest::default()
    };
    let routed = sports().route(&request).unwrap();
    assert_eq!(routed.entity, Some(Entity::named("odds").unwrap()));
    for bad in ["", " ", "a b", "ödds", &"x".repeat(ENTITY_MAX + 1)] {
        let request = EntityRequest {
            named: Some(bad),
            ..request
        };
        assert_eq!(sports().route(&request), Err(EntityError::Name), "{bad}");
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

/// S1, R-E3: an ambiguous path is rejected, with the reason.
#[test]
fn s1_ambiguous_paths_are_rejected() {
    let sports = sports();
    for (path, why) in [
        ("v3/football/odds", EntityError::NoSlash),
        ("/v3/football/odds x", EntityError::Character),
        ("/v3\\football/odds", EntityError::Character),
        ("/v3/football/odds?x", EntityError::Character),
        ("/v3/football/ödds", EntityError::Character),
        ("/v3/football/odds%", EntityError::Percent),
        ("/v3/football/odds%2", EntityError::Percent),
        ("/v3/football/odds%zz", EntityError::Percent),
        ("/v3/football/odds%00", EntityError::Control),
        ("/v3/football/odds%2500", EntityError::Control),
        ("/v3/football/odds%0a", EntityError::Control),
        (
            "/v3/football/teams/%c0%ae%c0%ae/odds",
            EntityError::Overlong,
        ),
        ("/v3/football/teams/..;/odds", EntityError::HiddenDots),
        ("/v3/football/teams/..%3b/odds", EntityError::HiddenDots),
        ("/v3/football/teams%2f..%2fodds", EntityError::HiddenDots),
        ("/v3/football/teams/..%5codds", EntityError::HiddenDots),
        (
            "/v3/football/teams/%252e%252e/odds",
            EntityError::HiddenDots,
        ),
        ("/v3/football/teams/.../odds", EntityError::HiddenDots),
        ("/v3/football/%2525252525", EntityError::HiddenDots),
        ("/v3%2ffootball/odds", EntityError::Path),
        ("/v3/football%2fodds", EntityError::Path),
        ("/v3/football/odds%2f7", EntityError::Path),
        ("/v3/football/odds%5c7", EntityError::Path),
        ("/v3/football/%256fdds", EntityError::Path),
        ("/v3/football/%ef%bd%8fdds", EntityError::NotAscii),
    ] {
        assert_eq!(by_path(&sports, path), Err(why), "{path}");
    }
    let long = format!("/{}", "a".repeat(PATH_MAX));
    assert_eq!(by_path(&sports, &long), Err(EntityError::TooLong));
    let deep = "/a".repeat(SEGMENTS_MAX + 1);
    assert_eq!(by_path(&sports, &deep), Err(EntityError::TooLong));
}

#[test]
fn ambiguity_means_no_entity_where_nothing_depends_on_it() {
    let entities = Entities {
        on_ambiguity: OnAmbiguity::NoEntity,
        ..Entities::default()
    };
    let routed = by_path(&entities, "/group%2fproject/issues").unwrap();
    assert_eq!(
        routed,
        EntityRoute {
            entity: None,
            path: "/group%2Fproject/issues".to_owned()
        }
    );
    assert_eq!(by_path(&entities, "/a/..;/b"), Err(EntityError::HiddenDots));
}

#[test]
fn a_segment_too_long_for_a_name_has_no_entity() {
    let path = format!("/{}", "a".repeat(ENTITY_MAX + 1));
    assert_eq!(name(&Entities::default(), &path), None);
}

fn from(from: EntitySource, request: EntityRequest<'_>) -> Result<Option<String>, EntityError> {
    let entities = Entities {
        source: from,
        ..Entities::default()
    };
    let request = EntityRequest {
        path: "/query",
        ..request
    };
    let routed = entities.route(&request)?;
    Ok(routed.entity.map(|entity| entity.to_string()))
}

/// S1: entity by query parameter.
#[test]
fn s1_the_entity_is_taken_from_the_query() {
    let by = |query| {
        from(
            EntitySource::Query("function".into()),
            EntityRequest {
                query,
                ..EntityRequest::default()
            },
        )
    };
    assert_eq!(by("function=OVERVIEW&symbol=A"), Ok(some("overview")));
    assert_eq!(by("symbol=A&%46unction=over%76iew"), Ok(some("overview")));
    assert_eq!(by("function=a&FUNCTION=A"), Ok(some("a")));
    assert_eq!(by("symbol=A"), Ok(None));
    assert_eq!(by("function=a&function=b"), Err(EntityError::Query));
    assert_eq!(by("function[]=a"), Err(EntityError::Query));
    assert_eq!(by("function=a;function=b"), Err(EntityError::Query));
    assert_eq!(by("function=%ff"), Err(EntityError::NotAscii));
}

/// S1: entity by header and by host.
#[test]
fn s1_the_entity_is_taken_from_a_header_or_the_host() {
    let by = |headers| {
        from(
            EntitySource::Header("x-kind".into()),
            EntityRequest {
                headers,
                ..EntityRequest::default()
            },
        )
    };
    assert_eq!(by(&[("X-Kind", " Odds ")]), Ok(some("odds")));
    assert_eq!(
        by(&[("X-Kind", "a"), ("x-kind", "b")]),
        Err(EntityError::Header)
    );
    assert_eq!(by(&[]), Ok(None));
    let host = Host::parse("Shop-1.MyShopify.com:443").unwrap();
    let request = EntityRequest {
        host: Some(&host),
        ..EntityRequest::default()
    };
    assert_eq!(
        from(EntitySource::Host, request),
        Ok(some("shop-1.myshopify.com"))
    );
}

/// S1: entity by field of the body.
#[test]
fn s1_the_entity_is_taken_from_the_body() {
    let field = || EntitySource::Body(vec!["model".to_owned()]);
    let by = |body: &str| {
        from(
            field(),
            EntityRequest {
                body: body.as_bytes(),
                ..EntityRequest::default()
            },
        )
    };
    assert_eq!(
        by(r#"{"messages":[{"model":"x"}],"model":"GPT-x"}"#),
        Ok(some("gpt-x"))
    );
    assert_eq!(by(r#"{"n":1}"#), Ok(None));
    assert_eq!(by(""), Ok(None));
    assert_eq!(by(r#"{"model":"a","model":"b"}"#), Err(EntityError::Body));
    assert_eq!(by(r#"{"model":"a","Model":"b"}"#), Err(EntityError::Body));
    assert_eq!(by(r#"{"model":"a"} {"model":"b"}"#), Err(EntityError::Body));
    assert_eq!(by("model=a"), Err(EntityError::Body));
    assert_eq!(by(&"[".repeat(10_000)), Err(EntityError::Body));
    assert_eq!(by(&" ".repeat(BODY_MAX + 1)), Err(EntityError::Body));
    let deep = EntitySource::Body(vec!["a".to_owned(), "b".to_owned()]);
    let request = EntityRequest {
        body: br#"{"a":{"b":7},"b":8}"#,
        ..EntityRequest::default()
    };
    assert_eq!(from(deep, request), Ok(some("7")));
}

#[test]
fn patterns_that_can_never_match_are_rejected() {
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
