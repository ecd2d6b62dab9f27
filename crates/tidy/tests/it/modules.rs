//! Modules of a crate use each other in one direction.
//!
//! Promises: reads every shipped `crate::`, `super::` and `self::` path, in `use` and in code, and
//! follows the re-exports of a module's root file. `modules.txt` lists the order of a crate's
//! modules, and the cycles of other crates that are not resolved yet; the cycles only shrink.
//!
//! Never: looks at test code, which may use everything.

use crate::tokens::{Token, TokenFilter, flat, parse};
use crate::tree::{Source, Violation, assert_clean, tree};
use std::collections::{BTreeMap, BTreeSet};

const RULES: &str = "crates/tidy/modules.txt";

/// Folders in which each file counts as a module of its own: `crate folder`, `module`.
const BY_FILE: [(&str, &str); 1] = [("tollgate", "path")];

/// A module uses another one here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    from: String,
    to: String,
    path: String,
    line: usize,
}

/// The modules of one crate, and what they use.
#[derive(Debug, Default)]
struct Graph {
    modules: BTreeSet<String>,
    uses: Vec<Use>,
}

/// What `modules.txt` says about one crate.
#[derive(Debug, Default)]
struct Rules {
    /// Module → its line in the order; lower lines may not use higher ones.
    order: BTreeMap<String, usize>,
    /// Known cycles: the modules of each, and its line.
    cycles: Vec<(BTreeSet<String>, usize)>,
}

/// The shipped source files of a crate, by module path: `["path", "flight"]`, the root is empty.
struct CrateFiles<'a> {
    name: &'a str,
    files: BTreeMap<Vec<String>, (&'a Source, Vec<Token>)>,
}

impl<'a> CrateFiles<'a> {
    fn read(name: &'a str, sources: &'a [Source]) -> CrateFiles<'a> {
        let folder = format!("crates/{name}/src/");
        let mut files = BTreeMap::new();
        for source in sources {
            let Some(inside) = source.path.strip_prefix(&folder) else {
                continue;
            };
            let Some(stem) = inside.strip_suffix(".rs") else {
                continue;
            };
            if stem == "tests" || stem.ends_with("_tests") || stem.ends_with("/tests") {
                continue;
            }
            let module = match stem {
                "lib" => Vec::new(),
                "main" if !files.contains_key(&Vec::new()) => Vec::new(),
                stem => stem.split('/').map(str::to_owned).collect(),
            };
            // The size rule reports a file that is not Rust.
            let tokens = parse(source)
                .map(|stream| flat(stream, TokenFilter::Shipped))
                .unwrap_or_default();
            files.insert(module, (source, tokens));
        }
        CrateFiles { name, files }
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for (module, (source, tokens)) in &self.files {
            let Some(from) = self.node(module) else {
                continue;
            };
            graph.modules.insert(from.clone());
            for (path, line) in paths(tokens, module) {
                let to = self.resolve(&path, 0);
                if let Some(to) = to.filter(|to| *to != from && !to.is_empty()) {
                    graph.uses.push(Use {
                        from: from.clone(),
                        to,
                        path: source.path.clone(),
                        line,
                    });
                }
            }
        }
        self.add_root_uses(&mut graph);
        graph
    }

    /// The root file of a folder that counts by file uses all its files.
    fn add_root_uses(&self, graph: &mut Graph) {
        for (_, root) in BY_FILE.iter().filter(|(name, _)| *name == self.name) {
            let path = format!("crates/{}/src/{root}.rs", self.name);
            let inside = format!("{root}/");
            let files = graph
                .modules
                .iter()
                .filter(|name| name.starts_with(&inside));
            graph.uses.extend(files.map(|file| Use {
                from: (*root).to_owned(),
                to: file.clone(),
                path: path.clone(),
                line: 1,
            }));
        }
    }

    /// The name under which a module is ordered; `None` for the crate's root.
    fn node(&self, module: &[String]) -> Option<String> {
        let first = module.first()?;
        let by_file = BY_FILE.contains(&(self.name, first.as_str()));
        match module.get(1) {
            Some(file) if by_file => Some(format!("{first}/{file}")),
            Some(_) | None => Some(first.clone()),
        }
    }

    /// The module that defines what this path names, through re-exports of root files.
    fn resolve(&self, path: &[String], depth: usize) -> Option<String> {
        let known = (1..=path.len())
            .rev()
            .find(|length| self.files.contains_key(&path[..*length]))
            .unwrap_or(0);
        let (module, rest) = path.split_at(known);
        // More than a few steps would be a re-export of itself.
        if let Some(name) = rest.first()
            && depth < 4
            && let Some(mut target) = self.reexport(module, name)
        {
            target.extend(rest[1..].iter().cloned());
            return self.resolve(&target, depth + 1);
        }
        self.node(module)
    }

    /// `pub use module::Name` in the file of this module.
    fn reexport(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let (_, tokens) = self.files.get(module)?;
        let starts = tokens.iter().enumerate().filter(|(at, token)| {
            let before = at.checked_sub(1).map(|before| tokens[before].text.as_str());
            token.text == "use" && matches!(before, Some("pub" | ")"))
        });
        for (at, _) in starts {
            let mut found = Vec::new();
            use_tree(tokens, at + 1, &mut Vec::new(), &mut found);
            for (path, _) in found {
                let first = path.first().cloned().unwrap_or_default();
                let mut child = module.to_vec();
                child.push(first);
                if path.last().is_some_and(|last| last == name) && self.files.contains_key(&child) {
                    let mut whole = module.to_vec();
                    whole.extend(path);
                    return Some(whole);
                }
            }
        }
        None
    }
}

