//! `tollgate demo`: twin strict providers, the same greedy clients, one side direct, one through
//! Tollgate, with an outage on the way.
//!
//! Promises: what providers say comes from the providers' own logs; what callers met comes from the
//! callers. Exit 0 only if the provider behind Tollgate counted no violation.
//!
//! Never: leaves this machine. Everything is on loopback.

mod crowd;
mod score;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tollgate::Shop;
use tollgate::shop::Options;
use tollgate_config::{Draft, World};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Door, Gateway, GatewayOptions};
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::latency::Latency;

use crowd::Crowd;
use score::{Outage, score};

/// What both providers enforce, and what Tollgate is told of it.
const LIMIT: u64 = 20;

/// Watch two identical strict providers: one called directly, one through Tollgate.
///
/// Example: tollgate demo --seconds 20
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How long it runs.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=600))]
    seconds: u64,
}

impl Demo {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("the runtime could not start")?;
        runtime.block_on(self.show())
    }

    async fn show(&self) -> anyhow::Result<ExitCode> {
        let start = Micros(Clock::System.now().wall.0);
        let outage = Outage::within(self.seconds, start);
        let (direct, governed) = (provider(outage).await?, provider(outage).await?);
        let shop = shop(&governed)?;
        let mut gateway = Gateway::new(
            shop.clone(),
            GatewayOptions {
                grace: Span::ZERO,
                ..GatewayOptions::default()
            },
        );
        let free = "127.0.0.1:0".parse().context("an address")?;
        let door = gateway
            .listen(free, Door::All)
            .await
            .context("no free port")?
            .address;
        tell(&format!(
            "tollgate demo    two identical providers · strict: {LIMIT} calls in any 1 s · same 5 clients ask 60/s · outage {}–{} s\ntry it   curl -i http://{door}/demo/items/1",
            outage.from, outage.to
        ))?;
        let plain = Arc::new(Crowd::direct(direct.address()));
        let ours = Arc::new(Crowd::governed(door));
        let crowds = (
            tokio::spawn(plain.clone().ask(self.seconds, outage)),
            tokio::spawn(ours.clone().ask(self.seconds, outage)),
        );
        for second in 1..=self.seconds {
            rest(Duration::from_secs(1)).await;
            let live = shop.named("demo").map_err(anyhow::Error::new)?;
            tell(&format!(
                "{second:>3} s   direct: {:>4} answered, {:>4} refused by the provider   through Tollgate: {:>4} answered, {:>2} refused, {:>4} waiting, {}",
                plain.done(),
                direct.report().violations,
                ours.done(),
                governed.report().violations,
                live.waiting(),
                live.status().state.name(),
            ))?;
        }
        crowds.0.abort();
        crowds.1.abort();
        let sides = [
            score(&direct, &plain, outage),
            score(&governed, &ours, outage),
        ];
        tell(&score::table(&sides, LIMIT))?;
        gateway.drain().await;
        Ok(if sides[1].violations == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

/// A strict provider with a round trip of some 3 ms: on a window of 1 s a slower one could not be
/// used to 99 %.
async fn provider(outage: Outage) -> anyhow::Result<SimProvider> {
    let ms = Span::from_millis(1);
    let settings = Settings::with_rules(&format!("sliding {LIMIT}/1s"))?
        .latency(Latency::constant(ms, ms, ms))
        .fault(&format!("outage {}s..{}s 503", outage.from, outage.to))?;
    Ok(SimProvider::start(settings).await?)
}

fn shop(provider: &SimProvider) -> anyhow::Result<Shop> {
    let file = format!(
        "name: demo\nupstream: {}\nlimits: [{{limit: {LIMIT}, period: 1s, reserve: 1}}]\nqueue: {{max: 100000, timeout: 10m}}\n\
         retry: {{retries: {{high: 100, normal: 100, low: 100}}, base: 100ms, max: 1s}}\n\
         health: {{sleep_first: 1s, sleep_min: 1s, failure_threshold: 2}}\n",
        provider.url()
    );
    let checked = Draft::read("demo", &file)?.check(&World::empty());
    let provider = checked
        .provider
        .with_context(|| checked.problems.to_string())?;
    Ok(Shop::build(
        vec![provider],
        Ledger::memory(Clock::System),
        Options::default(),
    )?)
}

fn tell(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a demonstration runs in real time"
)]
async fn rest(span: Duration) {
    tokio::time::sleep(span).await;
}
