//! `tollgate schema`: a JSON schema, so that editors complete and check configuration.
//!
//! Promises: generated from the same table of fields as the checks, so both reject unknown fields.
//!
//! Never: replaces `tollgate check`: a file that the schema accepts may still have problems.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use tollgate_config::check::PROVIDER;
use tollgate_config::config::CONFIG;
use tollgate_config::preset::PRESET_FIELDS;
use tollgate_config::shape::{Field, Shape};

const EXAMPLES: &str = "\
Example:
  tollgate schema provider > tollgate-provider.json
  then, as the first line of a provider file:
  # yaml-language-server: $schema=tollgate-provider.json";

/// Print a JSON schema for editors
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Schema {
    /// The kind of file
    #[arg(value_enum, default_value_t = Kind::Provider)]
    kind: Kind,
}

/// A kind of file.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// A provider file
    Provider,
    /// tollgate.yaml
    Config,
    /// A built-in provider file, with the fields that only presets have
    Preset,
}

impl Schema {
    /// Prints it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut out = crate::out::out();
        serde_json::to_writer_pretty(&mut out, &schema(self.kind))?;
        writeln!(out)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn schema(kind: Kind) -> Value {
    let (title, mut whole) = match kind {
        Kind::Provider => ("Tollgate provider file", block(PROVIDER)),
        Kind::Config => ("tollgate.yaml", block(CONFIG)),
        Kind::Preset => ("Tollgate preset", preset()),
    };
    if let Value::Object(whole) = &mut whole {
        whole.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        whole.insert("title".to_owned(), json!(title));
    }
    whole
}

/// A preset has more fields: plans, advice, sources.
fn preset() -> Value {
    let mut whole = block(PROVIDER);
    let mut tier = block(PROVIDER);
    tier["properties"]["note"] = json!({ "type": "string" });
    for name in PRESET_FIELDS {
        whole["properties"][name] = json!({});
    }
    whole["properties"]["tiers"] = json!({ "type": "object", "additionalProperties": tier });
    whole
}

fn block(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let mut value = shape(&field.shape);
        let default = (field.default)();
        let doc = match default.as_str() {
            "" => field.meaning().to_owned(),
            default => format!("{} (default: {default})", field.meaning()),
        };
        value["description"] = json!(doc);
        properties.insert(field.name.to_owned(), value);
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// A value may always be `${NAME}`, or null, which removes a preset's value.
fn shape(shape: &Shape) -> Value {
    let text = |pattern: &str| {
        let variable = r"\$\{[A-Za-z0-9_]+(:-[^}]*)?\}";
        json!({ "type": "string", "pattern": format!("^(?:{pattern}|.*{variable}.*)$") })
    };
    let either = |shapes: Vec<Value>| {
        let mut shapes = shapes;
        shapes.push(json!({ "type": "null" }));
        json!({ "anyOf": shapes })
    };
    let number = json!({ "type": "number", "minimum": 0 });
    match shape {
        Shape::Text | Shape::Secret | Shape::KeyedUrl => {
            json!({ "type": ["string", "number", "boolean", "null"] })
        }
        Shape::Integer => either(vec![
            json!({ "type": "integer", "minimum": 0 }),
            text("[0-9][0-9_]*"),
        ]),
        Shape::Decimal => either(vec![number, text(r"[0-9.]+%?")]),
        Shape::Part => either(vec![
            json!({ "type": "integer", "minimum": 0 }),
            text(r"[0-9_.]+%?"),
        ]),
        Shape::Boolean => either(vec![
            json!({ "type": "boolean" }),
            text("true|false|yes|no|on|off"),
        ]),
        Shape::Duration => either(vec![text(r"([0-9.]+(w|d|h|ms|m|s))+")]),
        Shape::Minutes => either(vec![number, text(r"([0-9.]+(w|d|h|ms|m|s))+")]),
        Shape::Lifetime => either(vec![text(r"forever|[0-9a-z.]+(\.\.[0-9a-z.]+)?")]),
        Shape::Size => either(vec![number, text(r"[0-9_]+ ?(GiB|MiB|KiB|B)?")]),
        Shape::Address => either(vec![text(r".*:[0-9]+")]),
        Shape::Words(words) => words_of(words),
        Shape::OrOff(inner) => either(vec![json!({ "enum": ["off", false] }), self::shape(inner)]),
        Shape::List(inner) => either(vec![
            self::shape(inner),
            json!({ "type": "array", "items": self::shape(inner) }),
        ]),
        Shape::Map(inner) => either(vec![
            json!({ "type": "object", "additionalProperties": self::shape(inner) }),
        ]),
        Shape::Block(fields) => either(vec![block(fields)]),
        Shape::Either(shapes) => either(shapes.iter().map(self::shape).collect()),
    }
}

/// Words that editors may read as a boolean or a number are allowed as such.
fn words_of(words: &[&str]) -> Value {
    let mut values: Vec<Value> = words.iter().map(|word| json!(word)).collect();
    for word in words {
        match *word {
            "true" | "on" => values.push(json!(true)),
            "off" => values.push(json!(false)),
            word => values.extend(word.parse::<u64>().ok().map(|number| json!(number))),
        }
    }
    values.push(Value::Null);
    json!({ "enum": values })
}