/// Every path that starts with `crate`, `super` or `self`, from the root of the crate, with its
/// line.
fn paths(tokens: &[Token], module: &[String]) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    // Inline modules, with the depth of the brace that ends each.
    let mut inline: Vec<(String, usize)> = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => {
                depth += 1;
                if at >= 2 && tokens[at - 2].text == "mod" {
                    inline.push((tokens[at - 1].text.clone(), depth));
                }
            }
            "}" => {
                inline.pop_if(|(_, opened)| *opened == depth);
                depth = depth.saturating_sub(1);
            }
            "crate" | "super" | "self" if is_path_start(tokens, at) => {
                let mut here = module.to_vec();
                here.extend(inline.iter().map(|(name, _)| name.clone()));
                let mut relative = Vec::new();
                use_tree(tokens, at, &mut Vec::new(), &mut relative);
                let absolute = relative
                    .into_iter()
                    .map(|(path, line)| (from_root(&here, &path), line));
                found.extend(absolute);
            }
            _ => {}
        }
    }
    found
}

fn is_path_start(tokens: &[Token], at: usize) -> bool {
    let text = |index: usize| tokens.get(index).map(|token| token.text.as_str());
    let continues = text(at + 1) == Some(":") && text(at + 2) == Some(":");
    continues && (at == 0 || text(at - 1) != Some(":"))
}

fn from_root(here: &[String], path: &[String]) -> Vec<String> {
    let mut base = here.to_vec();
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        match first.as_str() {
            "crate" => base.clear(),
            "super" => drop(base.pop()),
            "self" => {}
            _ => break,
        }
        rest = behind;
    }
    base.extend(rest.iter().cloned());
    base
}

/// Reads the path or tree of paths at `at`; returns the index behind it.
fn use_tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, usize)>,
) -> usize {
    let before = prefix.len();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| token.text != "}") {
                at = use_tree(tokens, at, prefix, found);
                while tokens
                    .get(at)
                    .is_some_and(|t| t.text != "," && t.text != "}")
                {
                    at += 1; // `as name`
                }
                at += usize::from(tokens.get(at).is_some_and(|token| token.text == ","));
            }
            prefix.truncate(before);
            return at + 1;
        }
        prefix.push(token.text.clone());
        let is_colon = |index: usize| tokens.get(index).is_some_and(|token| token.text == ":");
        if !(is_colon(at + 1) && is_colon(at + 2)) {
            break;
        }
        at += 3;
    }
    found.push((prefix.clone(), line));
    prefix.truncate(before);
    at + 1
}

