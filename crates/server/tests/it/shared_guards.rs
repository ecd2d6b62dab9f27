//! Guards that several gateways count in one Redis, through every endpoint, and while Redis is away.

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::event::{Event, Notification};
use tollgate_config::{Flag, Sources};
use tollgate_server::{AlertOptions, Alerts, Grpc, GrpcOptions};
use tollgate_sim::test_servers::RedisServer;

use crate::client::{ClientResponse, get, within_timeout};
use crate::grpc_client::{GrpcClient, descriptor, request};
use crate::resp_client::{connect, serve};
use crate::test_daemon::{TestDaemon, write_file};
use crate::upstream::{Upstream, ok};

/// The classes of the document, refilled so slowly that no token comes back during a test.
const CLASSES: &str = "guards:
  ip:    { limit: 10, period: 1d, burst: 5, by: ip }
  user:  { limit: 20, period: 1d, burst: 10, by: 'header:x-user-id' }
  api:   { limit: 100, period: 1d, burst: 20, by: global }
  task:  { limit: 50, period: 1d, burst: 15, by: name }
";

/// A gateway whose guards count in this Redis.
async fn node(name: &str, redis: &RedisServer, config: &str, provider: &str) -> TestDaemon {
    let (file, provider_file) = (format!("{name}-tollgate.yaml"), format!("{name}-x.yaml"));
    let config = format!("guard_store: {}\nnodes: 2\n{config}", redis.url());
    write_file(&file, &config);
    write_file(&provider_file, provider);
    let sources = Sources {
        only_named: true,
        config: Some(file),
        providers: vec![provider_file],
        flags: vec![Flag {
            name: "--store",
            path: "store",
            value: "memory:".to_owned(),
        }],
        ..Sources::default()
    };
    TestDaemon::start(sources).await
}

const OTHER: &str = "name: x\ndomain: api.example.org\nlimits: [100/1h]\n";

async fn acquire(daemon: &TestDaemon, guard: &str, who: &str, cost: u32) -> ClientResponse {
    let body = json!({"guard": guard, "identifier": who, "cost": cost, "wait": false});
    let path = "/v1/acquire";
    daemon.request("POST", path, &body.to_string()).await
}

async fn tokens(daemon: &TestDaemon, guard: &str, who: &str) -> f64 {
    let path = format!("/v1/guards/{guard}?identifier={who}");
    let status = daemon.request("GET", &path, "").await.json();
    status["tokens_available"].as_f64().expect("a number")
}

fn hash(redis: &RedisServer, key: &str) -> String {
    redis.command(&["HGET", key, "tokens"]).unwrap()
}

