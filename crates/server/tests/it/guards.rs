//! Guards over HTTP: status, the gateway's own callers, and the decision calls of
//! callers with a token.

use serde_json::{Value, json};
use tollgate_config::{Flag, Sources};

use crate::client::{ClientResponse, Session, get_with};
use crate::decisions::frozen_ledger;
use crate::test_daemon::{TestDaemon, raw_request, write_file};
use crate::upstream::{Upstream, ok};

/// The classes of the document (C3), and a caller with a token.
pub(crate) const CLASSES: &str = "guards:
  ip:   { limit: 10,  period: 1m, burst: 5,  by: ip }
  user: { limit: 20,  period: 1m, burst: 10, by: 'header:x-user-id' }
  api:  { limit: 100, period: 1m, burst: 20, by: global }
trusted_proxies: [127.0.0.1]
callers: { app: { token: canary-app-token } }
"; // tidy:canary

const TOKEN: &str = "canary-app-token"; // tidy:canary

/// A daemon with this tollgate.yaml and one provider file.
pub(crate) async fn daemon(name: &str, config: &str, provider: &str) -> TestDaemon {
    let (file, provider_file) = (format!("{name}-tollgate.yaml"), format!("{name}-x.yaml"));
    write_file(&file, config);
    write_file(&provider_file, provider);
    // Time stands still, so that no token comes back meanwhile.
    let (ledger, _) = frozen_ledger();
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
    TestDaemon::start_on(ledger, sources, Default::default(), None).await
}

pub(crate) const OTHER: &str = "name: x\ndomain: api.example.org\nlimits: [100/1h]\n";

pub(crate) async fn acquire(daemon: &TestDaemon, body: &Value) -> ClientResponse {
    daemon
        .request("POST", "/v1/acquire", &body.to_string())
        .await
}

/// C4, C10: the reply has the rate headers of its guards, so that a middleware asks once; also at the
/// gateway's address, on a denial too. Before, it had to ask for a status, which that address lacks.
#[tokio::test]
async fn c4_a_decision_about_guards_has_their_rate_headers() {
    let daemon = daemon("guards-headers", CLASSES, OTHER).await;
    let body =
        json!({"asks": [{"guard": "api"}, {"guard": "ip", "identifier": "a"}], "wait": false});
    let at_gateway = async || {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("host", "gateway"), ("authorization", bearer.as_str())];
        raw_request(
            daemon.gateway,
            "POST",
            "/-/v1/acquire",
            &headers,
            &body.to_string(),
        )
        .await
    };
    for (number, remaining) in ["4", "3", "2", "1", "0"].into_iter().enumerate() {
        let granted = if number % 2 == 0 {
            acquire(&daemon, &body).await
        } else {
            at_gateway().await
        };
        assert_eq!(granted.status, 200, "{granted:?}");
        assert_eq!(granted.header("x-ratelimit-limit"), "10", "that of `ip`");
        assert_eq!(granted.header("x-ratelimit-remaining"), remaining);
        assert!(granted.header("x-ratelimit-reset").parse::<u64>().is_ok());
        assert_eq!(granted.header("x-tollgate-decision"), "allow");
        let policy = "\"api\";q=100;w=60, \"ip\";q=10;w=60";
        assert_eq!(granted.header("ratelimit-policy"), policy);
    }
    for denied in [acquire(&daemon, &body).await, at_gateway().await] {
        assert_eq!(denied.status, 429, "{denied:?}");
        assert_eq!(denied.header("x-ratelimit-limit"), "10");
        assert_eq!(denied.header("x-ratelimit-remaining"), "0");
        assert_eq!(denied.header("x-tollgate-decision"), "reject");
        assert_eq!(denied.header("retry-after"), "6");
    }
    let call = acquire(&daemon, &json!({"provider": "x"})).await;
    assert!(!call.everything().contains("x-ratelimit-limit"), "{call:?}");
}

