//! The two sides: twin providers, the gateway in front of one of them, and a client group for each.
//!
//! Promises: both providers are identical and have the same outages; both client groups send the
//! same calls.
//!
//! Never: gives the gateway's side any information that the other side does not get.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tollgate::ProviderRegistry;
use tollgate::event::{Event, Notification, Subscription};
use tollgate::providers::Options;
use tollgate_config::Loaded;
use tollgate_core::health::HealthState;
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Admin, Gateway, GatewayOptions, ListenerKind};
use tollgate_sim::http::{Settings, SimProvider, Style};
use tollgate_sim::latency::Latency;

use super::clients::ClientGroup;
use super::outages::Outages;
use super::page;
use super::score::{Side, score};
use super::screen::DemoAddresses;
use super::{LIMIT, RunLength};

/// The address in the README; another port if this one is in use.
const DEFAULT_ADDRESS: &str = "127.0.0.1:4290";

/// Calls of a user burst.
const BURST: u64 = 10;

/// The most health states that the screen shows: those of three outages.
const STATES_MAX: usize = 9;

/// See the module.
pub(super) struct Twins {
    providers: [SimProvider; 2],
    clients: [Arc<ClientGroup>; 2],
    client_tasks: [JoinHandle<()>; 2],
    registry: ProviderRegistry,
    gateway: Gateway,
    admin: Admin,
    addresses: DemoAddresses,
    outages: Outages,
    /// The history of health states, and the events that it is made of: a state may last less than a frame.
    states: Mutex<(Vec<HealthState>, Subscription)>,
}

/// The governed side at this moment.
#[derive(Clone, Debug)]
pub(super) struct GovernedStatus {
    pub(super) waiting: usize,
    pub(super) states: Vec<HealthState>,
    pub(super) outage: (u64, u64),
    pub(super) halved: bool,
}

impl Twins {
    pub(super) async fn start(length: RunLength) -> anyhow::Result<Twins> {
        let outages = Outages::planned(length.planned, wall());
        let providers = [provider(&outages).await?, provider(&outages).await?];
        let direct_url = providers[0].url();
        let (sources, loaded) = page::load(governed_file(&providers[1]), &direct_url)?;
        let registry = build_registry(&loaded)?;
        let transitions = registry.events().subscribe_rare();
        let admin = page::serve(&registry, sources, loaded).await?;
        let options = GatewayOptions {
            grace: Span::ZERO,
            ..GatewayOptions::default()
        };
        let mut gateway = Gateway::new(registry.clone(), options);
        let gateway_address = open_gateway(&mut gateway).await?;
        let clients = [
            Arc::new(ClientGroup::direct(
                providers[0].address(),
                Some(registry.clone()),
            )),
            Arc::new(ClientGroup::governed(gateway_address)),
        ];
        let client_tasks = clients
            .each_ref()
            .map(|group| tokio::spawn(group.clone().run(length.most, outages.clone())));
        Ok(Twins {
            providers,
            clients,
            client_tasks,
            registry,
            gateway,
            addresses: DemoAddresses {
                gateway: gateway_address,
                page: admin.address(),
            },
            admin,
            outages,
            states: Mutex::new((vec![HealthState::Normal], transitions)),
        })
    }

    /// Where the gateway and the page are.
    pub(super) fn addresses(&self) -> DemoAddresses {
        self.addresses
    }

    /// Both sides, by the providers' logs.
    pub(super) fn sides(&self) -> [Side; 2] {
        [0, 1].map(|side| score(&self.providers[side], &self.clients[side], &self.outages))
    }

    /// The state that only Tollgate knows.
    pub(super) fn now(&self) -> GovernedStatus {
        let (states, transitions) = &mut *self.states.lock();
        while let Some(notification) = transitions.try_next() {
            if let Notification::Event(event) = notification
                && let Event::Transition { provider, to, .. } = &*event
                && &**provider == "demo"
            {
                states.push(*to);
            }
        }
        let live = self.registry.named("demo");
        let waiting = live.map_or(0, |live| live.waiting());
        let first = states.len().saturating_sub(STATES_MAX);
        states.drain(..first);
        GovernedStatus {
            waiting,
            states: states.clone(),
            outage: self.outages.latest(),
            halved: self.outages.is_halved(),
        }
    }

    /// Both providers go down.
    pub(super) fn outage(&self) -> anyhow::Result<()> {
        let (from, to) = self.outages.add(wall());
        self.inject(&format!("outage {from}s..{to}s 503"))
    }

    /// Both providers halve their limit, and announce it by header only.
    pub(super) fn halve(&self) -> anyhow::Result<()> {
        self.outages.halve(wall());
        self.inject("limit 0 halve now")
    }

    fn inject(&self, fault: &str) -> anyhow::Result<()> {
        for provider in &self.providers {
            provider.fault(fault)?;
        }
        Ok(())
    }

    /// Both sides get a burst of clicks.
    pub(super) fn burst(&mut self) {
        for group in &self.clients {
            group.clone().click(BURST);
        }
    }

    pub(super) async fn end(self) {
        for task in &self.client_tasks {
            task.abort();
        }
        self.gateway.drain().await;
        self.admin.drain().await;
    }
}

fn wall() -> Micros {
    Micros(Clock::System.now().wall.0)
}

/// Listens on the default port if it is free.
async fn open_gateway(gateway: &mut Gateway) -> anyhow::Result<SocketAddr> {
    let usual: SocketAddr = DEFAULT_ADDRESS.parse().context("an address")?;
    if let Ok(listening) = gateway.listen(usual, ListenerKind::All).await {
        return Ok(listening.address);
    }
    let free = SocketAddr::new(usual.ip(), 0);
    let listening = gateway.listen(free, ListenerKind::All).await;
    Ok(listening.context("no free port")?.address)
}

/// A strict provider with a round trip of some 3 ms: with a window of 1 s a slower one could not be
/// used to 99 %. One wait of 2 ms, because each wait is rounded up to the timer's next millisecond:
/// three waits of 1 ms may take 6 ms.
async fn provider(outages: &Outages) -> anyhow::Result<SimProvider> {
    let ms = Span::from_millis(2);
    let (from, to) = outages.latest();
    let settings = Settings::with_rules(&format!("sliding {LIMIT}/1s"))?
        .style(Style::XRateLimit)
        .latency(Latency::constant(Span::ZERO, ms, Span::ZERO))
        .fault(&format!("outage {from}s..{to}s 503"))?;
    Ok(SimProvider::start(settings).await?)
}

fn governed_file(provider: &SimProvider) -> String {
    format!(
        "name: demo\nupstream: {}\nlimits: [{LIMIT}/1s]\nqueue: {{max: 100000, timeout: 10m}}\n\
         retry: {{retries: {{high: 100, normal: 100, low: 100}}, base: 100ms, max: 1s}}\n\
         health: {{sleep_first: 1s, sleep_min: 1s, failure_threshold: 2}}\n",
        provider.url()
    )
}

fn build_registry(loaded: &Loaded) -> anyhow::Result<ProviderRegistry> {
    let providers = loaded.config.all_providers();
    let providers = providers.map(|provider| (**provider).clone());
    Ok(ProviderRegistry::build(
        providers.collect(),
        Ledger::memory(Clock::System),
        Options::default(),
    )?)
}
