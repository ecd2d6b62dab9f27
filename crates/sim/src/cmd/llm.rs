//! `tollgate-sim llm`: an account at a provider of language models, on a port.
//!
//! Promises: the first line on stdout is the base URL, the last one the account as JSON.
//!
//! Never: listens beyond loopback unless `--listen` says so.

use std::net::SocketAddr;

use clap::Args;
use tollgate_core::time::Span;
use tollgate_sim::llm::account::Tier;
use tollgate_sim::llm::wire::LlmDialect;
use tollgate_sim::llm::{LlmProvider, LlmSettings};

use super::{CommandResult, ShutdownSignals, block_on, print_line};

/// A provider of language models: calls and tokens a minute per key and model, told in headers.
///
/// Prints its base URL, serves until SIGTERM or SIGINT, then prints the account as JSON. A request may
/// say how long its completion gets (`sim_output`), how much of its prompt is cached (`sim_cached`), and
/// after how many tokens its stream breaks off (`sim_break`).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Llm {
    /// Where clients connect; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Whose words it speaks: openai, azure_openai, groq, anthropic, mistral or gemini
    #[arg(long, value_name = "NAME", default_value = "openai", value_parser = dialect)]
    dialect: LlmDialect,

    /// Calls a minute
    #[arg(long, value_name = "N")]
    rpm: Option<u64>,

    /// Tokens a minute
    #[arg(long, value_name = "N")]
    tpm: Option<u64>,

    /// Input tokens a minute
    #[arg(long, value_name = "N")]
    input_tpm: Option<u64>,

    /// Output tokens a minute
    #[arg(long, value_name = "N")]
    output_tpm: Option<u64>,

    /// How many tokens a completion gets each second; 0 = all at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    speed: u64,

    /// How many milliseconds pass until the first token
    #[arg(long, value_name = "MS", default_value_t = 0)]
    first_token: u64,

    /// How long a completion gets if the request does not say
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    output: u64,

    /// How much a call holds whose request states no bound
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    unbounded_hold: u64,

    /// Tokens of a prompt, in percent of a quarter of its characters
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    prompt_percent: u64,
}

const EXAMPLES: &str = "\
Examples:
  tollgate-sim llm --rpm 500 --tpm 90000
  tollgate-sim llm --dialect anthropic --rpm 50 --output-tpm 8000 --speed 60
  curl http://127.0.0.1:PORT/-/report";

fn dialect(name: &str) -> Result<LlmDialect, String> {
    let known = LlmDialect::named(name);
    known.ok_or_else(|| "write openai, azure_openai, groq, anthropic, mistral or gemini".to_owned())
}

impl Llm {
    /// Serves until a signal arrives.
    pub(crate) fn run(self) -> CommandResult {
        block_on(async {
            let mut signals = ShutdownSignals::listen()?;
            let tier = Tier {
                requests: self.rpm,
                tokens: self.tpm,
                input: self.input_tpm,
                output: self.output_tpm,
            };
            let token_time = Span(1_000_000_u64.checked_div(self.speed).unwrap_or(0));
            let settings = LlmSettings {
                first_token: Span::from_millis(self.first_token),
                token_time,
                output: self.output,
                unbounded_hold: self.unbounded_hold,
                prompt_percent: self.prompt_percent.clamp(1, 1_000),
                ..LlmSettings::new(self.dialect, tier)
            };
            let provider = LlmProvider::start_at(self.listen, settings).await?;
            print_line(&format!("http://{}", provider.address()))?;
            signals.wait().await;
            Ok(print_line(&provider.report())?)
        })
    }
}
