//! C9: the store of many hosts is killed and comes back while a gateway runs: what callers get meanwhile, what is told, and
//! that it returns by itself.

use tollgate::event::{Event, Notification, Subscription};
use tollgate::providers::Options;
use tollgate_core::time::Span;
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_sim::http::{Settings, SimProvider};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::client::{ClientResponse, get, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};

const NODE_LEASE: Span = Span::from_millis(1_500);

/// What the provider enforces, and what the gateway knows of it.
const LIMIT: &str = "4/400ms";

/// Where it counts.
enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Server {
    fn redis() -> Server {
        Server::Redis(RedisServer::start(&[]))
    }

    fn postgres() -> Server {
        Server::Postgres(PostgresServer::start(&["fsync=off"]))
    }

    async fn ledger(&self, options: &NetworkedOptions) -> Ledger {
        let (ledger, why) = match self {
            Server::Redis(server) => {
                let address = RedisAddress::parse(&server.url()).expect("an address");
                Ledger::redis_or_lost(&address, Clock::System, options).await
            }
            Server::Postgres(server) => {
                let url = server.url("postgres");
                let address = PostgresAddress::parse(&url).expect("an address");
                Ledger::postgres_or_lost(&address, Clock::System, options).await
            }
        };
        assert_eq!(why, None);
        ledger
    }

    fn kill(&mut self) {
        match self {
            Server::Redis(server) => server.kill(),
            Server::Postgres(server) => server.kill(),
        }
    }

    fn restart(&mut self) {
        match self {
            Server::Redis(server) => server.restart(),
            Server::Postgres(server) => server.restart(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Server::Redis(_) => "Redis",
            Server::Postgres(_) => "Postgres",
        }
    }
}

struct Node {
    daemon: TestDaemon,
    provider: SimProvider,
    store: Server,
    events: Subscription,
}

impl Node {
    async fn start(store: Server, policy: &str) -> Node {
        let rules = format!("sliding {LIMIT}");
        let settings = Settings::with_rules(&rules).expect("rules");
        let provider = SimProvider::start(settings).await.expect("a free port");
        let file = format!("networked-loss-{policy}-{}.yaml", store.name());
        let text = format!(
            "name: x\nupstream: http://{}\nlimits: [{LIMIT}]\non_store_loss: {policy}\nlate_arrival: 100ms\n\
             retry: {{retries: {{high: 0, normal: 0, low: 0}}}}\n",
            provider.address()
        );
        write_file(&file, &text);
        let of_node = NetworkedOptions {
            node_lease: NODE_LEASE,
            ..NetworkedOptions::default()
        };
        let ledger = store.ledger(&of_node).await;
        let options = Options {
            nodes: 2,
            node_lease: NODE_LEASE,
            ..Options::default()
        };
        let daemon = TestDaemon::start_on(ledger, from_file(&file), options, None).await;
        let events = daemon.daemon.registry().events().subscribe();
        Node {
            daemon,
            provider,
            store,
            events,
        }
    }

    async fn call(&self, timeout: &str) -> ClientResponse {
        get_with(
            self.daemon.gateway,
            "/x/a",
            &[("x-tollgate-timeout", timeout)],
        )
        .await
    }

    async fn call_until(&self, status: u16) -> ClientResponse {
        within_timeout(async {
            loop {
                let response = self.call("1ms").await;
                if response.status == status {
                    return response;
                }
            }
        })
        .await
    }

    /// What `tollgate status` and the page show of the store.
    async fn assert_status_says_lost(&self) {
        let config = self.daemon.request("GET", "/v1/config", "").await.json();
        assert_eq!(config["store"]["state"], "lost", "{config}");
        let why = config["store"].to_string();
        assert!(why.contains(self.store.name()), "{why}");
        let provider = self
            .daemon
            .request("GET", "/v1/providers/x", "")
            .await
            .json();
        assert_ne!(provider["store"], "up", "{provider}");
    }

    async fn ready(&self) -> u16 {
        get(self.daemon.gateway, "/ready").await.status
    }

    async fn fail_open_total(&self) -> f64 {
        let text = self.daemon.request("GET", "/metrics", "").await.body;
        let lines = text.lines();
        let values = lines.filter_map(|line| line.strip_prefix("tollgate_fail_open_total"));
        let values = values.filter_map(|rest| rest.split_whitespace().last());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    }

    /// Skips what was told until this.
    async fn told(&mut self, is_it: impl Fn(&Event) -> bool) {
        within_timeout(async {
            loop {
                match self.events.next().await {
                    Some(Notification::Event(event)) if is_it(&event) => return,
                    Some(_) => {}
                    None => panic!("the events ended"),
                }
            }
        })
        .await;
    }

    /// The store is there again, and by itself.
    async fn comes_back(&mut self) {
        self.store.restart();
        self.told(|event| matches!(event, Event::StoreBack { .. }))
            .await;
        within_timeout(async { while self.ready().await != 200 {} }).await;
        // What was counted is gone with the server: closed for one window, and then as before.
        for _ in 0..8 {
            assert_eq!(self.call("10s").await.status, 200);
        }
    }

    async fn judge(self) -> usize {
        self.provider.stop().await.violations
    }
}

fn assert_store_lost(response: &ClientResponse) {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.json()["error"], "StoreLost", "{response:?}");
}

