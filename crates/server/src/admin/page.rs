//! The page: the files of `dashboard/`, built into the program.
//!
//! Promises: no file of another site, no inline script or style, and a policy that forbids both. Files are
//! revalidated by their `ETag`, so a new program shows its own page at once.
//!
//! Never: contains data; the page asks the API for it, with the rights of whoever looks.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use crate::api::ApiError;

/// Scripts, styles and data come from the admin address only; nobody may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct PageFile {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! files {
    ($($name:literal $kind:expr,)*) => {
        &[$(PageFile { name: $name, kind: $kind, bytes: include_bytes!(concat!("../dashboard/", $name)) }),*]
    };
}

const FILES: &[PageFile] = files! {
    "index.html" HTML,
    "app.css" STYLE,
    "icon.svg" "image/svg+xml",
    "app.js" SCRIPT,
    "api.js" SCRIPT,
    "state.js" SCRIPT,
    "dom.js" SCRIPT,
    "words.js" SCRIPT,
    "lane.js" SCRIPT,
    "chart.js" SCRIPT,
    "palette.js" SCRIPT,
    "overview.js" SCRIPT,
    "provider.js" SCRIPT,
    "callers.js" SCRIPT,
    "calls.js" SCRIPT,
    "events.js" SCRIPT,
    "setup.js" SCRIPT,
};

/// What is sent of every file, and its `ETag`, a fingerprint of that.
static SENT: LazyLock<Vec<(Bytes, String)>> = LazyLock::new(|| {
    let sent = FILES.iter().map(|file| {
        let bytes = match file.kind {
            SCRIPT => without_comments(file.bytes),
            STYLE => without_spaces(file.bytes),
            _ => Bytes::from_static(file.bytes),
        };
        let tag = tag(&bytes);
        (bytes, tag)
    });
    sent.collect()
});

/// A script without indentation, empty lines, lines that are comments, line ends that mean nothing, and spaces beside marks; no text of ours spans
/// lines. Texts and expressions in `/…/` stay as they are.
fn without_comments(script: &[u8]) -> Bytes {
    let mut sent = Vec::with_capacity(script.len());
    for line in script.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii();
        if !line.is_empty() && !line.starts_with(b"//") {
            // A line end means nothing behind one of the first marks and before one of the others.
            let is_behind = sent.last().is_none_or(|last| b";{,([".contains(last));
            let is_before = line.first().is_some_and(|first| b"})]".contains(first));
            if !is_behind && !is_before {
                sent.push(b'\n');
            }
            without_spaces_beside_marks(line, &mut sent);
        }
    }
    sent.push(b'\n');
    sent.into()
}

/// Beside one of these a space means nothing. Not beside `+`, `-` and `/`: two of them would become another mark.
const MARKS: &[u8] = b"{}()[];,:?=<>*&|!%";

fn without_spaces_beside_marks(line: &[u8], sent: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        let end = match byte {
            b'\'' | b'"' => end_of(line, at, byte),
            b'`' => end_of_template(line, at),
            b'/' if begins_an_expression(sent) => end_of(line, at, b'/'),
            _ => at + 1,
        };
        let next = line.get(end).copied().unwrap_or(b'\n');
        let is_beside = |mark: Option<&u8>| mark.is_some_and(|mark| MARKS.contains(mark));
        let means_nothing = byte == b' ' && (is_beside(sent.last()) || is_beside(Some(&next)));
        if !means_nothing {
            sent.extend_from_slice(line.get(at..end).unwrap_or_default());
        }
        at = end;
    }
}

/// Behind these a `/` does not divide.
fn begins_an_expression(sent: &[u8]) -> bool {
    let before = sent.trim_ascii_end();
    before.ends_with(b"return")
        || before
            .last()
            .is_none_or(|last| b"(,=:[!&|?{};".contains(last))
}

/// Where a text or an expression ends that begins here, with its last mark.
fn end_of(line: &[u8], from: usize, mark: u8) -> usize {
    let mut at = from + 1;
    while let Some(&byte) = line.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if byte == mark => return at + 1,
            _ => at += 1,
        }
    }
    line.len()
}

/// Where a template ends that begins here. Code in it may contain templates.
fn end_of_template(line: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from + 1, 0_usize);
    while let Some(&byte) = line.get(at) {
        at = match byte {
            b'\\' => at + 2,
            b'$' if depth == 0 && line.get(at + 1) == Some(&b'{') => {
                depth = 1;
                at + 2
            }
            b'{' if depth > 0 => {
                depth += 1;
                at + 1
            }
            b'}' if depth > 0 => {
                depth -= 1;
                at + 1
            }
            b'\'' | b'"' if depth > 0 => end_of(line, at, byte),
            b'`' if depth > 0 => end_of_template(line, at),
            b'`' => return at + 1,
            _ => at + 1,
        };
    }
    line.len()
}

