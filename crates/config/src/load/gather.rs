//! Gathers the configuration files and their content.
//!
//! Promises: every configured file is read once and named as the user named it; a folder is read in
//! the order of its names. Paths in tollgate.yaml are relative to its folder.
//!
//! Never: checks the content of a provider.

use crate::check::ProviderFile;
use crate::origin::literal_keys;
use crate::problem::{Level, Place, Problem, Problems};
use crate::raw::{self, Node, Value};
use crate::secret::{Environment, FileContent, PathKind};
use crate::shape::Field;

use super::{PROVIDERS_MAX, Sources};

/// A provider that was found, and its file or the problems of reading it.
pub(super) struct FoundProvider {
    pub(super) source: String,
    pub(super) file: Result<ProviderFile, Problems>,
    /// Warnings about the file itself.
    pub(super) warnings: Problems,
}

/// Everything gathered.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) found: Vec<FoundProvider>,
    pub(super) watched: Vec<String>,
    /// Folders that could not be read: their previous providers stay.
    pub(super) unreadable_dirs: Vec<String>,
    pub(super) problems: Problems,
}

/// tollgate.yaml: its name and tree, `None` if there is none.
pub(super) fn config_file(
    sources: &Sources,
    environment: &Environment<'_>,
    about: &mut Problems,
) -> Result<Option<(String, Node)>, Problems> {
    let by_variable = || {
        (environment.env)("TOLLGATE_CONFIG").filter(|path| !path.is_empty() && !sources.only_named)
    };
    let named = sources.config.clone().or_else(by_variable);
    let path = match named {
        Some(path) => path,
        None if sources.only_named => return Ok(None),
        None => match (environment.path_kind)("tollgate.yaml") {
            // A folder of that name is read too: the error says that it is one.
            Ok(PathKind::File | PathKind::Folder(_)) => "tollgate.yaml".to_owned(),
            Ok(PathKind::Nothing) => return Ok(None),
            Err(why) => return Err(unreadable("tollgate.yaml", &why).into()),
        },
    };
    let file = (environment.read_file)(&path).map_err(|why| unreadable(&path, &why))?;
    let tree = raw::read(&path, &file.text)?;
    warn_of_keys(&tree, crate::config::CONFIG, &file, about);
    warn_of_passwords(&tree, &file, about);
    for entry in tree
        .get("providers")
        .and_then(Node::entries)
        .unwrap_or_default()
    {
        let mut inside = Problems::default();
        warn_of_keys(&entry.node, crate::check::PROVIDER, &file, &mut inside);
        for problem in inside.iter() {
            let path = format!("providers.{}.{}", entry.name, problem.path);
            about.push(Problem {
                path,
                ..problem.clone()
            });
        }
    }
    Ok(Some((path, tree)))
}

/// Every provider that files, folders and tollgate.yaml name.
pub(super) fn providers(
    sources: &Sources,
    config: Option<(&str, &Node)>,
    environment: &Environment<'_>,
) -> Gathered {
    let mut gathered = Gathered::default();
    if let Some((path, tree)) = config {
        gathered.watched.push(path.to_owned());
        if let Some(node) = tree.get("providers") {
            gathered.add_from_config(path, node, environment);
        }
    }
    for folder in &sources.provider_dirs {
        gathered.folder(folder, &Place::whole("--provider-dir"), environment);
    }
    for file in &sources.providers {
        gathered.file(file, environment);
    }
    gathered.watched.extend(sources.env_file.clone());
    gathered.enforce_max();
    gathered
}

impl Gathered {
    /// A folder, a list of files, or providers inside.
    fn add_from_config(&mut self, path: &str, node: &Node, environment: &Environment<'_>) {
        match &node.value {
            Value::Null => {}
            Value::Text(folder) => {
                let folder = resolve_path(path, folder);
                match (environment.path_kind)(&folder) {
                    Ok(PathKind::File) => self.file(&folder, environment),
                    _ => self.folder(&folder, &node.place, environment),
                }
            }
            Value::List(items) => {
                for item in items {
                    match item.text() {
                        Some(file) => self.file(&resolve_path(path, file), environment),
                        None => self.problems.push(problem(
                            &item.place,
                            "must be the name of a file",
                            "write `- tmdb.yaml`",
                        )),
                    }
                }
            }
            Value::Map(entries) => {
                for entry in entries {
                    let mut tree = entry.node.clone();
                    if tree.value == Value::Null {
                        tree.value = Value::Map(Vec::new());
                    }
                    self.found.push(FoundProvider {
                        source: format!("{path}: {}", entry.name),
                        file: Ok(ProviderFile::inline(&entry.name, tree)),
                        warnings: Problems::default(),
                    });
                }
            }
        }
    }

