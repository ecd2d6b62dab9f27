//! Where the result of a source goes: a file, standard output or a webhook.
//!
//! Promises: a file is replaced as a whole or not at all, and lies below the folder of results. A line on standard output is
//! one JSON object. A webhook gets the body of the response; it is tried again, a bounded number of times.
//!
//! Never: stores a result anywhere else, or logs the address of a webhook.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use tokio::time::timeout;
use tollgate::path::{self, Target};
use tollgate_config::provider::Upstream;
use tollgate_core::schedule::ResultPath;
use tollgate_core::time::Wall;

use crate::call_words;
use crate::daemon::Daemon;
use crate::desk::DeskError;

/// The folder of results, in the state folder.
const FOLDER: &str = "results";

/// How long a receiver may take.
const RECEIVER_TIMEOUT: Duration = Duration::from_secs(15);

/// How often a webhook is tried: with waits of 1, 2 and 4 seconds, so that a receiver may be restarted meanwhile, and no
/// worker is held for longer than some minute.
const WEBHOOK_ATTEMPTS: u32 = 4;

const SOURCE_NAME: HeaderName = HeaderName::from_static("x-tollgate-source-name");
const SOURCE_STATUS: HeaderName = HeaderName::from_static("x-tollgate-source-status");

/// Where results go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// Nowhere: a fetch fills the cache.
    Nowhere,
    /// A line on standard output each.
    Stdout,
    /// A POST each.
    Webhook(Box<Upstream>),
    /// A file below the folder of results.
    File(ResultPath),
}

/// A response that was fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) status: u16,
    pub(super) content_type: Option<HeaderValue>,
    pub(super) body: Bytes,
    /// Where it came from, as `X-Tollgate-Source` says it.
    pub(super) from: &'static str,
    pub(super) at: Wall,
}

impl Output {
    /// Reads the field of a source; `None` = it is not an output.
    pub(crate) fn parse(text: Option<&str>) -> Option<Output> {
        Some(match text {
            None => Output::Nowhere,
            Some("-") => Output::Stdout,
            Some(text) if text.contains("://") => Output::Webhook(Box::new(webhook(text)?)),
            Some(text) => Output::File(ResultPath::parse(text)?),
        })
    }

    /// Delivers a result. Returns where it is; an error is a sentence.
    pub(super) async fn deliver(
        &self,
        daemon: &Daemon,
        name: &str,
        fetched: Fetched,
    ) -> Result<Option<String>, String> {
        match self {
            Output::Nowhere => Ok(None),
            Output::Stdout => {
                let line = line(name, &fetched);
                let written = tokio::task::spawn_blocking(move || write_line(&line)).await;
                let is_written = matches!(written, Ok(Ok(())));
                let written = is_written.then(|| Some("-".to_owned()));
                written.ok_or_else(|| "standard output could not be written".to_owned())
            }
            Output::Webhook(to) => post(daemon, to, name, fetched).await,
            Output::File(path) => {
                let ext = extension(fetched.content_type.as_ref());
                let path = path.expand(name, ext, fetched.at);
                let path = path.ok_or("the name of the source cannot be a part of a path")?;
                write_file(daemon, path, fetched.body).await
            }
        }
    }
}

/// An address without a query: that could hold a key.
fn webhook(text: &str) -> Option<Upstream> {
    let Target::Url {
        tls,
        authority,
        path,
        query: None,
    } = call_words::url(text)?
    else {
        return None;
    };
    Upstream::new(tls, &authority, &path).ok()
}

