//! `tollgate-sim serve`: a provider on a port that serves until a signal ends it.
//!
//! Promises: the first line on stdout is the base URL, the last one the report as JSON.
//!
//! Never: listens beyond loopback unless `--listen` says so.

use std::net::SocketAddr;

use clap::Args;
use tollgate_sim::fault::PlannedFault;
use tollgate_sim::http::style::STYLES;
use tollgate_sim::http::{KeyLocation, Settings, SimProvider, Style};
use tollgate_sim::latency::{Delay, Latency};
use tollgate_sim::rule::RuleSpec;

use super::delay::{parse_delay, parse_network};
use super::{CommandResult, ShutdownSignals, block_on, print_line};

/// A provider that enforces limits, fails on schedule and reports every violation.
///
/// Prints its base URL, serves until SIGTERM or SIGINT, then prints the report as JSON. While it runs:
/// GET /-/report, GET /-/log, POST /-/reset, POST /-/fault (one fault per line, or `clear`).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where clients connect; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// A second address for the control plane only; faults do not affect it
    #[arg(long, value_name = "ADDR")]
    control: Option<SocketAddr>,

    /// A limit, repeatable: `sliding 40/10s`, `fixed 1000/1d`, `bucket 50/1s burst 10`, `in-flight 4`
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<RuleSpec>,

    /// Count each first path segment separately
    #[arg(long)]
    per_entity: bool,

    /// Beginning of paths that is not part of the entity, such as `/v3/football`
    #[arg(long, value_name = "PREFIX", default_value = "")]
    strip: String,

    /// Count each key separately: `header:X-Api-Key` or `query:api_key`
    #[arg(long, value_name = "PLACE", value_parser = key_place)]
    key: Option<KeyLocation>,

    /// How the provider responds above a limit
    #[arg(long, default_value_t = Style::default(), help = style_help())]
    style: Style,

    /// Delays of a whole network: none, lan, wan or llm
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = parse_network)]
    network: Latency,

    /// Delay before a request counts: `20ms`, `10ms..30ms`, `30ms~0.8` (lognormal)
    #[arg(long, value_name = "DELAY", value_parser = parse_delay)]
    up: Option<Delay>,

    /// Delay between counting and the response; 429s skip it
    #[arg(long, value_name = "DELAY", value_parser = parse_delay)]
    work: Option<Delay>,

    /// Delay between the head of the response and its body; 429s skip it
    #[arg(long, value_name = "DELAY", value_parser = parse_delay)]
    body: Option<Delay>,

    /// Delay of the response on its way back
    #[arg(long, value_name = "DELAY", value_parser = parse_delay)]
    down: Option<Delay>,

    /// Seed of the random delays
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Status of a successful response
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: u16,

    /// Smallest body of a successful response
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = body_bytes)]
    body_bytes: usize,

    /// A fault, repeatable: `outage 8s..11s 503`, `limit 0 to 20 at 15s`, `hang next 3`
    #[arg(long = "fault", value_name = "FAULT", long_help = FAULTS)]
    faults: Vec<PlannedFault>,
}

/// 64 MiB: every successful response is built in memory.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

const EXAMPLES: &str = "\
Examples:
  tollgate-sim serve --rule 'sliding 40/10s' --style x-ratelimit
  tollgate-sim serve --rule 'bucket 50/1s burst 10' --rule 'in-flight 4' --network wan \\
      --fault 'outage 8s..11s 503' --fault 'limit 0 halve at 15s'
  curl -X POST --data 'hang next 3' http://127.0.0.1:PORT/-/fault";

const FAULTS: &str = "\
A fault, repeatable. WHEN is `8s..11s`, `8s..`, `at 8s`, `now` or `next 3` (requests), measured from the start.
  outage WHEN [STATUS]   reset-before WHEN   reset-after WHEN   hang WHEN
  drip WHEN [GAP]        endless WHEN        truncate WHEN      huge-headers WHEN
  skew WHEN +90s|-2h     limit RULE to N WHEN | limit RULE halve WHEN
  tell RULE as N WHEN (headers only)         RULE is counted from 0";

impl Serve {
    /// Serves until a signal arrives.
    pub(crate) fn run(self) -> CommandResult {
        block_on(async {
            let mut signals = ShutdownSignals::listen()?;
            let provider = SimProvider::start(self.settings()).await?;
            print_line(&provider.url())?;
            if let Some(control) = provider.control_address() {
                print_line(&format!("control http://{control}"))?;
            }
            signals.wait().await;
            let report = provider.stop().await;
            Ok(print_line(&report.to_json())?)
        })
    }

    fn settings(self) -> Settings {
        let network = self.network;
        Settings {
            listen: self.listen,
            control: self.control,
            rules: self.rules,
            per_entity: self.per_entity,
            strip: self.strip,
            key: self.key,
            style: self.style,
            latency: Latency {
                up: self.up.unwrap_or(network.up),
                work: self.work.unwrap_or(network.work),
                body: self.body.unwrap_or(network.body),
                down: self.down.unwrap_or(network.down),
            },
            seed: self.seed,
            status: self.status,
            body_bytes: self.body_bytes,
            faults: self.faults,
        }
    }
}

fn style_help() -> String {
    format!(
        "How the provider responds above a limit: {}",
        STYLES.map(|(name, _)| name).join(", ")
    )
}

fn key_place(text: &str) -> Result<KeyLocation, String> {
    match text.split_once(':') {
        Some(("header", name)) if !name.is_empty() => Ok(KeyLocation::Header(name.to_owned())),
        Some(("query", name)) if !name.is_empty() => Ok(KeyLocation::Query(name.to_owned())),
        _ => Err(format!(
            "`{text}` is not a place; write `header:X-Api-Key` or `query:api_key`"
        )),
    }
}

fn body_bytes(text: &str) -> Result<usize, String> {
    let bytes: usize = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of bytes"))?;
    if bytes > BODY_BYTES_MAX {
        return Err(format!(
            "{bytes} is too large; write at most {BODY_BYTES_MAX}"
        ));
    }
    Ok(bytes)
}
