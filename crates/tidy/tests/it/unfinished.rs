//! No unfinished code is committed, and shipped code does not panic on input.

use crate::tokens::{Token, TokenFilter, attribute, flat, is_test_only, parse};
use crate::tree::{Source, Violation, assert_clean, tree};
use proc_macro2::{TokenStream, TokenTree};

/// Words that mark an unfinished change, also in comments.
const UNFINISHED_WORDS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

/// File extensions of our code.
const CODE: [&str; 5] = ["rs", "py", "js", "sh", "lua"];

fn violations(sources: &[Source]) -> Vec<Violation> {
    let test_files = test_only_files(sources);
    let mut violations = Vec::new();
    for source in sources {
        violations.extend(unfinished_words(source));
        if !source.is_rust() {
            continue;
        }
        // The size rule reports a file that is not Rust.
        let Ok(stream) = parse(source) else { continue };
        violations.extend(unfinished_macros(
            source,
            &flat(stream.clone(), TokenFilter::All),
        ));
        violations.extend(ignored_tests(source, stream.clone()));
        if is_shipped(&source.path, &test_files) {
            violations.extend(unwraps(source, &flat(stream, TokenFilter::Shipped)));
        }
    }
    violations
}

fn unfinished_words(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    if !source
        .extension()
        .is_some_and(|extension| CODE.contains(&extension))
    {
        return violations;
    }
    for (index, text) in source.text.lines().enumerate() {
        let mut words = text.split(|letter: char| !letter.is_alphanumeric());
        if let Some(word) = words.find(|word| UNFINISHED_WORDS.contains(word)) {
            let remedy = "finish it, or open an issue and say in the comment what holds today";
            violations.push(source.violation(index + 1, format!("`{word}`"), remedy));
        }
    }
    violations
}

fn unfinished_macros(source: &Source, tokens: &[Token]) -> Vec<Violation> {
    let is_unfinished = |pair: &&[Token]| {
        matches!(pair[0].text.as_str(), "todo" | "unimplemented") && pair[1].text == "!"
    };
    let found = tokens.windows(2).filter(is_unfinished);
    let remedy = "write it, or return an error that says what is missing";
    found
        .map(|pair| source.violation(pair[0].line, format!("`{}!`", pair[0].text), remedy))
        .collect()
}

fn ignored_tests(source: &Source, stream: TokenStream) -> Vec<Violation> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut violations = Vec::new();
    for (at, tree) in trees.iter().enumerate() {
        if let Some((group, _)) = attribute(&trees, at)
            && is_ignore(group.stream())
        {
            let line = tree.span().start().line;
            let remedy = "make the test pass or delete it; a test that does not run proves nothing";
            violations.push(source.violation(line, "an ignored test".to_owned(), remedy));
        }
        if let TokenTree::Group(group) = tree {
            violations.extend(ignored_tests(source, group.stream()));
        }
    }
    violations
}

/// The attribute `ignore`, alone, with a reason, or inside `cfg_attr`.
fn is_ignore(attribute: TokenStream) -> bool {
    let tokens = flat(attribute, TokenFilter::All);
    match tokens.first().map(|token| token.text.as_str()) {
        Some("ignore") => true,
        Some("cfg_attr") => tokens.iter().any(|token| token.text == "ignore"),
        _ => false,
    }
}

fn unwraps(source: &Source, tokens: &[Token]) -> Vec<Violation> {
    let is_unwrap = |run: &&[Token]| {
        run.iter()
            .map(|token| token.text.as_str())
            .eq([".", "unwrap", "(", ")"])
    };
    let remedy = "return an error, or `expect` with the reason why it cannot fail";
    let found = tokens.windows(4).filter(is_unwrap);
    found
        .map(|run| source.violation(run[1].line, "`.unwrap()`".to_owned(), remedy))
        .collect()
}

fn is_shipped(path: &str, test_files: &[String]) -> bool {
    let mut segments = path.split('/');
    let in_src = segments.next() == Some("crates") && segments.nth(1) == Some("src");
    in_src
        && !test_files
            .iter()
            .any(|prefix| path.starts_with(prefix.as_str()))
}

/// Path prefixes of the files that a `#[cfg(test)] mod name;` includes.
fn test_only_files(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let Ok(stream) = parse(source) else { continue };
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        for at in 0..trees.len() {
            let Some((group, behind)) = attribute(&trees, at) else {
                continue;
            };
            if is_test_only(&group.stream())
                && let Some(name) = module_without_body(&trees, behind)
            {
                found.push(match file_of_module(&trees, behind) {
                    Some(file) => format!("{}/{file}", folder_of(&source.path)),
                    None => format!("{}/{name}.rs", module_folder(&source.path)),
                });
                found.push(format!("{}/{name}/", module_folder(&source.path)));
            }
        }
    }
    found
}

