//! `tollgate.yaml` with an environment: any text is a configuration, or problems.
//!
//! The lines before the first `---` of an input are variables (`NAME=value`); the rest is the file.
//!
//! Promises: loading ends without a panic, twice with the same result.
//!
//! Never: reads another file; an input that names one gets "no such file".

use std::collections::BTreeMap;

use tollgate_config::{Config, Environment, FileContent, PathKind, Sources};

use crate::split;

const PATH: &str = "tollgate.yaml";

/// Loads the configuration.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (variables, file) = match split(input, b"\n---\n") {
        (_, []) => ("", text),
        (before, _) => text.split_at(before.len()),
    };
    let variables: BTreeMap<&str, &str> = variables
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    assert_eq!(
        loaded(&variables, file),
        loaded(&variables, file),
        "the same sources give the same result"
    );
}

fn loaded(variables: &BTreeMap<&str, &str>, file: &str) -> Result<usize, String> {
    let file = file.trim_start_matches("\n---\n");
    let world = Environment {
        missing_key: None,
        env: &|name| variables.get(name).map(|value| (*value).to_owned()),
        env_names: &|| variables.keys().map(|name| (*name).to_owned()).collect(),
        read_file: &|path| match path {
            PATH => Ok(FileContent {
                text: file.to_owned(),
                readable_by_others: false,
            }),
            _ => Err("no such file".to_owned()),
        },
        path_kind: &|path| {
            Ok(if path == PATH {
                PathKind::File
            } else {
                PathKind::Nothing
            })
        },
    };
    let sources = Sources {
        config: Some(PATH.to_owned()),
        only_named: true,
        ..Sources::default()
    };
    match Config::load(&sources, &world) {
        Ok(loaded) => Ok(loaded.config.all_providers().count()),
        Err(problems) => Err(format!("{problems:?}")),
    }
}
