//! Recipes for merging: which calls are parts of one larger call, what its target is, and how each
//! part is extracted from its response.
//!
//! There are two: TMDB's `append_to_response` (`/movie/550/credits` and `/movie/550/images` are
//! parts of `/movie/550`), and TheTVDB's `/extended`, which contains the plain record.
//!
//! Promises: a part equals, as JSON, the response of its own call; its bytes are the provider's. If
//! that is uncertain, a call is not a part.
//!
//! Never: guesses. A missing part is `None`, and its caller sends its own call.

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use tollgate_config::settings::Merge;

/// The most parts of one call; TMDB allows twenty.
pub(crate) const PARTS_MAX: usize = 20;

/// A part of a larger call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemPart {
    /// The path of the item, without a trailing slash.
    pub(crate) item: String,
    /// Which part of it.
    pub(crate) kind: PartKind,
}

/// Which part of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// The item itself.
    Item,
    /// A subresource, by its name in the larger response.
    Below(&'static str),
    /// The larger response itself.
    All,
}

/// The subresources of a TMDB item. The response of each one repeats the item's id.
const TMDB: [(&str, &[&str]); 3] = [
    (
        "movie",
        &[
            "alternative_titles",
            "credits",
            "external_ids",
            "images",
            "keywords",
            "release_dates",
            "translations",
            "videos",
            "watch/providers",
        ],
    ),
    (
        "tv",
        &[
            "aggregate_credits",
            "alternative_titles",
            "content_ratings",
            "credits",
            "episode_groups",
            "external_ids",
            "images",
            "keywords",
            "screened_theatrically",
            "translations",
            "videos",
            "watch/providers",
        ],
    ),
    (
        "person",
        &[
            "combined_credits",
            "external_ids",
            "images",
            "movie_credits",
            "translations",
            "tv_credits",
        ],
    ),
];

/// The fields of TheTVDB's plain records, by kind.
const TVDB: [(&str, &[&str]); 3] = [
    (
        "series",
        &[
            "aliases",
            "averageRuntime",
            "country",
            "defaultSeasonType",
            "episodes",
            "firstAired",
            "id",
            "image",
            "isOrderRandomized",
            "lastAired",
            "lastUpdated",
            "name",
            "nameTranslations",
            "nextAired",
            "originalCountry",
            "originalLanguage",
            "overviewTranslations",
            "overview",
            "score",
            "slug",
            "status",
            "year",
        ],
    ),
    (
        "movies",
        &[
            "aliases",
            "id",
            "image",
            "lastUpdated",
            "name",
            "nameTranslations",
            "overviewTranslations",
            "runtime",
            "score",
            "slug",
            "status",
            "year",
        ],
    ),
    (
        "people",
        &[
            "aliases",
            "id",
            "image",
            "lastUpdated",
            "name",
            "nameTranslations",
            "overviewTranslations",
            "score",
        ],
    ),
];

/// The item and part that a call requests; `None` = it cannot be merged.
pub(crate) fn part(recipe: Merge, path: &str, query: Option<&str>) -> Option<ItemPart> {
    match recipe {
        Merge::Off => None,
        Merge::TmdbAppend => tmdb_part(path, query),
        Merge::TvdbExtended => tvdb_part(path, query),
    }
}

/// The path and query that return all these parts of one item at once.
pub(crate) fn merged_target(
    recipe: Merge,
    item: &str,
    query: Option<&str>,
    pieces: &[PartKind],
) -> (String, Option<String>) {
    match recipe {
        Merge::Off => (item.to_owned(), query.map(str::to_owned)),
        Merge::TmdbAppend => {
            let below = pieces.iter().filter_map(|piece| match piece {
                PartKind::Below(name) => Some(*name),
                PartKind::Item | PartKind::All => None,
            });
            let names: Vec<&str> = below.collect();
            let append = format!("append_to_response={}", names.join(","));
            let query = match query.filter(|query| !query.is_empty()) {
                Some(query) => format!("{query}&{append}"),
                None => append,
            };
            (item.to_owned(), Some(query))
        }
        Merge::TvdbExtended => (format!("{item}/extended"), query.map(str::to_owned)),
    }
}