impl Graph {
    /// Groups of modules that use each other, directly or through others.
    fn cycles(&self) -> Vec<BTreeSet<String>> {
        let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for one in &self.uses {
            reach.entry(&one.from).or_default().insert(&one.to);
        }
        loop {
            let mut grown = reach.clone();
            for targets in grown.values_mut() {
                let further: Vec<&str> = targets
                    .iter()
                    .filter_map(|target| reach.get(target))
                    .flatten()
                    .copied()
                    .collect();
                targets.extend(further);
            }
            if grown == reach {
                break;
            }
            reach = grown;
        }
        let reaches = |from: &str, to: &str| reach.get(from).is_some_and(|all| all.contains(to));
        let in_cycle = self.modules.iter().filter(|module| reaches(module, module));
        let groups: BTreeSet<BTreeSet<String>> = in_cycle
            .map(|module| {
                let members = self.modules.iter();
                let members = members.filter(|one| reaches(one, module) && reaches(module, one));
                members.cloned().collect()
            })
            .collect();
        groups.into_iter().collect()
    }
}

fn read_rules(rules: &Source) -> BTreeMap<String, Rules> {
    let mut all: BTreeMap<String, Rules> = BTreeMap::new();
    let mut section = None;
    for (index, text) in rules.text.lines().enumerate() {
        let text = text.split('#').next().unwrap_or_default().trim();
        if let Some(name) = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
        {
            section = name.split_once(' ');
        } else if let (false, Some((kind, name))) = (text.is_empty(), section) {
            let rules = all.entry(name.to_owned()).or_default();
            let modules = text.split_whitespace().map(str::to_owned);
            if kind == "order" {
                rules
                    .order
                    .extend(modules.map(|module| (module, index + 1)));
            } else {
                rules.cycles.push((modules.collect(), index + 1));
            }
        }
    }
    all
}

fn violations(sources: &[Source], rules: &Source) -> Vec<Violation> {
    let all = read_rules(rules);
    let mut names: BTreeSet<&str> = all.keys().map(String::as_str).collect();
    let crates = sources.iter().filter_map(|source| {
        let (name, _) = source.path.strip_prefix("crates/")?.split_once("/src/")?;
        Some(name)
    });
    names.extend(crates);
    let nothing = Rules::default();
    let each = names.into_iter().flat_map(|name| {
        let graph = CrateFiles::read(name, sources).graph();
        let known = all.get(name).unwrap_or(&nothing);
        let mut found = against_order(rules, &graph, known);
        found.extend(unknown_cycles(rules, name, &graph, known));
        found
    });
    each.collect()
}

fn against_order(rules: &Source, graph: &Graph, known: &Rules) -> Vec<Violation> {
    if known.order.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for module in &graph.modules {
        if !known.order.contains_key(module) {
            let what = format!("the module `{module}` has no place in the order");
            found.push(rules.violation(1, what, "add it to modules.txt, above all that use it"));
        }
    }
    for (module, line) in &known.order {
        if !graph.modules.contains(module) {
            let what = format!("there is no module `{module}`");
            found.push(rules.violation(*line, what, "remove it"));
        }
    }
    for one in &graph.uses {
        let (from, to) = (known.order.get(&one.from), known.order.get(&one.to));
        if let (Some(from), Some(to)) = (from, to)
            && from <= to
        {
            found.push(Violation {
                path: one.path.clone(),
                line: one.line,
                what: format!("`{}` uses `{}`, against the order", one.from, one.to),
                remedy: "move what both need below them; modules.txt has the order".to_owned(),
            });
        }
    }
    found
}

