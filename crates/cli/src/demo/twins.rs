//! The two sides: twin providers, the gateway before one of them, and a crowd at each.
//!
//! Promises: both providers are alike and meet the same trouble; both crowds ask the same.
//!
//! Never: tells the gateway's side anything that the other is not told.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tollgate::Shop;
use tollgate::shop::Options;
use tollgate_config::{Draft, World};
use tollgate_core::health::State;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Door, Gateway, GatewayOptions};
use tollgate_sim::http::{Settings, SimProvider, Style};
use tollgate_sim::latency::Latency;

use super::crowd::Crowd;
use super::score::{Side, score};
use super::trouble::Trouble;
use super::{LIMIT, Length};

/// Where the README says it listens; another port if this one is taken.
const USUAL: &str = "127.0.0.1:4290";

/// Calls of a user burst.
const BURST: u64 = 10;

/// States of health that are remembered for the screen: three outages' worth.
const STATES_KEPT: usize = 9;

/// See the module.
pub(super) struct Twins {
    providers: [SimProvider; 2],
    crowds: [Arc<Crowd>; 2],
    asking: [JoinHandle<()>; 2],
    shop: Shop,
    gateway: Gateway,
    door: SocketAddr,
    trouble: Trouble,
    /// Health as it went, repeats left out.
    states: Mutex<Vec<State>>,
}

/// The governed side at this moment.
#[derive(Clone, Debug)]
pub(super) struct Now {
    pub(super) waiting: usize,
    pub(super) states: Vec<State>,
    pub(super) outage: (u64, u64),
    pub(super) halved: bool,
}

impl Twins {
    pub(super) async fn start(length: Length) -> anyhow::Result<Twins> {
        let trouble = Trouble::within(length.planned, wall());
        let providers = [provider(&trouble).await?, provider(&trouble).await?];
        let shop = shop(&providers[1])?;
        let options = GatewayOptions {
            grace: Span::ZERO,
            ..GatewayOptions::default()
        };
        let mut gateway = Gateway::new(shop.clone(), options);
        let door = open(&mut gateway).await?;
        let crowds = [
            Arc::new(Crowd::direct(providers[0].address())),
            Arc::new(Crowd::governed(door)),
        ];
        let asking = crowds
            .each_ref()
            .map(|crowd| tokio::spawn(crowd.clone().ask(length.most, trouble.clone())));
        Ok(Twins {
            providers,
            crowds,
            asking,
            shop,
            gateway,
            door,
            trouble,
            states: Mutex::new(Vec::new()),
        })
    }

    /// Where the gateway listens.
    pub(super) fn door(&self) -> SocketAddr {
        self.door
    }

    /// Both sides, by the providers' logs.
    pub(super) fn sides(&self) -> [Side; 2] {
        [0, 1].map(|side| score(&self.providers[side], &self.crowds[side], &self.trouble))
    }

    /// What only Tollgate can say.
    pub(super) fn now(&self) -> Now {
        let mut states = self.states.lock();
        let mut waiting = 0;
        if let Ok(live) = self.shop.named("demo") {
            waiting = live.waiting();
            let state = live.status().state;
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
        let first = states.len().saturating_sub(STATES_KEPT);
        states.drain(..first);
        Now {
            waiting,
            states: states.clone(),
            outage: self.trouble.latest(),
            halved: self.trouble.is_halved(),
        }
    }

    /// Both providers go down.
    pub(super) fn outage(&self) -> anyhow::Result<()> {
        let (from, to) = self.trouble.add(wall());
        self.strike(&format!("outage {from}s..{to}s 503"))
    }

    /// Both providers halve their limit, and tell it by header only.
    pub(super) fn halve(&self) -> anyhow::Result<()> {
        self.trouble.halve(wall());
        self.strike("limit 0 halve now")
    }

    fn strike(&self, fault: &str) -> anyhow::Result<()> {
        for provider in &self.providers {
            provider.fault(fault)?;
        }
        Ok(())
    }

    /// Both sides get clicks at once.
    pub(super) fn burst(&mut self) {
        for crowd in &self.crowds {
            crowd.clone().click(BURST);
        }
    }

    pub(super) async fn end(self) {
        for asking in &self.asking {
            asking.abort();
        }
        self.gateway.drain().await;
    }
}

fn wall() -> Micros {
    Micros(Clock::System.now().wall.0)
}

/// The usual port if it is free.
async fn open(gateway: &mut Gateway) -> anyhow::Result<SocketAddr> {
    let usual: SocketAddr = USUAL.parse().context("an address")?;
    if let Ok(listening) = gateway.listen(usual, Door::All).await {
        return Ok(listening.address);
    }
    let free = SocketAddr::new(usual.ip(), 0);
    let listening = gateway.listen(free, Door::All).await;
    Ok(listening.context("no free port")?.address)
}

/// A strict provider with a round trip of some 3 ms: on a window of 1 s a slower one could not be
/// used to 99 %. One wait of 2 ms, because each wait is rounded up to the timer's next millisecond:
/// three of 1 ms may be 6.
async fn provider(trouble: &Trouble) -> anyhow::Result<SimProvider> {
    let ms = Span::from_millis(2);
    let (from, to) = trouble.latest();
    let settings = Settings::with_rules(&format!("sliding {LIMIT}/1s"))?
        .style(Style::XRateLimit)
        .latency(Latency::constant(Span::ZERO, ms, Span::ZERO))
        .fault(&format!("outage {from}s..{to}s 503"))?;
    Ok(SimProvider::start(settings).await?)
}

fn shop(provider: &SimProvider) -> anyhow::Result<Shop> {
    let file = format!(
        "name: demo\nupstream: {}\nlimits: [{LIMIT}/1s]\nqueue: {{max: 100000, timeout: 10m}}\n\
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
