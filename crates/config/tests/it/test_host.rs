//! A simulated host for tests: files with their modes, and variables.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_config::{
    Config, Environment, FileContent, Loaded, PathKind, Problems, Reloaded, Sources, reload,
};

/// Files and variables.
#[derive(Clone, Default)]
pub(crate) struct TestHost {
    files: BTreeMap<String, (String, bool)>,
    env: BTreeMap<String, String>,
}

impl TestHost {
    pub(crate) fn new() -> TestHost {
        TestHost::default()
    }

    /// A file that only its owner reads.
    pub(crate) fn file(mut self, path: &str, text: &str) -> TestHost {
        self.write(path, text);
        self
    }

    /// A file that everybody can read.
    pub(crate) fn open_file(mut self, path: &str, text: &str) -> TestHost {
        self.files.insert(path.to_owned(), (text.to_owned(), true));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> TestHost {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn write(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), (text.to_owned(), false));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.files.remove(path);
    }

    fn path_kind(&self, path: &str) -> PathKind {
        if self.files.contains_key(path) {
            return PathKind::File;
        }
        let inside = format!("{}/", path.trim_end_matches('/'));
        let names = self
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(&inside));
        let first = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        let names: BTreeSet<String> = names.map(first).collect();
        if names.is_empty() {
            PathKind::Nothing
        } else {
            PathKind::Folder(names.into_iter().collect())
        }
    }

    /// Runs a function with this host's environment.
    pub(crate) fn with_environment<T>(&self, then: impl FnOnce(&Environment<'_>) -> T) -> T {
        let env = |name: &str| self.env.get(name).cloned();
        let env_names = || self.env.keys().cloned().collect();
        let key_file = |path: &str| match self.files.get(path) {
            Some((text, open_to_others)) => Ok(FileContent {
                text: text.clone(),
                readable_by_others: *open_to_others,
            }),
            None => Err("no such file".to_owned()),
        };
        let look = |path: &str| Ok(self.path_kind(path));
        then(&Environment {
            env: &env,
            env_names: &env_names,
            read_file: &key_file,
            path_kind: &look,
            missing_key: None,
        })
    }

    pub(crate) fn load(&self, sources: &Sources) -> Result<Loaded, Problems> {
        self.with_environment(|environment| Config::load(sources, environment))
    }

    /// What loads without errors.
    pub(crate) fn loaded(&self, sources: &Sources) -> Loaded {
        match self.load(sources) {
            Ok(loaded) => loaded,
            Err(problems) => panic!("{problems}"),
        }
    }

    /// The problems of what does not load.
    pub(crate) fn load_errors(&self, sources: &Sources) -> String {
        match self.load(sources) {
            Ok(_) => panic!("it loads"),
            Err(problems) => problems.to_string(),
        }
    }

    pub(crate) fn reload(&self, old: &Loaded, sources: &Sources) -> Reloaded {
        self.with_environment(|environment| reload(old, sources, environment))
    }
}

/// Provider files by `--provider`.
pub(crate) fn files(names: &[&str]) -> Sources {
    Sources {
        providers: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Sources::default()
    }
}
