//! What one gateway learns of a provider reaches another one through a Redis or a Postgres: cool-downs,
//! degrade mode, sleep with its one probe, and what the provider says remains.

use tollgate::providers::Options;
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_sim::test_servers::{PostgresServer, RedisServer};

use crate::cache::NO_RETRY;
use crate::client::{ClientResponse, get_with, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::upstream::{Upstream, ok, reply};

/// Where both count.
enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Server {
    fn both() -> [Server; 2] {
        [
            Server::Redis(RedisServer::start(&[])),
            Server::Postgres(PostgresServer::start(&["fsync=off"])),
        ]
    }

    async fn ledger(&self) -> Ledger {
        let options = NetworkedOptions::default();
        let (ledger, why) = match self {
            Server::Redis(server) => {
                let address = RedisAddress::parse(&server.url()).unwrap();
                Ledger::redis_or_lost(&address, Clock::System, &options).await
            }
            Server::Postgres(server) => {
                let address = PostgresAddress::parse(&server.url("postgres")).unwrap();
                Ledger::postgres_or_lost(&address, Clock::System, &options).await
            }
        };
        assert_eq!(why, None);
        ledger
    }

    /// Two gateways with this provider, which has a file of this name.
    async fn gateways(&self, name: &str, upstream: &Upstream, rest: &str) -> [TestDaemon; 2] {
        let kind = match self {
            Server::Redis(_) => "redis",
            Server::Postgres(_) => "postgres",
        };
        let file = format!("shared-{name}-{kind}.yaml");
        let address = upstream.address;
        write_file(
            &file,
            &format!("name: x\nupstream: http://{address}\n{NO_RETRY}\n{rest}\n"),
        );
        let options = Options::default;
        [
            TestDaemon::start_on(self.ledger().await, from_file(&file), options(), None).await,
            TestDaemon::start_on(self.ledger().await, from_file(&file), options(), None).await,
        ]
    }
}

async fn call(daemon: &TestDaemon, path: &str) -> ClientResponse {
    get_with(daemon.gateway, path, &[("x-tollgate-timeout", "1ms")]).await
}

/// Calls until this status; another gateway may hear of it a little later.
async fn until(daemon: &TestDaemon, path: &str, status: u16) -> ClientResponse {
    within_timeout(async {
        loop {
            let response = call(daemon, path).await;
            if response.status == status {
                return response;
            }
        }
    })
    .await
}

/// Nothing of what it is asked now reaches the provider.
async fn assert_silent(daemon: &TestDaemon, upstream: &Upstream, status: u16) {
    let before = upstream.count();
    for number in 0..5 {
        let response = call(daemon, &format!("/x/silent/{number}")).await;
        assert_eq!(response.status, status, "{response:?}");
    }
    assert_eq!(upstream.count(), before);
}

/// S5: Retry-After at one cools down the other.
#[tokio::test]
async fn s5_a_cool_down_of_one_gateway_holds_for_the_other() {
    for server in Server::both() {
        let upstream = Upstream::start(|_, received| async move {
            match received.target.as_str() {
                "/limited" => reply(429, &[("retry-after", "60")], ""),
                _ => ok(),
            }
        })
        .await;
        let [one, two] = server
            .gateways("cool-down", &upstream, "limits: [1000/1s]")
            .await;
        assert_eq!(until(&two, "/x/a", 200).await.status, 200);
        assert_eq!(until(&one, "/x/limited", 429).await.status, 429);
        let refused = until(&two, "/x/a", 429).await;
        assert_eq!(refused.json()["reason"], "cooldown", "{refused:?}");
        assert_silent(&two, &upstream, 429).await;
    }
}

/// S6: little remaining at one is degrade mode at the other.
#[tokio::test]
async fn s6_degrade_mode_of_one_gateway_holds_for_the_other() {
    for server in Server::both() {
        let upstream = Upstream::start(|_, received| async move {
            let remaining = if received.target == "/low" {
                "100"
            } else {
                "2900"
            };
            let headers = [
                ("x-ratelimit-remaining", remaining),
                ("x-ratelimit-limit", "3000"),
                ("x-ratelimit-reset", "3600"),
            ];
            reply(200, &headers, "")
        })
        .await;
        let rest = "limits: [{limit: 3000, period: 1h}]\ndegrade: {below: 200, recover: 400}\ncache: {ttl: 10s}";
        let [one, two] = server.gateways("degrade", &upstream, rest).await;
        until(&two, "/x/before", 200).await;
        until(&one, "/x/low", 200).await;
        let missing = within_timeout(async {
            let mut number = 0;
            loop {
                number += 1;
                let response = call(&two, &format!("/x/{number}")).await;
                if response.status == 504 {
                    return response;
                }
            }
        })
        .await;
        assert_eq!(missing.json()["reason"], "degraded", "{missing:?}");
        assert_silent(&two, &upstream, 504).await;
    }
}

/// A5: failures at one let the other sleep too, and one probe of both looks whether the outage is over.
#[tokio::test]
async fn a5_both_gateways_sleep_and_send_one_probe() {
    for server in Server::both() {
        let upstream = Upstream::start(|_, received| async move {
            match received.target.as_str() {
                "/well" => ok(),
                _ => reply(503, &[], ""),
            }
        })
        .await;
        let rest = "limits: [1000/1s]\nhealth: {scope: provider, count: attempt, failure_threshold: 3, sleep_first: 6s, sleep_min: 6s}";
        let [one, two] = server.gateways("sleep", &upstream, rest).await;
        until(&two, "/x/well", 200).await;
        let before = upstream.count();
        within_timeout(async {
            while upstream.count() < before + 3 {
                call(&one, "/x/down").await;
            }
        })
        .await;
        // Both know of it before anybody waits.
        for daemon in [&one, &two] {
            until(daemon, "/x/well", 503).await;
        }
        let down = upstream.count();
        let waits = [("x-tollgate-timeout", "8s")];
        let calls = [&one, &two, &one, &two, &one, &two].map(|daemon| {
            let gateway = daemon.gateway;
            tokio::spawn(async move { get_with(gateway, "/x/down", &waits).await.status })
        });
        for call in calls {
            assert_ne!(within_timeout(call).await.unwrap(), 200);
        }
        // The second sleep is longer than they wait, also if a busy machine lets them begin seconds late.
        assert_eq!(upstream.count() - down, 1, "one probe of both");
    }
}

/// What a provider says remains at one is all that the other may use.
#[tokio::test]
async fn a_remaining_count_that_one_gateway_hears_of_holds_for_the_other() {
    for server in Server::both() {
        let upstream = Upstream::start(|_, received| async move {
            match received.target.as_str() {
                "/low" => {
                    let headers = [
                        ("x-ratelimit-remaining", "0"),
                        ("x-ratelimit-limit", "100000"),
                        ("x-ratelimit-reset", "50"),
                    ];
                    reply(200, &headers, "")
                }
                _ => ok(),
            }
        })
        .await;
        let rest = "limits: [{limit: 100000, period: 50s}]\ndegrade: off";
        let [one, two] = server.gateways("remaining", &upstream, rest).await;
        until(&two, "/x/before", 200).await;
        until(&one, "/x/low", 200).await;
        until(&two, "/x/a", 429).await;
        assert_silent(&two, &upstream, 429).await;
        // So many that the other one hears of it before it has made them, however late.
        let own = upstream.count();
        assert!(own < 100_000, "its own count would have sufficed");
    }
}
