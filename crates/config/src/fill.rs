//! Variables in files: `${NAME}` and `${NAME:-otherwise}` in any value that is no key.
//!
//! Promises: a variable that is not set and has no other value is a problem with its place.
//!
//! Never: touches fields that hold keys. Those are looked up where they become a `Secret`.

use crate::problem::{Level, Problem, Problems};
use crate::raw::{Node, Value};
use crate::secret::{World, filled};
use crate::shape::{Field, Shape};

/// Fills a tree whose fields are those of the table.
pub(crate) fn fill(
    tree: &mut Node,
    table: &'static [Field],
    world: &World<'_>,
    problems: &mut Problems,
) {
    let Value::Map(entries) = &mut tree.value else {
        return;
    };
    for entry in entries {
        if let Some(field) = table.iter().find(|field| field.name == entry.name) {
            fill_as(&mut entry.node, &field.shape, field.name, world, problems);
        }
    }
}

fn fill_as(node: &mut Node, shape: &Shape, path: &str, world: &World<'_>, problems: &mut Problems) {
    let may_be_key = match shape {
        Shape::Either(shapes) => shapes.iter().any(|shape| matches!(shape, Shape::Secret)),
        shape => matches!(shape, Shape::Secret),
    };
    match &mut node.value {
        Value::Text(text) if !may_be_key && text.contains("${") => match filled(text, world) {
            Ok(whole) => *text = whole,
            Err(name) => {
                problems.push(Problem {
                    level: Level::Error,
                    place: node.place.clone(),
                    path: path.to_owned(),
                    what: format!("the environment variable `{name}` is not set"),
                    remedy: "export it, or write `${NAME:-otherwise}`".to_owned(),
                });
                // Said once; nobody should be told that it is no number either.
                node.value = Value::Nothing;
            }
        },
        Value::Nothing | Value::Text(_) => {}
        Value::List(items) => {
            let inner = list_item(shape);
            for item in items {
                fill_as(item, inner, path, world, problems);
            }
        }
        Value::Map(entries) => match (shape.fields(), map_item(shape)) {
            (Some(fields), _) => fill(node, fields, world, problems),
            (None, Some(inner)) => {
                for entry in entries {
                    fill_as(&mut entry.node, inner, path, world, problems);
                }
            }
            (None, None) => {}
        },
    }
}

fn list_item(shape: &Shape) -> &Shape {
    match shape {
        Shape::List(inner) => inner,
        Shape::Either(shapes) => shapes
            .iter()
            .find_map(|shape| match shape {
                Shape::List(inner) => Some(*inner),
                _ => None,
            })
            .unwrap_or(shape),
        other => other,
    }
}

fn map_item(shape: &Shape) -> Option<&Shape> {
    match shape {
        Shape::Map(inner) => Some(inner),
        Shape::Either(shapes) => shapes.iter().find_map(map_item),
        _ => None,
    }
}
