//! Expands variables in files: `${NAME}` and `${NAME:-default}` in any value that is not a key.
//!
//! Promises: a variable that is not set and has no default is a problem with its place.
//!
//! Never: touches fields that hold keys. Those are resolved where they become a `Secret`.

use crate::problem::{Level, Problem, Problems};
use crate::raw::{Node, Value};
use crate::secret::{Environment, expand};
use crate::shape::{Field, Shape};

/// Expands the variables of a tree whose fields are those of the table.
pub(crate) fn expand_variables(
    tree: &mut Node,
    table: &'static [Field],
    environment: &Environment<'_>,
    problems: &mut Problems,
) {
    let Value::Map(entries) = &mut tree.value else {
        return;
    };
    for entry in entries {
        if let Some(field) = table.iter().find(|field| field.name == entry.name) {
            expand_as(
                &mut entry.node,
                &field.shape,
                field.name,
                environment,
                problems,
            );
        }
    }
}

fn expand_as(
    node: &mut Node,
    shape: &Shape,
    path: &str,
    environment: &Environment<'_>,
    problems: &mut Problems,
) {
    let may_be_key = match shape {
        Shape::Either(shapes) => shapes.iter().any(|shape| matches!(shape, Shape::Secret)),
        shape => matches!(shape, Shape::Secret),
    };
    match &mut node.value {
        Value::Text(text) if !may_be_key && text.contains("${") => {
            match expand(text, environment) {
                Ok(whole) => *text = whole,
                Err(name) => {
                    problems.push(Problem {
                        level: Level::Error,
                        place: node.place.clone(),
                        path: path.to_owned(),
                        what: format!("the environment variable `{name}` is not set"),
                        remedy: "export it, or write `${NAME:-default}`".to_owned(),
                    });
                    // One problem is enough: a later check must not also report a wrong type.
                    node.value = Value::Null;
                }
            }
        }
        Value::Null | Value::Text(_) => {}
        Value::List(items) => {
            let inner = list_item(shape);
            for item in items {
                expand_as(item, inner, path, environment, problems);
            }
        }
        Value::Map(entries) => match (shape.fields(), map_item(shape)) {
            (Some(fields), _) => expand_variables(node, fields, environment, problems),
            (None, Some(inner)) => {
                for entry in entries {
                    expand_as(&mut entry.node, inner, path, environment, problems);
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
