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
            _ => Bytes::from_static(file.bytes),
        };
        let tag = tag(&bytes);
        (bytes, tag)
    });
    sent.collect()
});

/// A script without indentation and lines that are comments. Lines keep their numbers; no text of ours spans lines.
fn without_comments(script: &[u8]) -> Bytes {
    let mut sent = Vec::with_capacity(script.len());
    for line in script.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii_start();
        if !line.starts_with(b"//") {
            sent.extend_from_slice(line);
        }
        sent.push(b'\n');
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
