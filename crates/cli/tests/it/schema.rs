//! `tollgate schema` accepts the presets and rejects unknown fields; completions come from the
//! commands.

use serde_json::{Map, Value, json};
use tollgate_config::preset::{self, PRESET_FIELDS};
use tollgate_config::raw::{Node, Value as Written};

use crate::folder::Folder;

fn schema(kind: &str) -> Value {
    let output = Folder::new(&format!("schema-{kind}")).run(&["schema", kind]);
    assert_eq!(output.code, Some(0));
    serde_json::from_str(&output.out).expect("the schema is JSON")
}

/// A file as an editor sees it.
fn as_json(node: &Node) -> Value {
    match &node.value {
        Written::Null => Value::Null,
        Written::Text(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        Written::List(items) => items.iter().map(as_json).collect(),
        Written::Map(entries) => {
            let pairs = entries
                .iter()
                .map(|entry| (entry.name.clone(), as_json(&entry.node)));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

/// The part of JSON Schema that ours uses; editors check the patterns.
fn accepts(schema: &Value, value: &Value) -> bool {
    let any = schema["anyOf"]
        .as_array()
        .is_none_or(|all| all.iter().any(|one| accepts(one, value)));
    let among = schema["enum"]
        .as_array()
        .is_none_or(|all| all.contains(value));
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return any && among,
    };
    any && among && kinds.iter().any(|kind| is(kind, schema, value))
}

fn is(kind: &str, schema: &Value, value: &Value) -> bool {
    match (kind, value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_)) => true,
        ("integer", Value::Number(number)) => number.is_u64(),
        ("array", Value::Array(items)) => items.iter().all(|item| accepts(&schema["items"], item)),
        ("object", Value::Object(entries)) => entries.iter().all(|(name, value)| {
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, Value::Bool(false)) => false,
                (Value::Null, other) => accepts(other, value),
                (own, _) => accepts(own, value),
            }
        }),
        _ => false,
    }
}

/// Every preset is a provider file with a few additional fields.
#[test]
fn the_schema_accepts_every_preset() {
    let (presets, providers) = (schema("preset"), schema("provider"));
    for built_in in preset::all() {
        let whole = as_json(built_in.tree());
        assert!(accepts(&presets, &whole), "{}", built_in.name);
        let mut plain = whole.clone();
        if let Value::Object(fields) = &mut plain {
            fields.retain(|name, _| !PRESET_FIELDS.contains(&name.as_str()));
        }
        assert!(accepts(&providers, &plain), "{}", built_in.name);
        assert!(
            !accepts(&providers, &whole),
            "{}: `title` is a preset's own",
            built_in.name
        );
    }
}

/// The files with every field, which the tests of `config` load, are accepted.
#[test]
fn the_schema_accepts_every_field() {
    for (kind, text) in [
        (
            "provider",
            include_str!("../../../config/tests/it/whole.yaml"),
        ),
        (
            "config",
            include_str!("../../../config/tests/it/tollgate.yaml"),
        ),
    ] {
        let tree = tollgate_config::raw::read("whole", text).expect("it is YAML");
        assert!(accepts(&schema(kind), &as_json(&tree)), "{kind}");
    }
}

/// Unknown fields and values are rejected, at every depth.
#[test]
fn the_schema_rejects_unknown_fields() {
    let provider = schema("provider");
    for (file, good) in [
        (
            json!({ "domain": "a.example.org", "limit": 5, "period": "1s" }),
            true,
        ),
        (json!({ "health": "breaker" }), true),
        (json!({ "health": { "sleep_max": "${MAX:-5m}" } }), true),
        (json!({ "domian": "a.example.org" }), false),
        (json!({ "health": { "sleep_mx": "5s" } }), false),
        (json!({ "limits": [{ "limit": 5, "perod": "1s" }] }), false),
        (json!({ "queue": { "order": "lifo" } }), false),
        (json!({ "limit": { "x": 1 } }), false),
    ] {
        assert_eq!(accepts(&provider, &file), good, "{file}");
    }
    assert!(!accepts(
        &schema("config"),
        &json!({ "guards": { "ip": { "limt": 5 } } })
    ));
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = Folder::new("completions").run(&["completions", shell]);
        assert!(
            output.code == Some(0) && output.out.contains("provider"),
            "{shell}"
        );
    }
    assert_eq!(
        Folder::new("completions-none")
            .run(&["completions", "tcsh"])
            .code,
        Some(2)
    );
}

/// Every command has help with an example.
#[test]
fn every_command_has_help_with_an_example() {
    let folder = Folder::new("help");
    for command in [
        &["init"][..],
        &["check"],
        &["provider"],
        &["provider", "list"],
        &["provider", "show"],
        &["explain"],
        &["schema"],
        &["completions"],
    ] {
        let mut args = command.to_vec();
        args.push("--help");
        let output = folder.run(&args);
        assert!(
            output.code == Some(0) && output.out.contains("Example"),
            "{command:?}"
        );
    }
}