/// The file that `#[path = "…"]` names for the module that follows.
fn file_of_module(trees: &[TokenTree], at: usize) -> Option<String> {
    let (group, _) = attribute(trees, at)?;
    let words: Vec<String> = group
        .stream()
        .into_iter()
        .map(|word| word.to_string())
        .collect();
    match words.as_slice() {
        [path, is, file] if path == "path" && is == "=" => Some(file.trim_matches('"').to_owned()),
        _ => None,
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn module_without_body(trees: &[TokenTree], at: usize) -> Option<String> {
    let words = trees.get(at..)?.iter().map(ToString::to_string);
    let mut words = words.skip_while(|word| word != "mod" && word != ";" && word != "fn");
    let is_module = words.next()? == "mod";
    let name = words.next()?;
    (is_module && words.next()? == ";").then_some(name)
}

/// The folder of the child modules of a file: `a/lib.rs` → `a`, `a/b.rs` → `a/b`.
fn module_folder(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let root = ["/lib", "/main", "/mod"]
        .iter()
        .find_map(|name| stem.strip_suffix(name));
    root.unwrap_or(stem)
}

#[test]
fn no_code_is_unfinished_and_no_shipped_code_unwraps() {
    assert_clean(&violations(tree()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let planted: Vec<Source> = sources
            .iter()
            .map(|(path, text)| Source::fixture(path, text))
            .collect();
        violations(&planted)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn unfinished_words_are_found_in_comments_of_code_only() {
        let text = format!("\n// {}: later", UNFINISHED_WORDS[0]);
        assert!(found(&[("a.py", &text)])[0].starts_with("a.py:2: "));
        assert!(found(&[("a.md", &text)]).is_empty());
        assert!(found(&[("a.rs", &format!("// {}", UNFINISHED_WORDS[1].repeat(2)))]).is_empty());
    }

    #[test]
    fn unfinished_macros_are_found_in_code_and_not_in_strings() {
        let text = concat!("fn f() {\n to", "do!() }");
        assert!(found(&[("a.rs", text)])[0].starts_with("a.rs:2: `todo!`"));
        assert!(found(&[("a.rs", "fn f() { g(\"todo!\") }")]).is_empty());
    }

    #[test]
    fn ignored_tests_are_found_also_in_modules_and_macros() {
        assert_eq!(
            found(&[("a.rs", "mod m { #[test] # [ignore = \"slow\"] fn f() {} }")]).len(),
            1
        );
        assert_eq!(
            found(&[("a.rs", "proptest! { #[cfg_attr(ci, ignore)] fn f() {} }")]).len(),
            1
        );
        assert!(found(&[("a.rs", "#[serde(ignore)] fn ignore() {}")]).is_empty());
    }

    #[test]
    fn unwrap_is_found_in_shipped_code_with_its_line() {
        let text = "fn f() {\n    vec![g().unwrap()];\n}";
        let violations = found(&[("crates/x/src/a.rs", text)]);
        assert!(violations[0].starts_with("crates/x/src/a.rs:2: `.unwrap()`"));
    }

    #[test]
    fn unwrap_is_allowed_in_tests() {
        let text = "#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }";
        assert!(found(&[("crates/x/src/a.rs", text)]).is_empty());
        assert!(found(&[("crates/x/tests/it/a.rs", "fn f() { g().unwrap(); }")]).is_empty());
        assert!(found(&[("crates/x/src/a.rs", "fn f() { g().unwrap_or(1); }")]).is_empty());
    }

    #[test]
    fn a_file_that_only_tests_include_is_test_code() {
        let tests = "fn f() { g().unwrap(); }";
        let with = |declaration| {
            found(&[
                ("crates/x/src/a.rs", declaration),
                ("crates/x/src/a/tests.rs", tests),
            ])
        };
        assert!(with("#[cfg(test)]\nmod tests;").is_empty());
        assert_eq!(with("mod tests;").len(), 1);
        let sibling = |declaration| {
            found(&[
                ("crates/x/src/y/a.rs", declaration),
                ("crates/x/src/y/a_tests.rs", tests),
            ])
        };
        assert!(sibling("#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod tests;").is_empty());
        assert_eq!(sibling("#[path = \"a_tests.rs\"]\nmod tests;").len(), 1);
    }
}