async fn post(
    daemon: &Daemon,
    to: &Upstream,
    name: &str,
    fetched: Fetched,
) -> Result<Option<String>, String> {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static("tollgate"));
    headers.insert(SOURCE_STATUS, HeaderValue::from(fetched.status));
    if let Some(kind) = fetched.content_type {
        headers.insert(CONTENT_TYPE, kind);
    }
    if let Ok(name) = HeaderValue::from_str(name) {
        headers.insert(SOURCE_NAME, name);
    }
    let mut why = String::new();
    for attempt in 0..WEBHOOK_ATTEMPTS {
        if attempt > 0 {
            pause(Duration::from_secs(1 << (attempt - 1))).await;
        }
        let body = fetched.body.clone();
        let posting = path::deliver::post(daemon.registry(), to, headers.clone(), body);
        why = match timeout(RECEIVER_TIMEOUT, posting).await {
            Ok(Ok(200..=299)) => return Ok(Some("webhook".to_owned())),
            Ok(Ok(status)) => format!("the webhook responded with {status}"),
            Ok(Err(_)) => "the webhook could not be reached".to_owned(),
            Err(_late) => "the webhook did not respond in time".to_owned(),
        };
    }
    Err(why)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the wait between two attempts of one delivery, which nothing ends early"
)]
async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Writes a result on a blocking thread. The desk knows the folder.
async fn write_file(daemon: &Daemon, path: String, body: Bytes) -> Result<Option<String>, String> {
    let relative = path.clone();
    let written = daemon.on_desk(move |desk| {
        let Some(folder) = desk.folder() else {
            return Ok(Err("there is no state folder for results".to_owned()));
        };
        let folder = folder.join(FOLDER);
        match replace_file(&folder.join(relative), &body) {
            Ok(()) => Ok::<_, DeskError>(Ok(())),
            Err(error) => Ok(Err(format!("the result could not be written: {error}"))),
        }
    });
    match written.await {
        Some(Ok(())) => Ok(Some(format!("{FOLDER}/{path}"))),
        Some(Err(why)) => Err(why),
        None => Err("the state folder cannot be used".to_owned()),
    }
}

/// Writes a file next to it, and renames that: a reader sees the old or the new result, whenever the process ends.
fn replace_file(path: &Path, body: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // One process of a folder runs the sources, and no source runs twice at a time.
    let new = folder.join(format!(".{name}.new"));
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&new)?;
        file.write_all(body)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        fs::remove_file(&new).ok();
    }
    written
}

/// A result as one line of JSON; a body that is no text is in base64.
fn line(name: &str, fetched: &Fetched) -> Vec<u8> {
    let kind = fetched.content_type.as_ref();
    let mut line = json!({
        "source": name,
        "ts": crate::json::epoch(fetched.at),
        "status": fetched.status,
        "from": fetched.from,
        "content_type": kind.and_then(|kind| kind.to_str().ok()),
    });
    match std::str::from_utf8(&fetched.body) {
        Ok(text) => line["body"] = json!(text),
        Err(_) => line["body_base64"] = json!(STANDARD.encode(&fetched.body)),
    }
    let mut line = crate::json::to_bytes(&line);
    line.push(b'\n');
    line
}

fn write_line(line: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line)?;
    out.flush()
}

/// What `{ext}` stands for.
fn extension(kind: Option<&HeaderValue>) -> &'static str {
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind.to_ascii_lowercase().as_str() {
        "text/html" => "html",
        "text/csv" => "csv",
        "text/plain" => "txt",
        "application/pdf" => "pdf",
        "image/png" => "png",
        "image/jpeg" => "jpg",
        kind if kind.ends_with("/json") || kind.ends_with("+json") => "json",
        kind if kind.ends_with("/xml") || kind.ends_with("+xml") => "xml",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h5_an_output_is_nowhere_standard_output_a_webhook_or_a_file() {
        let parse = |text| Output::parse(Some(text));
        assert_eq!(Output::parse(None), Some(Output::Nowhere));
        assert_eq!(parse("-"), Some(Output::Stdout));
        let Some(Output::Webhook(to)) = parse("http://127.0.0.1:8080/in") else {
            panic!("a webhook");
        };
        assert_eq!((to.port, to.base.as_str(), to.tls), (8_080, "/in", false));
        assert!(matches!(parse("a/{name}.json"), Some(Output::File(_))));
        for wrong in ["ftp://x/y", "https://x/y?key=1", "../x", "/etc/x", ""] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn h5_a_file_is_replaced_as_a_whole() {
        let folder = std::env::temp_dir().join(format!("tollgate-result-{}", std::process::id()));
        let path = folder.join("a/b.json");
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file stays");
        // A folder in its place: the error leaves nothing behind.
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("in-the-way")).unwrap();
        assert!(replace_file(&path, b"three").is_err());
        assert!(!folder.join("a/.b.json.new").exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
