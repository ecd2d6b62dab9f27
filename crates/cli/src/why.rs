//! `tollgate why`: what happened to one call, as a timeline in plain sentences.
//!
//! Promises: prints what `GET /v1/decisions` says about the call. If the daemon does not know it, it says what the
//! daemon keeps.
//!
//! Never: changes anything.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use hyper::Method;
use serde_json::Value;

use crate::admin_client::{AdminClient, percent_encode};
use crate::options::Options;

const EXAMPLES: &str = "\
Examples:
  curl -si http://127.0.0.1:4290/tmdb/3/movie/550 | grep -i x-tollgate-id
  tollgate why 4f1c2a
  tollgate why --last
  tollgate why --last tmdb";

/// Say why a call waited, was rejected, or came from the cache
///
/// The id is in the header X-Tollgate-Id of the response and in the log. The daemon keeps the last 1,024 calls.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Why {
    /// The call; without it, the last one; with --last, a provider
    #[arg(value_name = "ID")]
    id: Option<String>,

    /// The last call, or the last call of PROVIDER
    #[arg(long)]
    last: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: Options,
}

impl Why {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let remote = AdminClient::find(&self.options)?;
        let name = self.id.as_deref().map(percent_encode);
        let path = match (self.last, &name) {
            (_, None) => "/v1/decisions?limit=1".to_owned(),
            (true, Some(provider)) => format!("/v1/decisions?limit=1&provider={provider}"),
            (false, Some(id)) => format!("/v1/decisions?limit=1&id={id}"),
        };
        let reply = remote.request(Method::GET, &path, None)??;
        let Some(call) = reply["decisions"].get(0) else {
            bail!(
                "the daemon does not know this call: it keeps the last {} calls, at most 1,000 a second and of \
                 cache hits 100 a second; `tollgate why --last` shows the last one",
                reply["kept_max"]
            );
        };
        let text = match self.json {
            true => format!("{}\n", serde_json::to_string_pretty(call)?),
            false => timeline(call),
        };
        crate::out::out().write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The call, and each step with the time since its beginning.
fn timeline(call: &Value) -> String {
    let text = |name: &str| call[name].as_str().unwrap_or("-");
    let mut out = text("id").to_owned();
    // A guard decides about requests that it does not see.
    if call["method"].is_string() {
        out += &format!(" {} {}", text("method"), text("path"));
    }
    for (name, before) in [
        ("provider", " to "),
        ("entity", ", entity "),
        ("caller", ", caller "),
    ] {
        if let Some(value) = call[name].as_str() {
            out += &format!("{before}{value}");
        }
    }
    out.push('\n');
    let steps = call["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let begin = steps
        .first()
        .and_then(|step| step["at"].as_f64())
        .unwrap_or_default();
    for step in steps {
        let after = step["at"].as_f64().unwrap_or(begin) - begin;
        let sentence = step["text"].as_str().unwrap_or_default();
        writeln!(out, "  {:>9}  {sentence}", format!("+{after:.3}s"))
            .expect("a String can be written to");
    }
    let wait = call["wait"].as_f64().unwrap_or_default();
    let summary = format!(
        "decision {}, reason {}, limit {}, waited {wait:.3}s, attempts {}, source {}, status {}",
        text("decision"),
        text("reason"),
        text("limit"),
        call["attempts"],
        text("source"),
        call["status"],
    );
    out + "  " + &summary.replace("null", "-") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_timeline_counts_from_the_first_step() {
        let call = json!({
            "id": "4f1c2a", "method": "GET", "path": "/3/movie/550", "provider": "tmdb", "entity": "movie",
            "caller": null, "decision": "queue", "reason": "limit", "limit": "40/10s", "wait": 2.5, "attempts": 1,
            "source": "upstream", "status": 200,
            "steps": [
                { "at": 100.0, "kind": "queued", "text": "It asked for a permit; 3 calls waited for tmdb already." },
                { "at": 102.5, "kind": "queue", "text": "It got a permit after 2.5s: the limit 40/10s was used up." },
                { "at": 102.75, "kind": "end", "text": "The caller got 200." },
            ],
        });
        insta::assert_snapshot!(timeline(&call), @r"
        4f1c2a GET /3/movie/550 to tmdb, entity movie
            +0.000s  It asked for a permit; 3 calls waited for tmdb already.
            +2.500s  It got a permit after 2.5s: the limit 40/10s was used up.
            +2.750s  The caller got 200.
          decision queue, reason limit, limit 40/10s, waited 2.500s, attempts 1, source upstream, status 200
        ");
    }
}
