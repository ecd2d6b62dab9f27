//! Which entity a call is about, and the path that is sent.
//!
//! Promises: the path that is matched is the path that is sent. The entity depends on exactly the
//! bytes that are sent, and it is the same for every way in which a provider may read them (`%2e`,
//! `//`, case, `;x`, `%2f`, trailing dots); if two readings disagree, the call is rejected with the
//! reason. So no spelling bypasses a limit.
//!
//! Never: guesses. Never changes the meaning of a path: only dot segments are resolved and
//! unnecessary percent-encoding is decoded, as RFC 3986 allows.

mod path;
pub use path::{PATH_MAX, SEGMENTS_MAX};
mod glob;
pub use glob::{Glob, GlobError};
mod field;
pub use field::BODY_MAX;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod servers;

use std::fmt;

use crate::domain::Host;
use path::{PathReading, Segment};

/// The longest name of an entity. Real ones have some twenty letters; a longer one is an id, and
/// the call counts as one without an entity.
pub const ENTITY_MAX: usize = 128;

/// The name of an entity: lower case, never empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity(String);

impl Entity {
    /// A name given by a caller or a file. Case does not matter.
    pub fn named(name: &str) -> Result<Entity, EntityError> {
        let name = name.trim();
        let telling = name.bytes().all(|byte| byte.is_ascii_graphic());
        if name.is_empty() || name.len() > ENTITY_MAX || !telling {
            return Err(EntityError::Name);
        }
        Ok(Entity(name.to_ascii_lowercase()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where to read a provider's entities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EntitySource {
    /// The first segment of the path that is no version.
    #[default]
    Path,
    /// The host of the call.
    Host,
    /// A parameter of the query.
    Query(String),
    /// A request header.
    Header(String),
    /// A field of the JSON body, level by level.
    Body(Vec<String>),
    /// The language model: in the path after `models` or `deployments`, up to a `:`, else the field
    /// `model` of the JSON body.
    Model,
}

/// What to do with a call whose entity is ambiguous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAmbiguity {
    /// Reject it: a limit or TTL depends on the entity.
    #[default]
    Reject,
    /// Treat it as a call without an entity: nothing depends on it.
    NoEntity,
}

/// How to find the entities of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entities {
    /// Where to read them.
    pub source: EntitySource,
    /// What to do if the entity is ambiguous.
    pub on_ambiguity: OnAmbiguity,
    strip: Vec<Segment>,
    rules: Vec<(Glob, Entity)>,
}

/// The parts of a call that can name its entity. Absent parts are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntityRequest<'a> {
    /// The name that the caller gave explicitly; it takes precedence.
    pub named: Option<&'a str>,
    /// The host of the call.
    pub host: Option<&'a Host>,
    /// The path as received, without the query.
    pub path: &'a str,
    /// The query as received, without `?`.
    pub query: &'a str,
    /// The request's headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The part of the request's body that was read.
    pub body: &'a [u8],
}

/// The entity of a call, and the path to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityRoute {
    /// The entity; calls without one are counted together.
    pub entity: Option<Entity>,
    /// The path to send, in place of the received one.
    pub path: String,
}

