//! A machine that exists only in a test: files with their modes, and variables.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_config::{Config, KeyFile, Loaded, Problems, Reloaded, Seen, Sources, World, reload};

/// Files and variables.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    files: BTreeMap<String, (String, bool)>,
    env: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine::default()
    }

    /// A file that only its owner reads.
    pub(crate) fn file(mut self, path: &str, text: &str) -> Machine {
        self.write(path, text);
        self
    }

    /// A file that everybody can read.
    pub(crate) fn open_file(mut self, path: &str, text: &str) -> Machine {
        self.files.insert(path.to_owned(), (text.to_owned(), true));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Machine {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn write(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), (text.to_owned(), false));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.files.remove(path);
    }

    fn look(&self, path: &str) -> Seen {
        if self.files.contains_key(path) {
            return Seen::File;
        }
        let inside = format!("{}/", path.trim_end_matches('/'));
        let names = self
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(&inside));
        let first = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        let names: BTreeSet<String> = names.map(first).collect();
        if names.is_empty() {
            Seen::Nothing
        } else {
            Seen::Folder(names.into_iter().collect())
        }
    }

    /// Runs something in this machine's world.
    pub(crate) fn visit<T>(&self, then: impl FnOnce(&World<'_>) -> T) -> T {
        let env = |name: &str| self.env.get(name).cloned();
        let env_names = || self.env.keys().cloned().collect();
        let key_file = |path: &str| match self.files.get(path) {
            Some((text, open_to_others)) => Ok(KeyFile {
                text: text.clone(),
                open_to_others: *open_to_others,
            }),
            None => Err("no such file".to_owned()),
        };
        let look = |path: &str| Ok(self.look(path));
        then(&World {
            env: &env,
            env_names: &env_names,
            key_file: &key_file,
            look: &look,
        })
    }

    pub(crate) fn load(&self, sources: &Sources) -> Result<Loaded, Problems> {
        self.visit(|world| Config::load(sources, world))
    }

    /// What loads without errors.
    pub(crate) fn loaded(&self, sources: &Sources) -> Loaded {
        match self.load(sources) {
            Ok(loaded) => loaded,
            Err(problems) => panic!("{problems}"),
        }
    }

    /// The problems of what does not load.
    pub(crate) fn refused(&self, sources: &Sources) -> String {
        match self.load(sources) {
            Ok(_) => panic!("it loads"),
            Err(problems) => problems.to_string(),
        }
    }

    pub(crate) fn reload(&self, old: &Loaded, sources: &Sources) -> Reloaded {
        self.visit(|world| reload(old, sources, world))
    }
}

/// Provider files by `--provider`.
pub(crate) fn files(names: &[&str]) -> Sources {
    Sources {
        providers: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Sources::default()
    }
}