/// C5: the reply about a guard of names says what it means for tasks, also with `limiting: off`.
#[tokio::test]
async fn c5_a_decision_about_tasks_has_the_settings_of_their_guard() {
    let task = "{ limit: 1, period: 1h, burst: 1, by: name, max_pending: 7, retry_delay: 90s, wait: 5s, retries: 2, factor: 1.5 }";
    let config = format!(
        "guards:\n  task: {task}\n  api: {{ limit: 9, period: 1m, burst: 9, by: global }}\n"
    );
    let daemon = daemon("guards-tasks", &config, OTHER).await;
    let body = json!({"guard": "task", "identifier": "q", "wait": false});
    let expected =
        json!({"max_pending": 7, "retry_delay": 90.0, "wait": 5.0, "retries": 2, "factor": 1.5});
    for status in [200, 429] {
        let reply = acquire(&daemon, &body).await;
        assert_eq!((reply.status, &reply.json()["task"]), (status, &expected));
    }
    let mode = r#"{"mode": "off"}"#;
    assert_eq!(
        daemon.request("POST", "/v1/limiting", mode).await.status,
        200
    );
    assert_eq!(acquire(&daemon, &body).await.json()["task"], expected);
    let other = acquire(&daemon, &json!({"guard": "api"})).await.json();
    assert!(other.get("task").is_none(), "{other}");
}

/// C11: all or none over HTTP, and C2: the status shows what is left.
#[tokio::test]
async fn c2_c11_guards_are_acquired_together_or_not_at_all() {
    let daemon = daemon("guards-acquire", CLASSES, OTHER).await;
    let both = |ip: &str| {
        let api = json!({"guard": "api", "identifier": "global", "cost": 4});
        json!({"asks": [{"guard": "ip", "identifier": ip}, api], "wait": false})
    };
    for number in 0..5 {
        let granted = acquire(&daemon, &both(&format!("198.51.100.{number}"))).await;
        assert_eq!(
            (granted.status, &granted.json()["permit"]),
            (200, &Value::Null),
            "{granted:?}"
        );
    }
    let denied = acquire(&daemon, &both("203.0.113.7")).await;
    let body = denied.json();
    assert_eq!(
        (denied.status, &body["guard"], &body["reason"]),
        (429, &"api".into(), &"limit".into())
    );
    assert_eq!(
        body["limit"],
        json!({"name": "100/1m", "limit": 100, "period": "1m", "scope": "guard"})
    );
    assert_eq!(
        body["message"],
        "API rate limit exceeded. Please try again later."
    );
    let path = "/v1/guards/ip?identifier=203.0.113.7";
    let status = daemon.request("GET", path, "").await.json();
    assert_eq!(
        (
            &status["tokens_available"],
            &status["tokens_per_minute"],
            &status["burst_size"]
        ),
        (&json!(5.0), &10.into(), &5.into()),
        "the address paid nothing: {status}"
    );
    assert!(status["last_refill"].as_f64().unwrap() > 1_700_000_000.0);
}

/// Denials at every endpoint are counted and shown: acquire, forward-auth, and in shadow.
#[tokio::test]
async fn denials_on_every_protocol_are_shown() {
    let daemon = daemon("guards-counts", CLASSES, OTHER).await;
    let ask = json!({"guard": "ip", "identifier": "203.0.113.7", "cost": 5, "wait": false});
    let check = "/v1/check?guard=ip&identifier=203.0.113.7";
    assert_eq!(acquire(&daemon, &ask).await.status, 200);
    assert_eq!(acquire(&daemon, &ask).await.status, 429);
    assert_eq!(daemon.request("GET", check, "").await.status, 429);
    daemon
        .request("POST", "/v1/limiting", "{\"mode\": \"shadow\"}")
        .await;
    assert_eq!(daemon.request("GET", check, "").await.status, 200);
    let shown = daemon.request("GET", "/v1/guards", "").await.json();
    let ip = json!({"name": "ip", "limit": "10/1m", "burst": 5, "shadow": false, "on_store_loss": "local-share", "denied": 2, "shadow_denied": 1});
    assert_eq!(
        (&shown["guards"][0], &shown["limiting"]),
        (&ip, &json!("shadow"))
    );
}

/// The operator asks in the name of a caller with a token, and a high priority is not lowered because
/// callers are configured.
#[tokio::test]
async fn the_operator_asks_for_any_caller() {
    let callers = "callers: { app: { token: canary-app-token } }"; // tidy:canary
    let provider =
        "name: x\ndomain: api.example.org\nlimits: [{limit: 2, period: 1h, reserve: 1}]\n";
    let daemon = daemon("guards-operator", callers, provider).await;
    let ask = async |more: Value| {
        let mut body = json!({"provider": "x", "wait": false});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        acquire(&daemon, &body).await.status
    };
    assert_eq!(ask(json!({"caller": "app"})).await, 200);
    assert_eq!(ask(json!({"caller": "app"})).await, 429, "the reserve");
    assert_eq!(ask(json!({"priority": "high"})).await, 200, "is for high");
}

