//! Recipes: which call is part of which, and that each part equals the response of its own call.

use serde_json::{Value, json};

use super::*;

const TMDB_MERGE: Merge = Merge::TmdbAppend;
const TVDB_MERGE: Merge = Merge::TvdbExtended;

fn of(path: &str, query: Option<&str>) -> Option<(String, PartKind)> {
    part(TMDB_MERGE, path, query).map(|part| (part.item, part.kind))
}

#[test]
fn m15_a_tmdb_subresource_is_a_part_of_its_item() {
    let item = "/3/movie/550".to_owned();
    assert_eq!(
        of("/3/movie/550", None),
        Some((item.clone(), PartKind::Item))
    );
    assert_eq!(
        of("/3/movie/550/credits", Some("language=de")),
        Some((item.clone(), PartKind::Below("credits")))
    );
    assert_eq!(
        of("/3/movie/550/watch/providers", None),
        Some((item, PartKind::Below("watch/providers")))
    );
}

#[test]
fn m15_an_uncertain_path_is_not_a_part() {
    for (path, query) in [
        ("/3/movie/popular", None),
        ("/3/movie/550/rating", None),
        ("/3/movie/550/similar", None),
        ("/3/movie/550/credits/", None),
        ("/3/movie//credits", None),
        ("/3/search/movie", Some("query=x")),
        ("/3/movie/550/credits", Some("page=2")),
        ("/3/movie/550", Some("append_to_response=images")),
        ("/3/movie/550;x/credits", None),
        ("/3", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(of(path, query), None, "{path} {query:?}");
    }
}

#[test]
fn m15_the_merged_call_appends_the_wanted_parts() {
    let pieces = [
        PartKind::Below("credits"),
        PartKind::Item,
        PartKind::Below("images"),
    ];
    let (path, query) = merged_target(TMDB_MERGE, "/3/movie/550", Some("language=de"), &pieces);
    assert_eq!(path, "/3/movie/550");
    assert_eq!(
        query.as_deref(),
        Some("language=de&append_to_response=credits,images")
    );
}

/// Numbers keep their digits, and a part keeps the provider's order and spelling.
#[test]
fn m15_each_tmdb_part_equals_the_response_of_its_own_call() {
    let text = r#"{"id": 550,"score":8.4330000000000000001,"title":"Fight Club\u0021",
        "credits":{"cast":[{"id":819,"order":0}],"crew":[]},
        "images":{"posters":[]},"budget":123456789012345678901234567890}"#;
    let pieces = [
        PartKind::Below("credits"),
        PartKind::Item,
        PartKind::Below("images"),
    ];
    let get = |piece: &PartKind| {
        let part = ItemPart {
            item: "/3/movie/550".to_owned(),
            kind: piece.clone(),
        };
        let bytes = extract(TMDB_MERGE, &part, &pieces, &Bytes::from(text)).expect("a part");
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    assert_eq!(
        get(&pieces[0]),
        r#"{"id":550,"cast":[{"id":819,"order":0}],"crew":[]}"#
    );
    assert_eq!(get(&pieces[2]), r#"{"id":550,"posters":[]}"#);
    let item = get(&PartKind::Item);
    assert!(item.contains("8.4330000000000000001"), "{item}");
    assert!(item.contains("123456789012345678901234567890"), "{item}");
    let value: Value = serde_json::from_str(&item).unwrap();
    assert_eq!(value["title"], "Fight Club!");
    assert!(value.get("credits").is_none() && value.get("images").is_none());
}

#[test]
fn m15_a_part_that_is_missing_or_an_error_is_none() {
    let pieces = [PartKind::Below("credits"), PartKind::Below("images")];
    let cut = |text: &str| {
        let part = ItemPart {
            item: "/3/movie/550".to_owned(),
            kind: pieces[0].clone(),
        };
        extract(TMDB_MERGE, &part, &pieces, &Bytes::from(text.to_owned()))
    };
    for text in [
        r#"{"id":550,"images":{}}"#,
        r#"{"id":550,"credits":{"success":false,"status_code":34}}"#,
        r#"{"id":550,"credits":null}"#,
        r#"{"credits":{"cast":[]}}"#,
        "[]",
        "no json",
        "",
    ] {
        assert_eq!(cut(text), None, "{text}");
    }
}

#[test]
fn m15_the_plain_tvdb_record_is_a_part_of_the_extended_one() {
    let of = |path: &str| part(TVDB_MERGE, path, None).map(|part| part.kind);
    assert_eq!(of("/v4/series/121361"), Some(PartKind::Item));
    assert_eq!(of("/v4/series/121361/extended"), Some(PartKind::All));
    assert_eq!(of("/v4/series/121361/episodes/default"), None);
    assert_eq!(
        part(TVDB_MERGE, "/v4/series/1/extended", Some("short=true")),
        None
    );
    let extended = json!({
        "status": "success",
        "data": {"id": 121_361, "name": "Game of Thrones", "slug": "got", "artworks": [1], "characters": []},
    });
    let item = ItemPart {
        item: "/v4/series/121361".to_owned(),
        kind: PartKind::Item,
    };
    let whole = Bytes::from(extended.to_string());
    let plain = extract(TVDB_MERGE, &item, &[PartKind::Item, PartKind::All], &whole).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&plain).unwrap(),
        json!({
            "status": "success",
            "data": {"id": 121_361, "name": "Game of Thrones", "slug": "got"},
        })
    );
}