/// Why a call is rejected: a server could read it differently than we do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntityError {
    /// The path does not begin with `/`.
    #[error("the path does not begin with `/`; send `/path`")]
    NoSlash,
    /// The path is longer, or has more segments, than any API needs.
    #[error("the path has more than 8192 bytes or 256 segments; shorten it or send a body")]
    TooLong,
    /// A character that must be percent-encoded, or `?` and `#`, in the path.
    #[error(
        "the path has a character that must be percent-encoded (blank, control, `\\`, `?`, `#` or a letter outside ASCII); encode it"
    )]
    Character,
    /// `%zz` or a `%` at the end.
    #[error(
        "the path has a `%` that is not followed by two hexadecimal digits; write `%25` for a percent sign"
    )]
    Percent,
    /// `%00`, `%0a` and the like.
    #[error("the path has an encoded control character; remove it")]
    Control,
    /// Overlong UTF-8, which only a faulty decoder accepts.
    #[error(
        "the path has a UTF-8 sequence longer than it needs to be; encode the character plainly"
    )]
    Overlong,
    /// `.` or `..` behind an encoded slash, a `;` or a second encoding.
    #[error(
        "the path hides a `.` or `..` segment (behind `%2f`, `%5c`, `;` or a second encoding); write the resolved path"
    )]
    HiddenDots,
    /// Two readings of the path give two entities.
    #[error(
        "the entity of the path depends on how a server decodes it; write it without `%2f`, `%5c` and double encoding"
    )]
    Path,
    /// A segment that decides the entity has letters outside ASCII.
    #[error(
        "the part of the call that names the entity has letters outside ASCII, which servers compare differently; name the entity with X-Tollgate-Entity"
    )]
    NotAscii,
    /// The parameter occurs with two values, or in a form that servers read differently.
    #[error(
        "the query names the entity twice or in a form that servers read differently; give the parameter once"
    )]
    Query,
    /// The header occurs with two values.
    #[error("the header that names the entity has two values; send it once")]
    Header,
    /// The body has the field twice, is too large for `upload.spool`, or is not JSON.
    #[error(
        "the body names the entity twice, is larger than `upload.spool`, or is not JSON; send the field once or name the entity with X-Tollgate-Entity"
    )]
    Body,
    /// The explicit name is empty, too long, or not printable ASCII without spaces.
    #[error(
        "the name of the entity is empty, over 128 characters, has a space, or is not printable ASCII; send a shorter plain name"
    )]
    Name,
}

impl Entities {
    /// Drops this prefix before the entity is read, segment by segment.
    pub fn strip(mut self, prefix: &str) -> Result<Entities, EntityError> {
        let rooted = if prefix.starts_with('/') {
            prefix.to_owned()
        } else {
            format!("/{prefix}")
        };
        self.strip = path::single_reading(&rooted)?;
        Ok(self)
    }

    /// Names the entity of every path that a pattern matches; the first match wins.
    #[must_use]
    pub fn rule(mut self, pattern: Glob, entity: Entity) -> Entities {
        self.rules.push((pattern, entity));
        self
    }

    /// Does a header name the entity? If not, callers need not pass headers.
    #[must_use]
    pub fn reads_headers(&self) -> bool {
        match self.source {
            EntitySource::Header(_) => true,
            EntitySource::Path
            | EntitySource::Host
            | EntitySource::Query(_)
            | EntitySource::Body(_)
            | EntitySource::Model => false,
        }
    }

    /// Does the body of a call to this path name the entity? If so, it must be read before the
    /// decision.
    #[must_use]
    pub fn reads_body(&self, path: &str) -> bool {
        match self.source {
            EntitySource::Body(_) => true,
            // A path that is rejected needs no body.
            EntitySource::Model => {
                let normalized = path::normalize(path);
                let named = normalized.and_then(|path| self.by_path(&path));
                named.is_ok_and(|named| named.is_none())
            }
            EntitySource::Path
            | EntitySource::Host
            | EntitySource::Query(_)
            | EntitySource::Header(_) => false,
        }
    }

    /// The field at the top of the JSON body under which the entity is named, if one is.
    #[must_use]
    pub fn body_field(&self) -> Option<&str> {
        match &self.source {
            EntitySource::Body(levels) => levels.first().map(String::as_str),
            EntitySource::Model => Some("model"),
            EntitySource::Path
            | EntitySource::Host
            | EntitySource::Query(_)
            | EntitySource::Header(_) => None,
        }
    }

    /// The entity of a call and the path to send.
    pub fn route(&self, request: &EntityRequest<'_>) -> Result<EntityRoute, EntityError> {
        let normalized = path::normalize(request.path)?;
        let found = match request.named {
            Some(name) => {
                return Ok(EntityRoute {
                    entity: Some(Entity::named(name)?),
                    path: normalized,
                });
            }
            None => self.find(request, &normalized),
        };
        let entity = match (found, self.on_ambiguity) {
            (Ok(entity), OnAmbiguity::Reject | OnAmbiguity::NoEntity) => entity,
            (Err(error), OnAmbiguity::Reject) => return Err(error),
            (Err(_), OnAmbiguity::NoEntity) => None,
        };
        Ok(EntityRoute {
            entity,
            path: normalized,
        })
    }