    fn folder(&mut self, folder: &str, place: &Place, environment: &Environment<'_>) {
        self.watched.push(folder.to_owned());
        let names = match (environment.path_kind)(folder) {
            Ok(PathKind::Folder(names)) => names,
            Ok(PathKind::Nothing) => {
                return self.add_unreadable(folder, place, "there is no folder of this name");
            }
            Ok(PathKind::File) => {
                return self.add_unreadable(folder, place, "this is a file, not a folder");
            }
            Err(why) => {
                return self.add_unreadable(
                    folder,
                    place,
                    &format!("the folder cannot be read ({why})"),
                );
            }
        };
        let mut names: Vec<String> = names
            .into_iter()
            .filter(|name| is_provider_file(name))
            .collect();
        names.sort();
        for name in names {
            self.file(
                &format!("{}/{name}", folder.trim_end_matches('/')),
                environment,
            );
        }
    }

    fn add_unreadable(&mut self, folder: &str, place: &Place, what: &str) {
        self.unreadable_dirs.push(folder.to_owned());
        self.problems
            .push(problem(place, what, "give a folder with provider files"));
    }

    fn file(&mut self, path: &str, environment: &Environment<'_>) {
        // A file that is named twice is one file.
        if self.found.iter().any(|found| found.source == path) {
            return;
        }
        self.watched.push(path.to_owned());
        let mut about = Problems::default();
        let draft = read(path, environment, &mut about);
        self.found.push(FoundProvider {
            source: path.to_owned(),
            file: draft,
            warnings: about,
        });
    }

    fn enforce_max(&mut self) {
        if let Some(found) = self.found.get(PROVIDERS_MAX) {
            let place = Place::whole(&found.source);
            self.problems.push(problem(
                &place,
                "there are more than 4096 providers",
                "give fewer files",
            ));
            self.found.truncate(PROVIDERS_MAX);
        }
    }
}

fn read(
    path: &str,
    environment: &Environment<'_>,
    about: &mut Problems,
) -> Result<ProviderFile, Problems> {
    let file = (environment.read_file)(path).map_err(|why| unreadable(path, &why))?;
    let draft = ProviderFile::read(path, &file.text)?;
    // A file that an editor is writing is empty for a moment, and would be a provider without
    // limits.
    if draft.tree().entries().is_some_and(<[_]>::is_empty) {
        let place = Place::whole(path);
        return Err(problem(
            &place,
            "the file has no fields",
            "write `domain:`, `limit:` and `period:`, or `preset:`",
        )
        .into());
    }
    warn_of_keys(draft.tree(), crate::check::PROVIDER, &file, about);
    Ok(draft)
}

/// H3: a file with a key written out that others can read.
fn warn_of_keys(tree: &Node, table: &'static [Field], file: &FileContent, about: &mut Problems) {
    if !file.readable_by_others {
        return;
    }
    if let Some((node, path)) = literal_keys(tree, table).into_iter().next() {
        about.push(Problem {
            level: Level::Warning,
            place: node.place.clone(),
            path,
            what: "a key is written out here and others can read this file".to_owned(),
            remedy: "run `chmod 600` on it, or write `${VARIABLE}` or `file:/path`".to_owned(),
        });
    }
}

/// `scheme://user:password@host`, or `?password=…` as Postgres takes it: a user alone is no secret.
fn has_password(address: &str) -> bool {
    let authority = address.split_once("://").map_or(address, |(_, rest)| rest);
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':')) || address.contains("password=")
}

/// H3: the same for the password in the address of a store.
fn warn_of_passwords(tree: &Node, file: &FileContent, about: &mut Problems) {
    for name in ["store", "cache_store", "guard_store"] {
        let Some(node) = tree.get(name) else { continue };
        let text = node.text().unwrap_or_default();
        if file.readable_by_others && has_password(text) && !text.contains("${") {
            about.push(Problem {
                level: Level::Warning,
                place: node.place.clone(),
                path: name.to_owned(),
                what: "a password is written out here and others can read this file".to_owned(),
                remedy: "run `chmod 600` on it, or write `${VARIABLE}`".to_owned(),
            });
        }
    }
}

pub(super) fn unreadable(path: &str, why: &str) -> Problem {
    let what = format!("the file cannot be read ({why})");
    problem(
        &Place::whole(path),
        &what,
        "check the path and who may read it",
    )
}

pub(super) fn problem(place: &Place, what: &str, remedy: &str) -> Problem {
    Problem {
        level: Level::Error,
        place: place.clone(),
        path: String::new(),
        what: what.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Hidden files belong to editors and package managers.
fn is_provider_file(name: &str) -> bool {
    let ends = name.ends_with(".yaml") || name.ends_with(".yml");
    ends && !name.starts_with('.') && name != "tollgate.yaml" && name != "tollgate.yml"
}

/// A path in a file is relative to the folder of that file.
pub(crate) fn resolve_path(file: &str, path: &str) -> String {
    match file.rfind('/') {
        Some(slash) if !path.starts_with('/') => {
            let (folder, _) = file.split_at(slash);
            format!("{folder}/{path}")
        }
        Some(_) | None => path.to_owned(),
    }
}
