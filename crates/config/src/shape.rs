//! Shapes: the type of each field, as data.
//!
//! Promises: one table. Checks, the documentation, the JSON schema and the list of effective values
//! are all generated from the same fields, so they cannot disagree.
//!
//! Never: reads a value. A shape only describes it.

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Any text.
    Text,
    /// A key, token or password: a literal, `${ENV}` or `file:/path`; never shown.
    Secret,
    /// An address whose path may be a key: only scheme and host are shown.
    KeyedUrl,
    /// A whole number.
    Integer,
    /// A number with decimals, or a share such as `20%`.
    Decimal,
    /// `true` or `false`.
    Boolean,
    /// A length of time.
    Duration,
    /// A length of time; a bare number is minutes.
    Minutes,
    /// How long a response is cached.
    Lifetime,
    /// A number, or a share of a limit.
    Part,
    /// A number of bytes.
    Size,
    /// An address with a port.
    Address,
    /// One of these.
    Words(&'static [&'static str]),
    /// `off`, or this.
    OrOff(&'static Shape),
    /// One of it, or a list.
    List(&'static Shape),
    /// Names that the user chooses, each with this.
    Map(&'static Shape),
    /// Named fields.
    Block(&'static [Field]),
    /// Any of these.
    Either(&'static [Shape]),
}

/// A field of a block.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    pub(crate) doc: &'static str,
    /// Its type.
    pub shape: Shape,
    /// The default; empty if there is none to show.
    pub default: fn() -> String,
}

impl Field {
    /// Its meaning, as documentation text.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        self.doc.trim()
    }

    /// A field with a default that is a plain word.
    pub(crate) const fn new(
        name: &'static str,
        doc: &'static str,
        shape: Shape,
        default: fn() -> String,
    ) -> Field {
        Field {
            name,
            doc,
            shape,
            default,
        }
    }
}

/// No default that could be shown.
pub(crate) fn no_default() -> String {
    String::new()
}

impl Shape {
    /// The fields, if it is a block or may be one.
    #[must_use]
    pub fn fields(&self) -> Option<&'static [Field]> {
        match self {
            Shape::Block(fields) => Some(fields),
            Shape::OrOff(inner) => inner.fields(),
            Shape::Either(shapes) => shapes.iter().find_map(Shape::fields),
            Shape::Text
            | Shape::Secret
            | Shape::KeyedUrl
            | Shape::Integer
            | Shape::Decimal
            | Shape::Boolean
            | Shape::Duration
            | Shape::Minutes
            | Shape::Lifetime
            | Shape::Part
            | Shape::Size
            | Shape::Address
            | Shape::Words(_)
            | Shape::List(_)
            | Shape::Map(_) => None,
        }
    }

    /// What it is, in the words of the documentation.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Shape::Text | Shape::KeyedUrl => "text".to_owned(),
            Shape::Secret => "key".to_owned(),
            Shape::Integer => "whole number".to_owned(),
            Shape::Decimal => "number or share".to_owned(),
            Shape::Boolean => "boolean".to_owned(),
            Shape::Duration => "duration".to_owned(),
            Shape::Minutes => "duration, bare number = minutes".to_owned(),
            Shape::Lifetime => "lifetime".to_owned(),
            Shape::Part => "number or share".to_owned(),
            Shape::Size => "size".to_owned(),
            Shape::Address => "address".to_owned(),
            Shape::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                words.join(", ")
            }
            Shape::OrOff(inner) => format!("`off` or {}", inner.in_words()),
            Shape::List(inner) => format!("list of {}", inner.in_words()),
            Shape::Map(inner) => format!("name: {}", inner.in_words()),
            Shape::Block(_) => "block".to_owned(),
            Shape::Either(shapes) => {
                let words: Vec<String> = shapes.iter().map(Shape::in_words).collect();
                words.join(" or ")
            }
        }
    }
}

/// The names of fields.
#[must_use]
pub fn names(fields: &[Field]) -> Vec<&'static str> {
    fields.iter().map(|field| field.name).collect()
}

/// The same at compile time; N is the number of fields.
pub(crate) const fn names_of<const N: usize>(fields: &[Field]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = fields[at].name;
        at += 1;
    }
    names
}

/// The field of a path such as `health.ramp.factor`.
#[must_use]
pub fn find(fields: &'static [Field], path: &str) -> Option<&'static Field> {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let field = fields.iter().find(|field| field.name == first)?;
    match rest {
        None => Some(field),
        Some(rest) => find(field.shape.fields()?, rest),
    }
}
