//! Listeners of providers that a reload opens and closes.

use std::net::SocketAddr;

use tollgate_server::ListenerKind;
use tollgate_sim::test_host::free_address;

use crate::cache::NO_RETRY;
use crate::client::{Session, get, within_timeout};
use crate::test_daemon::{TestDaemon, from_file, write_file};
use crate::test_gateway::file;
use crate::upstream::{Upstream, ok, reply};

#[tokio::test]
async fn a_reload_opens_moves_and_closes_the_address_of_a_provider() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let text = |listen: &str| file(upstream.address, &format!("limits: [1000/1s]\n{listen}"));
    write_file("listeners.yaml", &text(""));
    let daemon = TestDaemon::start(from_file("listeners.yaml")).await;
    let (one, two) = (free_address(), free_address());
    write_file("listeners.yaml", &text(&format!("listen: {one}")));
    let response = daemon.reload().await;
    assert_eq!(response.status, 200, "{response:?}");
    let mut kept = Session::open(one).await;
    assert_eq!(kept.get("/a", &[]).await.status, 200);
    // A reload that leaves it alone does not disturb it.
    write_file(
        "listeners.yaml",
        &text(&format!("listen: {one}\nqueue: {{max: 5}}")),
    );
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(kept.get("/b", &[]).await.status, 200);
    write_file("listeners.yaml", &text(&format!("listen: {two}")));
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(get(two, "/c").await.status, 200);
    within_timeout(async { while tokio::net::TcpStream::connect(one).await.is_ok() {} }).await;
    write_file("listeners.yaml", &text(""));
    assert_eq!(daemon.reload().await.status, 200);
    within_timeout(async { while tokio::net::TcpStream::connect(two).await.is_ok() {} }).await;
    let left = daemon.servers.0.listeners().addresses();
    assert_eq!((left.len(), &left[0].kind), (1, &ListenerKind::All));
    assert_eq!(get(daemon.gateway, "/x/d").await.status, 200);
}

/// A running call on a listener that closes gets its response.
#[tokio::test]
async fn a_running_call_on_a_closed_listener_is_finished() {
    let (go, gone) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |_, _| {
        let mut gone = gone.clone();
        async move {
            gone.wait_for(|go| *go).await.ok();
            ok()
        }
    })
    .await;
    let text = |listen: &str| file(upstream.address, &format!("limits: [1000/1s]\n{listen}"));
    let own = free_address();
    write_file("closing.yaml", &text(&format!("listen: {own}")));
    let daemon = TestDaemon::start(from_file("closing.yaml")).await;
    // The first version was not opened by this test's desk, so a change opens it.
    write_file(
        "closing.yaml",
        &text(&format!("listen: {own}\nqueue: {{max: 5}}")),
    );
    assert_eq!(daemon.reload().await.status, 200);
    let call = tokio::spawn(async move { get(own, "/a").await });
    crate::client::wait_until(|| upstream.count() == 1).await;
    write_file("closing.yaml", &text(""));
    assert_eq!(daemon.reload().await.status, 200);
    go.send_replace(true);
    assert_eq!(within_timeout(call).await.unwrap().status, 200);
}

/// An address that cannot be opened is reported in the response; the old one stays, and the rest of
/// the new version applies.
#[tokio::test]
async fn an_address_in_use_is_rejected_with_a_message() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let text = |rest: &str| file(upstream.address, rest);
    let own = free_address();
    write_file("taken.yaml", &text("limits: [10/1s]"));
    let daemon = TestDaemon::start(from_file("taken.yaml")).await;
    write_file(
        "taken.yaml",
        &text(&format!("limits: [10/1s]\nlisten: {own}")),
    );
    assert_eq!(daemon.reload().await.status, 200);
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = squatter.local_addr().unwrap();
    write_file(
        "taken.yaml",
        &text(&format!("limits: [20/1s]\nlisten: {taken}")),
    );
    let response = daemon.reload().await;
    assert_eq!(response.status, 422);
    let rejected = response.json()["rejected"][0].to_string();
    assert!(rejected.contains(&taken.to_string()), "{rejected}");
    assert_eq!(get(own, "/a").await.status, 200, "the old address stays");
    let shown = daemon.request("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["limits"][0]["limit"], 20);
}

/// Two providers swap their addresses in one reload: neither can open the other's while it is in
/// use, so both keep their own, and the response says so.
#[tokio::test]
async fn two_providers_that_swap_addresses_keep_their_old_ones() {
    let upstream =
        Upstream::start(|_, received| async move { reply(200, &[], &received.target) }).await;
    let (one, two) = (free_address(), free_address());
    let put = |x: SocketAddr, y: SocketAddr| {
        for (name, listen) in [("x", x), ("y", y)] {
            let rest = format!("limits: [1000/1s]\nlisten: {listen}");
            let named = format!("name: {name}\nupstream: http://{}/{name}", upstream.address);
            write_file(&format!("swap-{name}.yaml"), &format!("{named}\n{rest}\n"));
        }
    };
    let first = free_address();
    put(first, two);
    let mut sources = from_file("swap-x.yaml");
    sources.providers.push("swap-y.yaml".to_owned());
    let daemon = TestDaemon::start(sources).await;
    put(one, two);
    assert_eq!(daemon.reload().await.status, 200);
    put(two, one);
    let response = daemon.reload().await;
    let rejected = response.json()["rejected"].to_string();
    assert_eq!(response.status, 422, "{response:?}");
    assert!(
        rejected.contains("belongs to another provider"),
        "{rejected}"
    );
    assert_eq!(get(one, "/a").await.body, "/x/a");
    assert_eq!(get(two, "/a").await.body, "/y/a");
}

/// An address that a provider has released may belong to another service: it is called like any
/// other.
#[tokio::test]
async fn a_released_address_is_no_longer_treated_as_our_own() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let own = free_address();
    let text = |listen: &str| file(upstream.address, &format!("limits: [1000/1s]\n{listen}"));
    let caller = format!("name: y\nupstream: http://{own}\nlimits: [1000/1s]\n{NO_RETRY}\n");
    write_file("given-y.yaml", &caller);
    write_file("given.yaml", &text(""));
    let mut sources = from_file("given.yaml");
    sources.providers.push("given-y.yaml".to_owned());
    let daemon = TestDaemon::start(sources).await;
    write_file("given.yaml", &text(&format!("listen: {own}")));
    assert_eq!(daemon.reload().await.status, 200);
    assert_eq!(get(daemon.gateway, "/y/a").await.status, 508, "it is ours");
    write_file("given.yaml", &text(""));
    assert_eq!(daemon.reload().await.status, 200);
    let listener = within_timeout(async {
        loop {
            if let Ok(listener) = tokio::net::TcpListener::bind(own).await {
                return listener;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let _other = Upstream::on(listener, |_, _| async { ok() });
    let response = get(daemon.gateway, "/y/b").await;
    assert_eq!(response.status, 200, "{response:?}");
}