fn unknown_cycles(rules: &Source, name: &str, graph: &Graph, known: &Rules) -> Vec<Violation> {
    let cycles = graph.cycles();
    let mut found = Vec::new();
    for cycle in &cycles {
        if !known
            .cycles
            .iter()
            .any(|(listed, _)| cycle.is_subset(listed))
        {
            let modules: Vec<&str> = cycle.iter().map(String::as_str).collect();
            let what = format!("modules of `{name}` use each other: {}", modules.join(" "));
            found.push(rules.violation(1, what, "move what both need below them"));
        }
    }
    for (listed, line) in &known.cycles {
        if !cycles.contains(listed) {
            let what = format!("a cycle of `{name}` has become smaller or is gone");
            found.push(rules.violation(*line, what, "shorten or remove the line"));
        }
    }
    found
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let rules = tree().iter().find(|source| source.path == RULES);
    assert_clean(&violations(
        tree(),
        rules.expect("modules.txt is part of the tree"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], rules: &str) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source::fixture(&format!("crates/{path}"), text))
            .collect();
        let violations = violations(&sources, &Source::fixture("modules.txt", rules));
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_cycle_is_found_in_use_trees_and_in_code() {
        let files = [
            ("x/src/lib.rs", "mod a; mod b;"),
            ("x/src/a.rs", "use crate::{b::Thing, c};"),
            ("x/src/b.rs", "fn f() { super::a::g() }"),
        ];
        let violations = found(&files, "");
        assert_eq!(
            violations,
            ["modules.txt:1: modules of `x` use each other: a b; move what both need below them"]
        );
        assert!(found(&files, "[cycles x]\na b\n").is_empty());
    }

    #[test]
    fn a_cycle_that_is_gone_must_be_removed_from_the_list() {
        let files = [("x/src/a.rs", "use crate::b;"), ("x/src/b.rs", "")];
        assert!(found(&files, "[cycles x]\na b\n")[0].contains("is gone"));
    }

    #[test]
    fn a_use_against_the_order_names_its_line() {
        let files = [("x/src/a.rs", "\nuse crate::b;"), ("x/src/b.rs", "")];
        let violations = found(&files, "[order x]\na\nb\n");
        assert!(violations[0].starts_with("crates/x/src/a.rs:2: `a` uses `b`"));
        assert!(found(&files, "[order x]\nb\na\n").is_empty());
        assert!(found(&files, "[order x]\nb\n")[0].contains("`a` has no place"));
        assert!(found(&files, "[order x]\nb\na\nc\n")[0].contains("no module `c`"));
    }

    #[test]
    fn a_reexport_counts_as_the_module_that_defines_it() {
        let files = [
            ("x/src/lib.rs", "pub use a::{Thing as Other, Name};"),
            ("x/src/a.rs", "mod inner;\npub use inner::Deep;"),
            ("x/src/b.rs", "use crate::Name;"),
        ];
        assert!(found(&files, "[order x]\na\nb\n").is_empty());
        assert!(found(&files, "[order x]\nb\na\n")[0].contains("`b` uses `a`"));
    }

    #[test]
    fn the_files_of_a_path_are_modules_of_their_own() {
        let files = [
            ("tollgate/src/path.rs", "mod a; mod b;\npub use a::Thing;"),
            ("tollgate/src/path/a.rs", "use super::b::f;"),
            ("tollgate/src/path/b.rs", "use super::{Thing, call};"),
        ];
        let violations = found(&files, "");
        assert!(violations[0].ends_with("path path/a path/b; move what both need below them"));
    }

    #[test]
    fn tests_may_use_everything() {
        let files = [
            ("x/src/a.rs", "#[cfg(test)]\nmod tests { use crate::b; }"),
            ("x/src/a/tests.rs", "use crate::b;"),
            ("x/src/b.rs", "use crate::a;"),
        ];
        assert!(found(&files, "").is_empty());
    }
}
