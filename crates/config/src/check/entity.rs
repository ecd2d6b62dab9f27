//! The `entities` block: where entities are read from, and the settings of each.
//!
//! Promises: if anything depends on the entity (a limit, a lifetime, dedup), a call whose entity is
//! ambiguous is rejected; otherwise the call has no entity.
//!
//! Never: reads an entity. `core` does.

use tollgate_core::entity::{Entities, Entity, EntitySource, Glob, OnAmbiguity};

use super::table::ENTITIES;
use crate::amount::Lifetime;
use crate::field::{At, Fields};
use crate::problem::Problems;
use crate::provider::{Limit, Per};
use crate::setting::{Setting, open, read_text};
use crate::settings::Dedup;
use crate::shape::Shape;

/// The most rules: each is tried for each call.
const RULES_MAX: usize = 256;

/// The checked block.
#[derive(Default)]
pub(super) struct EntitySettings {
    pub(super) entities: Entities,
    pub(super) ttl: Vec<(Entity, Lifetime)>,
    pub(super) dedup: Vec<(Entity, Dedup)>,
}

impl Setting for EntitySource {
    const SHAPE: Shape = Shape::Text;

    fn read(at: &At<'_>, problems: &mut Problems) -> Option<EntitySource> {
        let read = |text: &str| match text.split_once(':') {
            None if text == "path" => Some(EntitySource::Path),
            None if text == "host" => Some(EntitySource::Host),
            None if text == "model" => Some(EntitySource::Model),
            Some((_, "")) | None => None,
            Some(("query", name)) => Some(EntitySource::Query(name.to_owned())),
            Some(("header", name)) => Some(EntitySource::Header(name.to_owned())),
            Some(("body", name)) => Some(EntitySource::Body(
                name.split('.').map(str::to_owned).collect(),
            )),
            Some(_) => None,
        };
        read_text(
            at,
            problems,
            read,
            "is not a place where an entity can be read",
            "write `path`, `host`, `model`, `query:NAME`, `header:NAME` or `body:FIELD`",
        )
    }
}

pub(super) fn entities(
    fields: &Fields<'_>,
    limits: &[Limit],
    problems: &mut Problems,
) -> EntitySettings {
    let mut found = EntitySettings::default();
    if let Some(at) = fields.get("entities")
        && let Some(block) = open(&at, ENTITIES, problems)
    {
        found.entities.source = super::or_default(&block, "from", problems);
        found.entities = rules(&block, strip(&block, found.entities, problems), problems);
        found.ttl = by_name(&block, "ttl", problems);
        found.dedup = by_name(&block, "dedup", problems);
    }
    let counted = limits.iter().any(|limit| limit.per == Per::Entity);
    found.entities.on_ambiguity = if counted || !found.ttl.is_empty() || !found.dedup.is_empty() {
        OnAmbiguity::Reject
    } else {
        OnAmbiguity::NoEntity
    };
    found
}

fn strip(block: &Fields<'_>, entities: Entities, problems: &mut Problems) -> Entities {
    let Some(at) = block.get("strip") else {
        return entities;
    };
    let Some(prefix) = at.text(problems) else {
        return entities;
    };
    match entities.clone().strip(prefix.trim()) {
        Ok(stripped) => stripped,
        Err(error) => {
            problems.push(at.error_from(&error));
            entities
        }
    }
}

fn rules(block: &Fields<'_>, mut entities: Entities, problems: &mut Problems) -> Entities {
    let Some(at) = block.get("rules") else {
        return entities;
    };
    let written = at.entries(problems);
    if written.len() > RULES_MAX {
        problems.push(at.error("has more than 256 rules", "join some with `*` and `**`"));
    }
    for (pattern, _, value) in written {
        let glob = Glob::parse(pattern).map_err(|error| problems.push(value.error_from(&error)));
        if let (Ok(glob), Some(entity)) = (glob, named(&value, value.node.text(), problems)) {
            entities = entities.rule(glob, entity);
        }
    }
    entities
}

/// `{teams: 24h, standings: 5m..10m}`.
fn by_name<T: Setting>(
    block: &Fields<'_>,
    field: &str,
    problems: &mut Problems,
) -> Vec<(Entity, T)> {
    let Some(at) = block.get(field) else {
        return Vec::new();
    };
    let mut named_values = Vec::new();
    for (name, _, value) in at.entries(problems) {
        let entity = named(&value, Some(name), problems);
        let setting = T::read(&value, problems);
        named_values.extend(entity.zip(setting));
    }
    named_values
}

fn named(at: &At<'_>, name: Option<&str>, problems: &mut Problems) -> Option<Entity> {
    match Entity::named(name.unwrap_or_default()) {
        Ok(entity) => Some(entity),
        Err(_) => {
            problems.push(at.error(
                "is not the name of an entity",
                "write a word such as `odds`",
            ));
            None
        }
    }
}
