//! A gateway on a free port, with provider files as texts.

use std::net::SocketAddr;

use tollgate::ProviderRegistry;
use tollgate::providers::Options;
use tollgate_config::{Environment, Provider, ProviderFile};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Gateway, GatewayOptions, ListenerKind};

/// A running gateway.
pub(crate) struct TestGateway {
    pub(crate) address: SocketAddr,
    pub(crate) registry: ProviderRegistry,
    pub(crate) gateway: Gateway,
}

impl TestGateway {
    /// Provider files as texts.
    pub(crate) async fn start(files: &[String]) -> TestGateway {
        TestGateway::start_with(files, Options::default()).await
    }

    pub(crate) async fn start_with(files: &[String], options: Options) -> TestGateway {
        TestGateway::start_on_clock(Clock::System, files, options).await
    }

    /// The same with another clock, for tests that cover hours.
    pub(crate) async fn start_on_clock(
        clock: Clock,
        files: &[String],
        options: Options,
    ) -> TestGateway {
        TestGateway::start_on_ledger(Ledger::memory(clock), files, options).await
    }

    /// The same over another ledger.
    pub(crate) async fn start_on_ledger(
        ledger: Ledger,
        files: &[String],
        options: Options,
    ) -> TestGateway {
        TestGateway::build(ledger, files, options, GatewayOptions::default()).await
    }

    /// Providers that a program has built itself, without the checks of a file.
    pub(crate) async fn start_providers(providers: Vec<Provider>) -> TestGateway {
        let (ledger, gateway) = (Ledger::memory(Clock::System), GatewayOptions::default());
        TestGateway::build_providers(ledger, providers, Options::default(), gateway).await
    }

    /// A gateway with options of its own.
    pub(crate) async fn start_with_gateway(
        files: &[String],
        gateway: GatewayOptions,
    ) -> TestGateway {
        let ledger = Ledger::memory(Clock::System);
        TestGateway::build(ledger, files, Options::default(), gateway).await
    }

    async fn build(
        ledger: Ledger,
        files: &[String],
        options: Options,
        gateway: GatewayOptions,
    ) -> TestGateway {
        TestGateway::build_providers(ledger, providers(files), options, gateway).await
    }

    async fn build_providers(
        ledger: Ledger,
        providers: Vec<Provider>,
        options: Options,
        gateway: GatewayOptions,
    ) -> TestGateway {
        crate::log::capture();
        let registry = ProviderRegistry::build(providers, ledger, options).expect("sane providers");
        let mut gateway = Gateway::new(registry.clone(), gateway);
        let free = "127.0.0.1:0".parse().unwrap();
        let address = gateway
            .listen(free, ListenerKind::All)
            .await
            .expect("a port")
            .address;
        TestGateway {
            address,
            registry,
            gateway,
        }
    }
}

pub(crate) fn providers(files: &[String]) -> Vec<Provider> {
    let read = |text: &String| {
        let draft = ProviderFile::read("x.yaml", text).expect("YAML");
        let checked = draft.check(&Environment::empty());
        checked
            .provider
            .unwrap_or_else(|| panic!("{:?}", checked.problems))
    };
    files.iter().map(read).collect()
}

/// A provider file `x` with its upstream on loopback.
pub(crate) fn file(upstream: SocketAddr, rest: &str) -> String {
    format!("name: x\nupstream: http://{upstream}\n{rest}\n")
}
