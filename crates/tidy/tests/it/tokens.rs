//! Rust sources as tokens: the functions of a file, and its tokens with or without test code.
//!
//! Promises: also reads the content of macros (`proptest!`, `macro_rules!`), which a syntax tree
//! does not, and ignores strings and comments.
//!
//! Never: resolves names or types. That is the compiler's job.

use crate::tree::{Source, Violation};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of `fn`.
    pub(crate) line: usize,
    /// From `fn` to the closing brace, both included.
    pub(crate) lines: usize,
    /// Carries `#[test]`, `#[tokio::test]` or another attribute whose last word is `test`.
    pub(crate) is_test: bool,
    /// All `///` lines above it.
    pub(crate) doc: String,
}

/// One token, flat; brackets are tokens of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Which tokens [`flat`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenFilter {
    All,
    /// Without `#[cfg(test)]` items and test functions.
    Shipped,
}

/// The tokens of a source, or the violation that it cannot be read as Rust.
pub(crate) fn parse(source: &Source) -> Result<TokenStream, Violation> {
    source.text.parse().map_err(|error: proc_macro2::LexError| {
        let line = error.span().start().line;
        source.violation(
            line,
            format!("is not Rust: {error}"),
            "make it compile first",
        )
    })
}

/// Every function with a body, outer before inner.
pub(crate) fn functions(stream: TokenStream) -> Vec<Function> {
    let mut found = Vec::new();
    collect_functions(stream, &mut found);
    found
}

/// All tokens in reading order.
pub(crate) fn flat(stream: TokenStream, which: TokenFilter) -> Vec<Token> {
    let mut tokens = Vec::new();
    flatten(stream, which, &mut tokens);
    tokens
}

/// Whether an attribute (without its brackets) excludes its item from shipped code.
pub(crate) fn is_test_only(attribute: &TokenStream) -> bool {
    let tokens = flat(attribute.clone(), TokenFilter::All);
    let says = |word: &str| tokens.iter().any(|token| token.text == word);
    let is_cfg = tokens.first().is_some_and(|token| token.text == "cfg");
    (is_cfg && says("test") && !says("not")) || is_test(attribute)
}

/// The attribute at `at`, if one starts there, and the index behind it.
pub(crate) fn attribute(trees: &[TokenTree], at: usize) -> Option<(&Group, usize)> {
    let is_punct = |index: usize, mark: char| match trees.get(index) {
        Some(TokenTree::Punct(punct)) => punct.as_char() == mark,
        _ => false,
    };
    if !is_punct(at, '#') {
        return None;
    }
    let group_at = if is_punct(at + 1, '!') {
        at + 2
    } else {
        at + 1
    };
    match trees.get(group_at) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
            Some((group, group_at + 1))
        }
        _ => None,
    }
}

fn is_test(attribute: &TokenStream) -> bool {
    let path: Vec<String> = attribute
        .clone()
        .into_iter()
        .take_while(|tree| !matches!(tree, TokenTree::Group(_)))
        .map(|tree| tree.to_string())
        .collect();
    path.last().is_some_and(|word| word == "test")
}

fn doc_line(attribute: &TokenStream) -> Option<String> {
    let mut trees = attribute.clone().into_iter();
    let name = trees.next()?.to_string();
    (name == "doc").then(|| trees.skip(1).map(|tree| tree.to_string()).collect())
}

fn collect_functions(stream: TokenStream, found: &mut Vec<Function>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut attributes: Vec<TokenStream> = Vec::new();
    let mut at = 0;
    while at < trees.len() {
        if let Some((group, behind)) = attribute(&trees, at) {
            // `#![…]` and `//!` belong to the file, not to its first function.
            let is_inner = behind - at == 3;
            attributes.extend((!is_inner).then(|| group.stream()));
            at = behind;
            continue;
        }
        match &trees[at] {
            TokenTree::Ident(word) if word == "fn" => {
                found.extend(function(&trees[at..], &attributes));
                attributes.clear();
            }
            // Tokens that may occur between attribute and `fn`: `pub(crate) async unsafe extern
            // "C"`.
            TokenTree::Ident(_) | TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                collect_functions(group.stream(), found);
                if group.delimiter() == Delimiter::Brace {
                    attributes.clear();
                }
            }
            TokenTree::Punct(_) => attributes.clear(),
        }
        at += 1;
    }
}