/// C1, C2, C3, C11: every endpoint of two gateways counts in the same buckets, under the document's keys.
#[tokio::test]
async fn c1_c2_c3_two_gateways_share_their_buckets_through_every_endpoint() {
    let redis = RedisServer::start(&[]);
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let provider = format!(
        "name: x\nupstream: http://{}\ndomain: own.example.org\nguards: [ip, api]\nlimits: [1000/1s]\n",
        upstream.address
    );
    let one = node("shared-one", &redis, CLASSES, &provider).await;
    let two = node("shared-two", &redis, CLASSES, &provider).await;

    // Over HTTP, at either of them, and all or none.
    assert_eq!(acquire(&one, "ip", "203.0.113.7", 2).await.status, 200);
    assert_eq!(acquire(&two, "ip", "203.0.113.7", 3).await.status, 200);
    let denied = acquire(&one, "ip", "203.0.113.7", 1).await;
    assert_eq!(
        (denied.status, &denied.json()["reason"]),
        (429, &"limit".into())
    );
    assert_eq!(hash(&redis, "ratelimit:ip:203.0.113.7"), "$1\r\n0\r\n");
    let asks =
        json!([{"guard": "user", "identifier": "u"}, {"guard": "ip", "identifier": "203.0.113.7"}]);
    let both = json!({"asks": asks, "wait": false});
    let both = one.request("POST", "/v1/acquire", &both.to_string()).await;
    assert_eq!((both.status, &both.json()["guard"]), (429, &"ip".into()));
    assert_eq!(tokens(&two, "user", "u").await, 10.0, "nothing was taken");
    let soon = tokens(&two, "ip", "203.0.113.7").await;
    assert!((0.0..0.1).contains(&soon), "{soon}");

    // Forward-auth.
    let check = "/v1/check?guard=user&identifier=u";
    assert_eq!(one.request("GET", check, "").await.status, 200);
    assert_eq!(tokens(&two, "user", "u").await.floor(), 9.0);

    // The gateway's own callers.
    let response = get(one.gateway, "/x/a").await;
    assert_eq!(
        (response.status, response.header("x-ratelimit-remaining")),
        (200, "4")
    );
    assert_eq!(
        get(two.gateway, "/x/a")
            .await
            .header("x-ratelimit-remaining"),
        "3"
    );
    assert_eq!(hash(&redis, "ratelimit:ip:127.0.0.1"), "$1\r\n3\r\n");
    assert_eq!(hash(&redis, "ratelimit:api:global"), "$2\r\n18\r\n");

    // The Redis protocol: guards, and limits that come with the request.
    let (first, second) = (serve(&one, None).await, serve(&two, None).await);
    let (mut first, mut second) = (connect(&first).await, connect(&second).await);
    let granted = first
        .say("TG.ACQUIRE GUARD task transcribe COST 15 NOWAIT")
        .await;
    assert_eq!(granted.field("granted").integer(), 1, "{granted:?}");
    let status = second.say("TG.CAPACITY GUARD task transcribe").await;
    assert_eq!(status.field("remaining").integer(), 0);
    assert_eq!(hash(&redis, "ratelimit:task:transcribe"), "$1\r\n0\r\n");
    let throttle = "CL.THROTTLE user123 1 1 3600";
    assert_eq!(first.say(throttle).await.integers()[..3], [0, 2, 1]);
    assert_eq!(second.say(throttle).await.integers()[..3], [0, 2, 0]);
    let denied = first.say(throttle).await.integers();
    assert_eq!(denied[..3], [1, 2, 0]);
    assert!((3_590..=3_600).contains(&denied[3]), "{denied:?}");

    // gRPC.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grpc = Grpc::serve(&one.daemon, listener, GrpcOptions::default()).unwrap();
    let mut envoy = GrpcClient::connect(grpc.address()).await;
    let asked = request(
        "guards",
        vec![descriptor(&[("remote_address", "198.51.100.1")])],
    );
    let reply = envoy.ask(&asked).await.unwrap();
    assert_eq!(
        (reply.overall_code, reply.statuses[0].limit_remaining),
        (1, 4)
    );
    assert_eq!(tokens(&two, "ip", "198.51.100.1").await.floor(), 4.0);
}

/// C9: limiting is switched off and to shadow at run time, and a guard in shadow rejects nothing.
#[tokio::test]
async fn c9_limiting_is_switched_at_run_time_with_redis_too() {
    let redis = RedisServer::start(&[]);
    let node = node("shared-modes", &redis, CLASSES, OTHER).await;
    let set = |mode: &str| json!({ "mode": mode }).to_string();
    assert_eq!(acquire(&node, "ip", "a", 5).await.status, 200);
    assert_eq!(acquire(&node, "ip", "a", 1).await.status, 429);
    for mode in ["off", "shadow"] {
        node.request("POST", "/v1/limiting", &set(mode)).await;
        assert_eq!(acquire(&node, "ip", "a", 1).await.status, 200, "{mode}");
    }
    let guards = node.request("GET", "/v1/guards", "").await.json();
    let shadow = &guards["guards"][0]["shadow_denied"];
    assert_eq!((&guards["store"], shadow), (&json!("up"), &json!(1)));
    node.request("POST", "/v1/limiting", &set("on")).await;
    assert_eq!(acquire(&node, "ip", "a", 1).await.status, 429);
}

