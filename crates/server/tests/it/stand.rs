//! A gateway on a free port, with provider files as texts.

use std::net::SocketAddr;

use tollgate::Shop;
use tollgate::shop::Options;
use tollgate_config::{Draft, Provider, World};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Door, Gateway, GatewayOptions};

/// A running gateway.
pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
    pub(crate) shop: Shop,
    pub(crate) gateway: Gateway,
}

impl Stand {
    /// Provider files as texts.
    pub(crate) async fn open(files: &[String]) -> Stand {
        Stand::with(files, Options::default()).await
    }

    pub(crate) async fn with(files: &[String], options: Options) -> Stand {
        Stand::on(Clock::System, files, options).await
    }

    /// The same by another clock, for what takes hours.
    pub(crate) async fn on(clock: Clock, files: &[String], options: Options) -> Stand {
        Stand::over(Ledger::memory(clock), files, options).await
    }

    /// The same over another ledger.
    pub(crate) async fn over(ledger: Ledger, files: &[String], options: Options) -> Stand {
        Stand::built(ledger, files, options, GatewayOptions::default()).await
    }

    /// A gateway with options of its own.
    pub(crate) async fn with_gateway(files: &[String], gateway: GatewayOptions) -> Stand {
        let ledger = Ledger::memory(Clock::System);
        Stand::built(ledger, files, Options::default(), gateway).await
    }

    async fn built(
        ledger: Ledger,
        files: &[String],
        options: Options,
        gateway: GatewayOptions,
    ) -> Stand {
        crate::log::keep();
        let shop = Shop::build(providers(files), ledger, options).expect("sane providers");
        let mut gateway = Gateway::new(shop.clone(), gateway);
        let free = "127.0.0.1:0".parse().unwrap();
        let address = gateway
            .listen(free, Door::All)
            .await
            .expect("a port")
            .address;
        Stand {
            address,
            shop,
            gateway,
        }
    }
}

pub(crate) fn providers(files: &[String]) -> Vec<Provider> {
    let read = |text: &String| {
        let draft = Draft::read("x.yaml", text).expect("YAML");
        let checked = draft.check(&World::empty());
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