/// `limiting` at run time: off checks nothing, shadow counts, and an unknown mode changes nothing.
#[tokio::test]
async fn limiting_is_switched_at_run_time() {
    let daemon = daemon(
        "guards-limiting",
        "guards: { g: { limit: 1, period: 1h, by: name } }",
        OTHER,
    )
    .await;
    let ask = json!({"guard": "g", "identifier": "k", "wait": false});
    assert_eq!(acquire(&daemon, &ask).await.status, 200);
    assert_eq!(acquire(&daemon, &ask).await.status, 429);
    let set = async |body: &str| daemon.request("POST", "/v1/limiting", body).await;
    for mode in ["off", "shadow"] {
        let body = format!("{{\"mode\": \"{mode}\"}}");
        assert_eq!(set(&body).await.json(), json!({"mode": mode}));
        assert_eq!(acquire(&daemon, &ask).await.status, 200, "{mode}");
    }
    for wrong in [
        "{\"mode\": \"of\"}",
        "{}",
        "{\"mode\": 1}",
        "{\"mode\": \"on\", \"x\": 1}",
    ] {
        assert_eq!(set(wrong).await.status, 400, "{wrong}");
    }
    daemon.reload().await;
    assert_eq!(
        acquire(&daemon, &ask).await.status,
        200,
        "a reload keeps it"
    );
    assert_eq!(set("{\"mode\": null}").await.json(), json!({"mode": "on"}));
    assert_eq!(acquire(&daemon, &ask).await.status, 429);
}

/// The user's own service behind guards.
async fn guarded_service(name: &str) -> (Upstream, TestDaemon) {
    let upstream = Upstream::start(|_, _| async {
        let mut response = ok();
        let headers = response.headers_mut();
        headers.insert("x-ratelimit-limit", "999".parse().unwrap());
        headers.insert("cache-control", "max-age=60".parse().unwrap());
        response
    })
    .await;
    let file = format!(
        "name: x\nupstream: http://{}\nguards: [ip, user, api]\ncache: {{ttl: 1h}}\n",
        upstream.address
    );
    let daemon = daemon(name, CLASSES, &file).await;
    (upstream, daemon)
}

/// A request of this client, through a trusted proxy.
async fn call(daemon: &TestDaemon, ip: &str, path: &str, user: Option<&str>) -> ClientResponse {
    let mut headers = vec![("x-forwarded-for", ip)];
    headers.extend(user.map(|user| ("x-user-id", user)));
    get_with(daemon.gateway, path, &headers).await
}

/// C4, C10: in front of the user's own service: by address, by user if its header is there, then together;
/// the document's texts; the same headers on success.
#[tokio::test]
async fn c4_guards_stand_in_front_of_the_users_own_service() {
    let (_upstream, daemon) = guarded_service("guards-gateway").await;
    for left in [4, 3, 2, 1, 0] {
        let passed = call(&daemon, "203.0.113.7", "/x/same", None).await;
        assert_eq!(passed.status, 200, "cached responses count too: {passed:?}");
        assert_eq!(
            passed.header("x-ratelimit-limit"),
            "10",
            "the guard's, not the upstream's"
        );
        assert_eq!(passed.header("x-ratelimit-remaining"), left.to_string());
    }
    let denied = call(&daemon, "203.0.113.7", "/x/same", None).await;
    assert_eq!(
        (denied.status, denied.header("retry-after")),
        (429, "6"),
        "{denied:?}"
    );
    let body = denied.json();
    assert_eq!(
        (
            &body["error"],
            &body["guard"],
            &body["limit"],
            &body["reason"]
        ),
        (
            &"RateLimitExceeded".into(),
            &"ip".into(),
            &"10/1m".into(),
            &"limit".into()
        )
    );
    assert_eq!(
        body["message"],
        "Rate limit exceeded. Please try again later."
    );
    assert!(
        body["retryIn"]
            .as_u64()
            .is_some_and(|millis| millis > 5_000),
        "{body}"
    );
    assert_eq!(body.get("provider"), None);
    assert_eq!(denied.header("x-tollgate-decision"), "reject");
    assert_eq!(denied.header("x-tollgate-source"), "tollgate");
    assert_eq!(
        call(&daemon, "203.0.113.7", "/x/health", None).await.status,
        200,
        "exempt"
    );
}

