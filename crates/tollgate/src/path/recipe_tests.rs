//! Recipes: what is a part of what, and that each part is what its own call would have answered.

use serde_json::{Value, json};

use super::*;

const TMDB_MERGE: Merge = Merge::TmdbAppend;
const TVDB_MERGE: Merge = Merge::TvdbExtended;

fn of(path: &str, query: Option<&str>) -> Option<(String, Piece)> {
    part(TMDB_MERGE, path, query).map(|part| (part.item, part.piece))
}

#[test]
fn m15_what_hangs_below_a_tmdb_item_is_a_part_of_it() {
    let item = "/3/movie/550".to_owned();
    assert_eq!(of("/3/movie/550", None), Some((item.clone(), Piece::Item)));
    assert_eq!(
        of("/3/movie/550/credits", Some("language=de")),
        Some((item.clone(), Piece::Below("credits")))
    );
    assert_eq!(
        of("/3/movie/550/watch/providers", None),
        Some((item, Piece::Below("watch/providers")))
    );
}

#[test]
fn m15_what_is_not_surely_a_part_is_none() {
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
fn m15_the_larger_call_appends_what_is_wanted() {
    let pieces = [Piece::Below("credits"), Piece::Item, Piece::Below("images")];
    let (path, query) = whole(TMDB_MERGE, "/3/movie/550", Some("language=de"), &pieces);
    assert_eq!(path, "/3/movie/550");
    assert_eq!(
        query.as_deref(),
        Some("language=de&append_to_response=credits,images")
    );
}

/// Numbers keep their digits, and order and spelling of a part are the provider's.
#[test]
fn m15_each_tmdb_part_is_what_its_own_call_would_have_answered() {
    let text = r#"{"id": 550,"score":8.4330000000000000001,"title":"Fight Club\u0021",
        "credits":{"cast":[{"id":819,"order":0}],"crew":[]},
        "images":{"posters":[]},"budget":123456789012345678901234567890}"#;
    let pieces = [Piece::Below("credits"), Piece::Item, Piece::Below("images")];
    let get = |piece: &Piece| {
        let part = Part {
            item: "/3/movie/550".to_owned(),
            piece: piece.clone(),
        };
        let bytes = cut(TMDB_MERGE, &part, &pieces, &Bytes::from(text)).expect("a part");
        String::from_utf8(bytes.to_vec()).unwrap()
    };
    assert_eq!(
        get(&pieces[0]),
        r#"{"id":550,"cast":[{"id":819,"order":0}],"crew":[]}"#
    );
    assert_eq!(get(&pieces[2]), r#"{"id":550,"posters":[]}"#);
    let item = get(&Piece::Item);
    assert!(item.contains("8.4330000000000000001"), "{item}");
    assert!(item.contains("123456789012345678901234567890"), "{item}");
    let value: Value = serde_json::from_str(&item).unwrap();
    assert_eq!(value["title"], "Fight Club!");
    assert!(value.get("credits").is_none() && value.get("images").is_none());
}

#[test]
fn m15_a_part_that_is_missing_or_an_error_is_none() {
    let pieces = [Piece::Below("credits"), Piece::Below("images")];
    let cut = |text: &str| {
        let part = Part {
            item: "/3/movie/550".to_owned(),
            piece: pieces[0].clone(),
        };
        cut(TMDB_MERGE, &part, &pieces, &Bytes::from(text.to_owned()))
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
    let of = |path: &str| part(TVDB_MERGE, path, None).map(|part| part.piece);
    assert_eq!(of("/v4/series/121361"), Some(Piece::Item));
    assert_eq!(of("/v4/series/121361/extended"), Some(Piece::All));
    assert_eq!(of("/v4/series/121361/episodes/default"), None);
    assert_eq!(
        part(TVDB_MERGE, "/v4/series/1/extended", Some("short=true")),
        None
    );
    let extended = json!({
        "status": "success",
        "data": {"id": 121_361, "name": "Game of Thrones", "slug": "got", "artworks": [1], "characters": []},
    });
    let item = Part {
        item: "/v4/series/121361".to_owned(),
        piece: Piece::Item,
    };
    let whole = Bytes::from(extended.to_string());
    let plain = cut(TVDB_MERGE, &item, &[Piece::Item, Piece::All], &whole).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&plain).unwrap(),
        json!({
            "status": "success",
            "data": {"id": 121_361, "name": "Game of Thrones", "slug": "got"},
        })
    );
}