/// Extracts a part from the larger response.
pub(crate) fn extract(
    recipe: Merge,
    part: &ItemPart,
    pieces: &[PartKind],
    whole: &Bytes,
) -> Option<Bytes> {
    let object: JsonObject<'_> = serde_json::from_slice(whole).ok()?;
    match (recipe, &part.kind) {
        (Merge::Off, _) => None,
        (_, PartKind::All) => Some(whole.clone()),
        (Merge::TmdbAppend, PartKind::Item) => {
            let is_own =
                |name: &str| !pieces.contains(&PartKind::Below(known_name(name).unwrap_or("")));
            Some(object.with_fields(is_own))
        }
        (Merge::TmdbAppend, PartKind::Below(name)) => {
            let text = object.get(name)?.get();
            let below: JsonObject<'_> = serde_json::from_str(text).ok()?;
            if below.get("success").is_some() || below.get("status_code").is_some() {
                return None; // the provider could not return this part
            }
            if below.get("id").is_some() {
                return Some(Bytes::copy_from_slice(text.as_bytes()));
            }
            let id = object.get("id")?;
            let mut with_id = JsonObject::default();
            with_id.0.push(("id".into(), id));
            with_id.0.extend(below.0);
            Some(with_id.with_fields(|_| true))
        }
        (Merge::TvdbExtended, PartKind::Item) => {
            let kind = kind(&part.item)?;
            let (_, fields) = TVDB.iter().find(|(name, _)| *name == kind)?;
            let data: JsonObject<'_> = serde_json::from_str(object.get("data")?.get()).ok()?;
            let data = data.with_fields(|name| fields.contains(&name));
            let data = std::str::from_utf8(&data).ok()?;
            let data = RawValue::from_string(data.to_owned()).ok()?;
            let fields = object.0.iter().map(|(name, value)| {
                let is_data = name == "data";
                (name.clone(), if is_data { &*data } else { *value })
            });
            Some(JsonObject(fields.collect()).with_fields(|_| true))
        }
        (Merge::TvdbExtended, PartKind::Below(_)) => None,
    }
}

fn tmdb_part(path: &str, query: Option<&str>) -> Option<ItemPart> {
    // Pages and own lists concern one part only.
    if parameter_names(query).any(|name| ["page", "append_to_response"].contains(&name)) {
        return None;
    }
    let (base, kind, id, below) = split_path(path)?;
    let (_, known) = TMDB.iter().find(|(name, _)| *name == kind)?;
    let piece = match below {
        "" => PartKind::Item,
        below => PartKind::Below(known.iter().find(|name| **name == below)?),
    };
    Some(ItemPart {
        item: format!("{base}/{kind}/{id}"),
        kind: piece,
    })
}

fn tvdb_part(path: &str, query: Option<&str>) -> Option<ItemPart> {
    if query.is_some_and(|query| !query.is_empty()) {
        return None; // `meta` and `short` concern only one of the two
    }
    let (base, kind, id, below) = split_path(path)?;
    TVDB.iter().find(|(name, _)| *name == kind)?;
    let piece = match below {
        "" => PartKind::Item,
        "extended" => PartKind::All,
        _ => return None,
    };
    Some(ItemPart {
        item: format!("{base}/{kind}/{id}"),
        kind: piece,
    })
}

/// `/3/movie/550/watch/providers` → `/3`, `movie`, `550`, `watch/providers`.
fn split_path(path: &str) -> Option<(&str, &str, &str, &str)> {
    let mut at = 0;
    let mut pieces = path.strip_prefix('/')?.split('/');
    let mut kind = pieces.next()?;
    // At most a version precedes the kind.
    let is_version = |piece: &str| {
        let digits = piece.trim_start_matches('v');
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if is_version(kind) {
        at = 1 + kind.len();
        kind = pieces.next()?;
    }
    let id = pieces.next()?;
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let below_at = at + 1 + kind.len() + 1 + id.len();
    let below = path.get(below_at..)?;
    Some((
        path.get(..at)?,
        kind,
        id,
        below.strip_prefix('/').unwrap_or(below),
    ))
}

/// The kind of an item, from its path.
fn kind(item: &str) -> Option<&str> {
    split_path(item).map(|(_, kind, _, _)| kind)
}

/// The name as the tables have it.
fn known_name(name: &str) -> Option<&'static str> {
    let all = TMDB.iter().flat_map(|(_, known)| known.iter());
    all.copied().find(|known| *known == name)
}

fn parameter_names(query: Option<&str>) -> impl Iterator<Item = &str> {
    let parts = query.unwrap_or_default().split('&');
    parts.map(|part| part.split('=').next().unwrap_or(part))
}

/// A JSON object whose values keep their original text.
#[derive(Default)]
struct JsonObject<'a>(Vec<(std::borrow::Cow<'a, str>, &'a RawValue)>);

impl<'a> JsonObject<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| *value)
    }

    /// The object with these fields only, as text.
    fn with_fields(&self, wanted: impl Fn(&str) -> bool) -> Bytes {
        let mut text = String::from("{");
        for (name, value) in self.0.iter().filter(|(name, _)| wanted(name)) {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&serde_json::Value::from(name.as_ref()).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text.into()
    }
}

impl<'de> Deserialize<'de> for JsonObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonObject<'de>, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = JsonObject<'de>;

            fn expecting(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                text.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<JsonObject<'de>, M::Error> {
                let mut fields = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    fields.push((name.into(), map.next_value()?));
                }
                Ok(JsonObject(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