/// A style sheet without indentation, line ends, and the spaces around `{`, `}`, `;`, `,` and after `:`. No text and
/// no comment is in it.
fn without_spaces(style: &[u8]) -> Bytes {
    let mut sent: Vec<u8> = Vec::with_capacity(style.len());
    for byte in style {
        let byte = if byte.is_ascii_whitespace() {
            b' '
        } else {
            *byte
        };
        let is_after_a_mark = sent.last().is_none_or(|last| b" {};,:>".contains(last));
        if byte == b' ' && is_after_a_mark {
            continue;
        }
        if b"{};,>".contains(&byte) && sent.last() == Some(&b' ') {
            sent.pop();
        }
        if byte == b'}' && sent.last() == Some(&b';') {
            sent.pop();
        }
        sent.push(byte);
    }
    sent.into()
}

/// `GET /`.
pub(super) async fn index(headers: HeaderMap) -> Response {
    file("index.html", &headers)
}

/// `GET /page/{file}`.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    file(&name, &headers)
}

fn file(name: &str, headers: &HeaderMap) -> Response {
    let Some(index) = FILES.iter().position(|file| file.name == name) else {
        return ApiError::unknown_path().into_response();
    };
    let (file, (bytes, tag)) = (&FILES[index], &SENT[index]);
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        bytes.clone().into_response()
    };
    let out = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        out.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_TYPE, file.kind);
    set(CACHE_CONTROL, "no-cache");
    set(HeaderName::from_static("content-security-policy"), POLICY);
    set(HeaderName::from_static("x-content-type-options"), "nosniff");
    set(HeaderName::from_static("referrer-policy"), "no-referrer");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    if let Ok(tag) = HeaderValue::from_str(tag) {
        out.insert(ETAG, tag);
    }
    response
}

/// FNV-1a in 64 bits: two versions of a file differ in it, and nobody attacks their own page.
fn tag(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("\"{hash:016x}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget of the page.
    #[test]
    fn scripts_and_styles_stay_below_120_kb() {
        let counted = FILES
            .iter()
            .zip(&*SENT)
            .filter(|(file, _)| [SCRIPT, STYLE].contains(&file.kind));
        let bytes: usize = counted.map(|(_, (bytes, _))| bytes.len()).sum();
        assert!(bytes <= 120_000, "{bytes} bytes");
    }

    #[test]
    fn a_script_is_sent_without_spaces_that_mean_nothing() {
        let cases = [
            (
                "const a = (b, c) => ({ d: b + c });",
                "const a=(b,c)=>({d:b + c});",
            ),
            (
                "return x ? 'a , b' : \"c ; d\";",
                "return x?'a , b':\"c ; d\";",
            ),
            (
                "put(a, `x ${b ? `{ ${c} }` : 'd }'} , y`) ;",
                "put(a,`x ${b ? `{ ${c} }` : 'd }'} , y`);",
            ),
            (
                "text.replace(/(\\d) min, \\b/g, '$1 m') / 2 ;",
                "text.replace(/(\\d) min, \\b/g,'$1 m')/ 2;",
            ),
            ("  // a remark", ""),
            (
                "if (a) {\n  b(c,\n    d);\n}\nelse e();",
                "if(a){b(c,d);}\nelse e();",
            ),
        ];
        for (script, expected) in cases {
            let sent = without_comments(script.as_bytes());
            assert_eq!(std::str::from_utf8(&sent).unwrap().trim_end(), expected);
        }
    }

    #[test]
    fn a_style_sheet_is_sent_without_spaces_that_mean_nothing() {
        let sent = without_spaces(b"@media (max-width: 9px) {\n  .a > .b, .c .d:hover { margin: 0 1px; color: red; }\n}\n");
        let expected = "@media (max-width:9px){.a>.b,.c .d:hover{margin:0 1px;color:red}}";
        assert_eq!(sent, expected);
        let style = FILES.iter().find(|file| file.kind == STYLE);
        let text = std::str::from_utf8(style.unwrap().bytes).unwrap();
        assert!(
            !text.contains("/*") && !text.contains("content: \""),
            "a text or a comment would change"
        );
    }

    /// The next line would become a part of it.
    #[test]
    fn no_line_of_a_script_ends_with_a_comment() {
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let found = text.lines().find(|line| {
                line.trim_start()
                    .split_once(" // ")
                    .is_some_and(|(code, _)| !code.starts_with("//"))
            });
            assert_eq!(found, None, "{}", file.name);
        }
    }

    /// A text over several lines would lose its indentation.
    #[test]
    fn no_text_of_a_script_spans_lines() {
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let is_open = |line: &&str| line.matches('`').count() % 2 == 1;
            let found = text.lines().find(is_open);
            assert!(
                found.is_none() && !text.contains("/*"),
                "{}: {found:?}",
                file.name
            );
        }
    }

    /// What the policy forbids must not be there: it would fail silently in a browser.
    #[test]
    fn no_file_has_inline_code_or_names_another_site() {
        for file in FILES {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for forbidden in [
                " style=",
                "onclick=",
                "javascript:",
                "https://",
                "innerHTML",
                "eval(",
            ] {
                let found = text.lines().find(|line| line.contains(forbidden));
                assert!(found.is_none(), "{}: {found:?}", file.name);
            }
        }
        let index = std::str::from_utf8(FILES[0].bytes).unwrap();
        assert!(!index.contains("<style") && !index.contains("<script>"));
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let first = file("app.js", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(file("app.js", &headers).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(file("app.css", &headers).status(), StatusCode::OK);
        assert_eq!(
            file("../admin.rs", &headers).status(),
            StatusCode::NOT_FOUND
        );
    }
}