/// C4, C11: a user is counted wherever it comes from, and all callers together; a rejected request
/// costs no guard anything.
#[tokio::test]
async fn c4_c11_users_and_all_callers_together_are_counted() {
    let (_upstream, daemon) = guarded_service("guards-users").await;
    for number in 0..10 {
        let ip = format!("198.51.100.{number}");
        assert_eq!(call(&daemon, &ip, "/x/a", Some("u1")).await.status, 200);
    }
    let user = call(&daemon, "198.51.100.99", "/x/a", Some("u1")).await;
    assert_eq!((user.status, &user.json()["guard"]), (429, &"user".into()));
    assert_eq!(
        user.header("x-ratelimit-limit"),
        "20",
        "of the guard that rejected"
    );
    // 10 of the 20 tokens that all share are used.
    for number in 0..10 {
        let ip = format!("192.0.2.{number}");
        assert_eq!(call(&daemon, &ip, "/x/a", None).await.status, 200);
    }
    let api = call(&daemon, "192.0.2.99", "/x/a", None).await.json();
    assert_eq!(
        api["message"],
        "API rate limit exceeded. Please try again later."
    );
    let shown = daemon
        .request("GET", "/v1/guards/ip?identifier=192.0.2.99", "")
        .await
        .json();
    assert_eq!(
        shown["tokens_available"], 5.0,
        "C11: the address paid nothing"
    );
}

/// Without `guards:` in its file a provider is not guarded, and an untrusted peer names no address.
#[tokio::test]
async fn only_providers_that_name_guards_are_guarded() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let plain = format!("name: x\nupstream: http://{}\n", upstream.address);
    let config = "guards: { ip: { limit: 1, period: 1h, by: ip } }";
    let daemon = daemon("guards-none", config, &plain).await;
    let mut session = Session::open(daemon.gateway).await;
    for _ in 0..3 {
        let passed = session.get("/x/a", &[]).await;
        assert_eq!(
            (passed.status, passed.header("x-ratelimit-limit")),
            (200, "")
        );
    }
    write_file("guards-none-x.yaml", &format!("{plain}guards: [ip]\n"));
    assert_eq!(daemon.reload().await.status, 200);
    let sly = |ip: &'static str| [("x-forwarded-for", ip)];
    assert_eq!(session.get("/x/a", &sly("203.0.113.1")).await.status, 200);
    assert_eq!(
        session.get("/x/a", &sly("203.0.113.2")).await.status,
        429,
        "not a trusted proxy"
    );
    write_file("guards-none-x.yaml", &format!("{plain}guards: [ipp]\n"));
    let rejected = daemon.reload().await;
    assert_eq!(rejected.status, 422);
    assert!(rejected.body.contains("did you mean `ip`"), "{rejected:?}");
    write_file("guards-none-tollgate.yaml", "nodes: 1\n");
    daemon.reload().await;
    let missing = session.get("/x/a", &[]).await;
    assert_eq!(missing.status, 500, "{missing:?}");
    assert_ne!(
        missing.status, 200,
        "a guard that is gone lets nobody through: {missing:?}"
    );
}