/// The function that starts at the first tree; `None` for `fn(u32)` types and bodiless signatures.
fn function(trees: &[TokenTree], attributes: &[TokenStream]) -> Option<Function> {
    let TokenTree::Ident(name) = trees.get(1)? else {
        return None;
    };
    let TokenTree::Group(body) = trees.iter().find(|tree| ends_item(tree))? else {
        return None;
    };
    let line = trees.first()?.span().start().line;
    Some(Function {
        name: name.to_string(),
        line,
        lines: body.span_close().end().line + 1 - line,
        is_test: attributes.iter().any(is_test),
        doc: attributes
            .iter()
            .filter_map(doc_line)
            .collect::<Vec<_>>()
            .join("\n"),
    })
}

fn flatten(stream: TokenStream, which: TokenFilter, tokens: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        if which == TokenFilter::Shipped
            && let Some((group, behind)) = attribute(&trees, at)
            && is_test_only(&group.stream())
        {
            at = behind_item(&trees, behind);
            continue;
        }
        flatten_tree(tree, which, tokens);
        at += 1;
    }
}

fn flatten_tree(tree: &TokenTree, which: TokenFilter, tokens: &mut Vec<Token>) {
    let TokenTree::Group(group) = tree else {
        tokens.push(Token {
            text: tree.to_string(),
            line: tree.span().start().line,
        });
        return;
    };
    let (open, close) = match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    };
    tokens.push(Token {
        text: open.to_owned(),
        line: group.span_open().start().line,
    });
    flatten(group.stream(), which, tokens);
    tokens.push(Token {
        text: close.to_owned(),
        line: group.span_close().start().line,
    });
}

/// Whether an item ends here: at its body in braces, or at its semicolon.
fn ends_item(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    }
}

/// The index behind the item that starts at `at`.
fn behind_item(trees: &[TokenTree], at: usize) -> usize {
    let rest = trees.get(at..).unwrap_or_default();
    rest.iter()
        .position(ends_item)
        .map_or(trees.len(), |offset| at + offset + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_functions(text: &str) -> Vec<Function> {
        functions(text.parse().expect("the fixture is Rust"))
    }

    #[test]
    fn functions_are_found_in_modules_impls_and_macros() {
        let found = parse_functions(
            "fn a() {}\nmod m { impl X { pub(crate) async fn b(&self) -> u8 { 1 } } }\n\
             proptest! { #[test] fn c(x in 0..9u8) { let f: fn(u8) = g; } }\n\
             trait T { fn bodiless(&self); }",
        );
        let names: Vec<&str> = found
            .iter()
            .map(|function| function.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_function_is_measured_from_fn_to_brace_without_its_docs() {
        let found = parse_functions("/// Doc.\n#[inline]\npub fn a(\n    x: u8,\n) {\n}\n");
        assert_eq!((found[0].line, found[0].lines), (3, 4));
    }

    #[test]
    fn tests_are_distinguished_from_other_functions_and_keep_their_doc() {
        let found = parse_functions(
            "/// M1: counts.\n#[tokio::test(start_paused = true)]\npub async fn a() {}\n\
             #[inline]\nfn b() {}\n#[test]\nfn c() {}",
        );
        assert_eq!(
            found.iter().map(|f| f.is_test).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert!(found[0].doc.contains("M1: counts."));
        assert!(found[1].doc.is_empty());
        assert!(
            parse_functions("//! M1\n#[test]\nfn a() {}")[0]
                .doc
                .is_empty()
        );
    }

    #[test]
    fn shipped_tokens_exclude_test_code() {
        let text = "fn a() { one(); }\n#[cfg(test)]\nuse x;\n#[cfg(not(test))]\nfn b() { two(); }\n\
                    #[cfg(all(test, unix))]\nmod tests { fn c() { three(); } }\n#[test]\nfn d() { four(); }";
        let tokens = flat(
            text.parse().expect("the fixture is Rust"),
            TokenFilter::Shipped,
        );
        let has = |word: &str| tokens.iter().any(|token| token.text == word);
        assert!(has("one") && has("two") && !has("x") && !has("three") && !has("four"));
    }
}