#[tokio::test]
async fn c9_closed_rejects_while_redis_is_gone_and_returns() {
    closed_rejects_while_the_store_is_gone_and_returns(Server::redis()).await;
}

#[tokio::test]
async fn c9_closed_rejects_while_postgres_is_gone_and_returns() {
    closed_rejects_while_the_store_is_gone_and_returns(Server::postgres()).await;
}

async fn closed_rejects_while_the_store_is_gone_and_returns(store: Server) {
    let mut node = Node::start(store, "closed").await;
    for _ in 0..4 {
        assert_eq!(node.call("10s").await.status, 200);
    }
    node.store.kill();
    assert_store_lost(&node.call("1h").await);
    node.told(|event| matches!(event, Event::StoreLost { .. }))
        .await;
    for _ in 0..3 {
        let response = node.call("1h").await;
        assert_store_lost(&response);
        assert_eq!(response.header("retry-after"), "1");
    }
    assert_eq!(node.ready().await, 503);
    node.assert_status_says_lost().await;
    assert_eq!(node.fail_open_total().await, 0.0);
    node.comes_back().await;
    assert_eq!(node.judge().await, 0);
}

#[tokio::test]
async fn c9_open_lets_pass_while_redis_is_gone_and_counts_it() {
    open_lets_pass_while_the_store_is_gone_and_counts_it(Server::redis()).await;
}

#[tokio::test]
async fn c9_open_lets_pass_while_postgres_is_gone_and_counts_it() {
    open_lets_pass_while_the_store_is_gone_and_counts_it(Server::postgres()).await;
}

async fn open_lets_pass_while_the_store_is_gone_and_counts_it(store: Server) {
    let mut node = Node::start(store, "open").await;
    assert_eq!(node.call("10s").await.status, 200);
    node.store.kill();
    node.call_until(200).await;
    node.told(|event| matches!(event, Event::StoreLost { .. }))
        .await;
    let before = node.fail_open_total().await;
    assert!(before >= 1.0);
    // More than fit: the limit does not hold, and the provider says so.
    let (mut calls, mut limited) = (0, 0);
    within_timeout(async {
        while calls < 7 || limited == 0 {
            calls += 1;
            limited += u32::from(node.call("10s").await.status == 429);
        }
    })
    .await;
    assert!(node.fail_open_total().await >= before + 4.0);
    assert_eq!(node.ready().await, 200);
    node.comes_back().await;
}

/// Exact: it waits until what was counted together has left the window, has half of the limit (two nodes), and waits again when
/// the store is back.
#[tokio::test]
async fn c9_local_share_waits_and_keeps_to_its_part_while_redis_is_gone() {
    local_share_waits_and_keeps_to_its_part_while_the_store_is_gone(Server::redis()).await;
}

#[tokio::test]
async fn c9_local_share_waits_and_keeps_to_its_part_while_postgres_is_gone() {
    local_share_waits_and_keeps_to_its_part_while_the_store_is_gone(Server::postgres()).await;
}

async fn local_share_waits_and_keeps_to_its_part_while_the_store_is_gone(store: Server) {
    let mut node = Node::start(store, "local-share").await;
    for _ in 0..4 {
        assert_eq!(node.call("10s").await.status, 200);
    }
    node.store.kill();
    let closed = node.call_until(503).await;
    assert_store_lost(&closed);
    let left = closed.json()["retryIn"].as_u64();
    assert!(left.is_some_and(|left| left <= 2_001), "{closed:?}");
    node.told(|event| matches!(event, Event::StoreLost { .. }))
        .await;
    node.call_until(200).await;
    node.call_until(429).await;
    for _ in 0..4 {
        assert_eq!(node.call("10s").await.status, 200);
    }
    node.comes_back().await;
    assert_eq!(node.fail_open_total().await, 0.0);
    assert_eq!(node.judge().await, 0);
}