/// C1: what was taken is counted after a script cache was emptied (NOSCRIPT) too.
#[tokio::test]
async fn c1_a_flushed_script_is_loaded_again() {
    let redis = RedisServer::start(&[]);
    let node = node("shared-noscript", &redis, CLASSES, OTHER).await;
    assert_eq!(acquire(&node, "ip", "a", 1).await.status, 200);
    redis.command(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(acquire(&node, "ip", "a", 1).await.status, 200);
    assert_eq!(hash(&redis, "ratelimit:ip:a"), "$1\r\n3\r\n");
}

async fn guards_until(node: &TestDaemon, store: &str) -> Value {
    within_timeout(async {
        loop {
            // Whoever asks finds out.
            let _decided = acquire(node, "open", "poll", 1).await;
            let guards = node.request("GET", "/v1/guards", "").await.json();
            if guards["store"] == store {
                return guards;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

async fn metric(node: &TestDaemon, name: &str) -> String {
    let text = node.request("GET", "/metrics", "").await.body;
    let mut lines = text.lines();
    let line = lines
        .find(|line| line.starts_with(name))
        .unwrap_or_default();
    line.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// C9: Redis is killed: each guard does what its file says, everybody can see it, and it returns by itself.
#[tokio::test]
async fn c9_without_redis_guards_degrade_as_configured_and_return() {
    // What survives a kill: the kernel has it before anybody hears of it. With `always` each decision would wait for
    // the disk, beside its deadline of half a second.
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "no"]);
    let config = "guards:
  share:  { limit: 10, period: 1d, burst: 6, by: ip }
  closed: { limit: 10, period: 1d, burst: 6, by: name, on_store_loss: closed }
  open:   { limit: 10, period: 1d, burst: 6, by: name, on_store_loss: open }
";
    let node = node("shared-loss", &redis, config, OTHER).await;
    let alerts = Alerts::start(&node.daemon, AlertOptions::default()).await;
    assert_eq!(acquire(&node, "share", "a", 2).await.status, 200);
    assert_eq!(acquire(&node, "closed", "q", 1).await.status, 200);
    assert_eq!(metric(&node, "tollgate_store_up").await, "1");
    redis.kill();
    guards_until(&node, "lost").await;

    // Half of the burst for each of two nodes, and two of it were used before.
    assert_eq!(acquire(&node, "share", "a", 1).await.status, 200);
    assert_eq!(acquire(&node, "share", "a", 1).await.status, 429);
    assert_eq!(acquire(&node, "share", "b", 3).await.status, 200);
    let closed = acquire(&node, "closed", "q", 1).await;
    let body = closed.json();
    assert_eq!(
        (closed.status, &body["reason"]),
        (429, &"store_lost".into()),
        "{body}"
    );
    let opened = metric(&node, "tollgate_fail_open_total").await;
    assert_eq!(acquire(&node, "open", "q", 100).await.status, 200);
    let after = metric(&node, "tollgate_fail_open_total").await;
    assert_eq!(
        after.parse::<u64>().unwrap(),
        opened.parse::<u64>().unwrap() + 1
    );
    assert_eq!(metric(&node, "tollgate_store_up").await, "0");
    let problems = node.daemon.problems().join("\n");
    assert!(
        problems.contains("the store of guards is lost: Redis at"),
        "{problems}"
    );
    let mut events = node.daemon.registry().events().subscribe_rare();
    alerts.evaluate().await;
    let mut raised = Vec::new();
    while let Some(Notification::Event(event)) = events.try_next() {
        if let Event::Alert {
            alert, is_firing, ..
        } = &*event
        {
            raised.push((alert.to_string(), *is_firing));
        }
    }
    let expected = "Critical: the store of guards cannot be reached".to_owned();
    assert_eq!(raised, [(expected, true)]);

    redis.restart();
    guards_until(&node, "up").await;
    assert_eq!(metric(&node, "tollgate_store_up").await, "1");
    // What Redis had is what counts again.
    assert_eq!(tokens(&node, "closed", "q").await.floor(), 5.0);
    assert_eq!(acquire(&node, "closed", "q", 5).await.status, 200);
    assert_eq!(acquire(&node, "closed", "q", 1).await.status, 429);
}

/// C9: a server that stops responding costs one caller a deadline, and nobody else anything.
#[tokio::test]
async fn c9_a_server_that_hangs_is_not_waited_for_twice() {
    let redis = RedisServer::start(&[]);
    let node = node("shared-pause", &redis, CLASSES, OTHER).await;
    assert_eq!(acquire(&node, "ip", "a", 1).await.status, 200);
    redis.command(&["CLIENT", "PAUSE", "12000", "ALL"]).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the slowness of a server")]
    let began = tokio::time::Instant::now();
    for number in 0..20 {
        let who = format!("u{number}");
        assert_eq!(acquire(&node, "user", &who, 1).await.status, 200);
    }
    let took = began.elapsed();
    // One deadline is half a second; twenty of them are ten.
    assert!(took.as_secs() < 7, "twenty requests took {took:?}");
    within_timeout(async {
        while node.request("GET", "/v1/guards", "").await.json()["store"] != "up" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(tokens(&node, "ip", "a").await.floor(), 4.0);
}

/// A master that becomes a replica takes no writes: guards are lost until it is a master again.
#[tokio::test]
async fn c9_a_demoted_master_counts_as_lost() {
    let (redis, other) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let config =
        "guards:\n  open: { limit: 10, period: 1d, burst: 6, by: name, on_store_loss: open }\n";
    let node = node("shared-readonly", &redis, config, OTHER).await;
    assert_eq!(acquire(&node, "open", "a", 1).await.status, 200);
    let port = other.address().port().to_string();
    redis.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    within_timeout(async {
        while node.request("GET", "/v1/guards", "").await.json()["store"] != "lost" {
            assert_eq!(acquire(&node, "open", "a", 1).await.status, 200);
        }
    })
    .await;
    redis.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    guards_until(&node, "up").await;
    assert_eq!(acquire(&node, "open", "a", 1).await.status, 200);
}

/// C3: on a node of a Redis Cluster all keys share a hash tag, so that they are decided as one.
#[tokio::test]
async fn c3_on_a_cluster_the_prefix_is_a_hash_tag() {
    let redis = RedisServer::start(&["--cluster-enabled", "yes"]);
    redis
        .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    within_timeout(async {
        while !redis
            .command(&["CLUSTER", "INFO"])
            .unwrap()
            .contains("cluster_state:ok")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let node = node("shared-cluster", &redis, CLASSES, OTHER).await;
    let asks =
        json!([{"guard": "user", "identifier": "u"}, {"guard": "ip", "identifier": "203.0.113.7"}]);
    let both = json!({"asks": asks, "wait": false}).to_string();
    let both = node.request("POST", "/v1/acquire", &both).await;
    assert_eq!(both.status, 200, "{both:?}");
    assert_eq!(hash(&redis, "{ratelimit}:ip:203.0.113.7"), "$1\r\n4\r\n");
}

/// What was written to see whether a lost server takes writes again had no hash tag: a node of a
/// Cluster that has the slot of the buckets but not the one of that key stayed lost.
#[tokio::test]
async fn c3_a_node_of_a_cluster_with_one_slot_comes_back() {
    let options = [
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ];
    let redis = RedisServer::start(&options);
    let slot = redis
        .command(&["CLUSTER", "KEYSLOT", "{ratelimit}"])
        .unwrap();
    let slot = slot.trim_matches([':', '\r', '\n']);
    redis.command(&["CLUSTER", "ADDSLOTS", slot]).unwrap();
    within_timeout(async {
        while !redis
            .command(&["CLUSTER", "INFO"])
            .unwrap()
            .contains("cluster_state:ok")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let node = node("shared-slot", &redis, CLASSES, OTHER).await;
    assert_eq!(acquire(&node, "user", "u", 1).await.status, 200);
    redis.command(&["CLIENT", "PAUSE", "8000", "ALL"]).unwrap();
    within_timeout(async {
        while node.request("GET", "/v1/guards", "").await.json()["store"] != "lost" {
            acquire(&node, "user", "u", 1).await;
        }
    })
    .await;
    within_timeout(async {
        while node.request("GET", "/v1/guards", "").await.json()["store"] != "up" {
            acquire(&node, "user", "u", 0).await;
        }
    })
    .await;
}