    fn find(
        &self,
        request: &EntityRequest<'_>,
        normalized: &str,
    ) -> Result<Option<Entity>, EntityError> {
        let value = match &self.source {
            EntitySource::Path => return self.by_path(normalized),
            EntitySource::Host => request.host.map(|host| host.as_str().to_owned()),
            EntitySource::Query(name) => field::in_query(request.query, name)?,
            EntitySource::Header(name) => field::in_headers(request.headers, name)?,
            EntitySource::Body(name) => field::in_body(request.body, name)?,
            EntitySource::Model => match self.by_path(normalized)? {
                Some(named) => return Ok(Some(named)),
                None => model_in_body(request.body)?,
            },
        };
        Ok(value.filter(|value| is_name(value)).map(Entity))
    }

    /// Every reading of the path must name the same entity.
    fn by_path(&self, normalized: &str) -> Result<Option<Entity>, EntityError> {
        let is_first_name =
            self.source == EntitySource::Path && self.strip.is_empty() && self.rules.is_empty();
        if is_first_name && let Some(mut segments) = path::only_reading(normalized) {
            // As below, for most paths and files: only one segment of the only reading is read.
            let first = segments.find(|segment| !segment.is_version());
            let name = first.map(Segment::into_ascii_text).transpose()?;
            return Ok(name.filter(|name| is_name(name)).map(Entity));
        }
        let mut readings = path::readings(normalized).into_iter();
        let first = match readings.next() {
            Some(reading) => self.by_reading(&reading)?,
            None => None,
        };
        for reading in readings {
            if self.by_reading(&reading)? != first {
                return Err(EntityError::Path);
            }
        }
        Ok(first)
    }

    fn by_reading(&self, reading: &PathReading) -> Result<Option<Entity>, EntityError> {
        let rest = without_prefix(reading, &self.strip)?;
        let versions = rest
            .iter()
            .take_while(|segment| segment.is_version())
            .count();
        let rest = rest.get(versions..).unwrap_or_default();
        for (glob, entity) in &self.rules {
            if glob.matches(rest)? {
                return Ok(Some(entity.clone()));
            }
        }
        let name = match self.source {
            EntitySource::Model => model_in_path(rest)?,
            EntitySource::Path
            | EntitySource::Host
            | EntitySource::Query(_)
            | EntitySource::Header(_)
            | EntitySource::Body(_) => rest.first().map(Segment::ascii_text).transpose()?,
        };
        let name = name.filter(|name| is_name(name));
        Ok(name.map(|name| Entity(name.to_owned())))
    }
}

/// The segments that a model's name follows: at Gemini, at Azure OpenAI, and before it.
const BEFORE_MODELS: [&str; 4] = ["models", "tunedmodels", "deployments", "engines"];

/// The model that a path names: `models/gemini-pro:generateContent`, `deployments/gpt/embeddings`.
fn model_in_path(segments: &[Segment]) -> Result<Option<&str>, EntityError> {
    let mut after = segments.iter();
    for segment in after.by_ref() {
        // A segment in other letters is no such word for any server.
        let is_before = segment
            .ascii_text()
            .is_ok_and(|text| BEFORE_MODELS.contains(&text));
        if is_before {
            break;
        }
    }
    let Some(name) = after.next() else {
        return Ok(None);
    };
    let name = name.ascii_text()?;
    // What follows is a method of the model.
    Ok(Some(name.split(':').next().unwrap_or(name)))
}

/// The model that a body names. Gemini also takes `models/NAME` and `tunedModels/NAME`; values of bodies are in lower case.
fn model_in_body(body: &[u8]) -> Result<Option<String>, EntityError> {
    let named = field::in_body(body, &["model".to_owned()])?;
    Ok(named.map(|name| {
        let mut bare = ["models/", "tunedmodels/"].iter();
        match bare.find_map(|prefix| name.strip_prefix(prefix)) {
            Some(bare) => bare.to_owned(),
            None => name,
        }
    }))
}

/// The segments after the prefix, or all of them if it is not there.
fn without_prefix<'a>(
    reading: &'a PathReading,
    prefix: &[Segment],
) -> Result<&'a [Segment], EntityError> {
    for (segment, wanted) in reading.iter().zip(prefix) {
        if segment.ascii_text()? != wanted.ascii_text()? {
            return Ok(reading);
        }
    }
    Ok(reading.get(prefix.len()..).unwrap_or(reading))
}

fn is_name(value: &str) -> bool {
    !value.is_empty() && value.len() <= ENTITY_MAX
}