/// A caller with a token emptied the buckets of anybody's users. Of several callers each has the guards
/// that its `guards` names.
#[tokio::test]
async fn a_caller_takes_tokens_of_its_own_guards_only() {
    let callers =
        "callers: { app: { token: canary-app-token, guards: [ip] }, web: { token: canary-web } }"; // tidy:canary
    let (classes, _) = CLASSES.split_once("callers:").unwrap();
    let daemon = daemon("guards-rights", &format!("{classes}{callers}\n"), OTHER).await;
    let ask = async |token: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("host", "gateway"), ("authorization", bearer.as_str())];
        raw_request(daemon.gateway, method, path, &headers, body).await
    };
    let of_ip = r#"{"guard": "ip", "identifier": "203.0.113.7", "wait": false}"#;
    let of_both = r#"{"asks": [{"guard": "ip", "identifier": "203.0.113.7"}, {"guard": "api"}]}"#;
    let check = "/-/v1/check?guard=ip&identifier=203.0.113.7";
    for (token, method, path, body) in [
        ("canary-web", "POST", "/-/v1/acquire", of_ip), // tidy:canary
        ("canary-web", "GET", check, ""),               // tidy:canary
        ("canary-web", "GET", "/-/v1/check", ""),       // tidy:canary
        (TOKEN, "POST", "/-/v1/acquire", of_both),
    ] {
        let denied = ask(token, method, path, body).await;
        assert_eq!(
            (denied.status, &denied.json()["error"]),
            (403, &"CallerNotAllowed".into()),
            "{path} {body}"
        );
        let hint = denied.json()["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains("guards` in tollgate.yaml"), "{hint}");
    }
    let path = "/v1/guards/ip?identifier=203.0.113.7";
    let status = daemon.request("GET", path, "").await.json();
    assert_eq!(
        status["tokens_available"],
        json!(5.0),
        "nothing was counted"
    );
    assert_eq!(ask(TOKEN, "POST", "/-/v1/acquire", of_ip).await.status, 200);
    assert_eq!(ask(TOKEN, "GET", check, "").await.status, 200);
}

/// The decision calls for callers, on the gateway's address, with their token.
#[tokio::test]
async fn callers_with_a_token_ask_on_the_gateways_address() {
    let daemon = daemon("guards-endpoint", CLASSES, OTHER).await;
    let bearer = format!("Bearer {TOKEN}");
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut all = vec![("host", "gateway")];
        all.extend(headers);
        raw_request(daemon.gateway, method, path, &all, body).await
    };
    let own = [("authorization", bearer.as_str())];
    let body = r#"{"provider": "x"}"#;
    for headers in [&[][..], &[("authorization", "Bearer canary-wrong")]] {
        let closed = ask("POST", "/-/v1/acquire", headers, body).await;
        assert_eq!(
            (closed.status, &closed.json()["error"]),
            (401, &"Unauthorized".into())
        );
        assert!(closed.json()["hint"].as_str().unwrap().contains("callers:"));
        assert_eq!(closed.header("x-tollgate-decision"), "reject");
        assert!(!closed.everything().contains("canary"), "{closed:?}");
    }
    let granted = ask("POST", "/-/v1/acquire", &own, body).await;
    assert_eq!(granted.status, 200, "{granted:?}");
    let permit = granted.json()["permit"].as_str().unwrap().to_owned();
    let report = json!({"permit": permit, "status": 200}).to_string();
    assert_eq!(
        ask("POST", "/-/v1/report", &own, &report).await.json()["first"],
        true
    );
    let capacity = ask("GET", "/-/v1/capacity?provider=x", &own, "").await;
    assert_eq!(
        (capacity.status, &capacity.json()["remaining"]),
        (200, &99.into())
    );
    let token = [("x-tollgate-token", TOKEN)];
    assert_eq!(
        ask("GET", "/-/v1/check?guard=ip&identifier=a", &token, "")
            .await
            .status,
        200
    );
    let behind = [
        ("authorization", "Bearer user-jwt"),
        ("x-tollgate-token", TOKEN),
    ];
    let shadowed = ask("GET", "/-/v1/check?guard=ip&identifier=b", &behind, "").await;
    assert_eq!(shadowed.status, 200, "the client's own token: {shadowed:?}");
    let named = json!({"provider": "x", "caller": "app"});
    assert_eq!(
        acquire(&daemon, &named).await.status,
        200,
        "the operator asks for any caller"
    );
    let other = r#"{"provider": "x", "caller": "web"}"#;
    let foreign = ask("POST", "/-/v1/acquire", &own, other).await;
    assert_eq!(
        (foreign.status, &foreign.json()["error"]),
        (403, &"CallerNotAllowed".into())
    );
    for path in [
        "/-/v1/providers",
        "/-/v1/reload",
        "/-/v1/guards/ip",
        "/-/nothing",
    ] {
        assert_eq!(ask("GET", path, &own, "").await.status, 404, "{path}");
    }
    assert_eq!(ask("GET", "/-/v1/acquire", &own, "").await.status, 405);
}
