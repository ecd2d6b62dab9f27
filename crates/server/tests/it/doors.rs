//! Addresses of providers that come and go on reload.

use std::net::SocketAddr;

use tollgate_server::Door;

use crate::cache::NO_RETRY;
use crate::client::{Session, get, soon};
use crate::desk::{Desk, from_file, write};
use crate::stand::file;
use crate::upstream::{Upstream, ok, reply};

/// An address that was free a moment ago.
pub(crate) fn free() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn a_reload_opens_moves_and_closes_the_address_of_a_provider() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let text = |listen: &str| file(upstream.address, &format!("limits: [1000/1s]\n{listen}"));
    write("doors.yaml", &text(""));
    let desk = Desk::open(from_file("doors.yaml")).await;
    let (one, two) = (free(), free());
    write("doors.yaml", &text(&format!("listen: {one}")));
    let answer = desk.reload().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut kept = Session::open(one).await;
    assert_eq!(kept.get("/a", &[]).await.status, 200);
    // A reload that leaves it alone does not disturb it.
    write(
        "doors.yaml",
        &text(&format!("listen: {one}\nqueue: {{max: 5}}")),
    );
    assert_eq!(desk.reload().await.status, 200);
    assert_eq!(kept.get("/b", &[]).await.status, 200);
    write("doors.yaml", &text(&format!("listen: {two}")));
    assert_eq!(desk.reload().await.status, 200);
    assert_eq!(get(two, "/c").await.status, 200);
    soon(async { while tokio::net::TcpStream::connect(one).await.is_ok() {} }).await;
    write("doors.yaml", &text(""));
    assert_eq!(desk.reload().await.status, 200);
    soon(async { while tokio::net::TcpStream::connect(two).await.is_ok() {} }).await;
    let left = desk.doors.0.doors().listening();
    assert_eq!((left.len(), &left[0].door), (1, &Door::All));
    assert_eq!(get(desk.gateway, "/x/d").await.status, 200);
}

/// A call that is under way on a door that is closed is answered.
#[tokio::test]
async fn a_call_on_a_door_that_is_closed_is_finished() {
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
    let own = free();
    write("closing.yaml", &text(&format!("listen: {own}")));
    let desk = Desk::open(from_file("closing.yaml")).await;
    // The first version was not opened by this test's desk, so a change opens it.
    write(
        "closing.yaml",
        &text(&format!("listen: {own}\nqueue: {{max: 5}}")),
    );
    assert_eq!(desk.reload().await.status, 200);
    let call = tokio::spawn(async move { get(own, "/a").await });
    crate::client::until(|| upstream.count() == 1).await;
    write("closing.yaml", &text(""));
    assert_eq!(desk.reload().await.status, 200);
    go.send_replace(true);
    assert_eq!(soon(call).await.unwrap().status, 200);
}

/// An address that cannot be had is said in the answer; the old one stays, and so does everything
/// else of the new version.
#[tokio::test]
async fn an_address_that_is_taken_is_refused_in_words() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let text = |rest: &str| file(upstream.address, rest);
    let own = free();
    write("taken.yaml", &text("limits: [10/1s]"));
    let desk = Desk::open(from_file("taken.yaml")).await;
    write(
        "taken.yaml",
        &text(&format!("limits: [10/1s]\nlisten: {own}")),
    );
    assert_eq!(desk.reload().await.status, 200);
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = squatter.local_addr().unwrap();
    write(
        "taken.yaml",
        &text(&format!("limits: [20/1s]\nlisten: {taken}")),
    );
    let answer = desk.reload().await;
    assert_eq!(answer.status, 422);
    let refused = answer.json()["refused"][0].to_string();
    assert!(refused.contains(&taken.to_string()), "{refused}");
    assert_eq!(get(own, "/a").await.status, 200, "the old address stays");
    let shown = desk.ask("GET", "/v1/providers/x", "").await.json();
    assert_eq!(shown["limits"][0]["limit"], 20);
}

/// Two providers that swap their addresses in one reload: neither can have the other's while it is
/// open, so both keep their own, and the answer says so.
#[tokio::test]
async fn two_providers_that_swap_their_addresses_keep_both_doors() {
    let upstream = Upstream::start(|_, asked| async move { reply(200, &[], &asked.target) }).await;
    let (one, two) = (free(), free());
    let put = |x: SocketAddr, y: SocketAddr| {
        for (name, listen) in [("x", x), ("y", y)] {
            let rest = format!("limits: [1000/1s]\nlisten: {listen}");
            let named = format!("name: {name}\nupstream: http://{}/{name}", upstream.address);
            write(&format!("swap-{name}.yaml"), &format!("{named}\n{rest}\n"));
        }
    };
    let first = free();
    put(first, two);
    let mut sources = from_file("swap-x.yaml");
    sources.providers.push("swap-y.yaml".to_owned());
    let desk = Desk::open(sources).await;
    put(one, two);
    assert_eq!(desk.reload().await.status, 200);
    put(two, one);
    let answer = desk.reload().await;
    let refused = answer.json()["refused"].to_string();
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(refused.contains("belongs to another provider"), "{refused}");
    assert_eq!(get(one, "/a").await.body, "/x/a");
    assert_eq!(get(two, "/a").await.body, "/y/a");
}

/// An address that a provider has given up may be somebody else's: it is called like any other.
#[tokio::test]
async fn an_address_that_was_given_up_may_be_called() {
    let upstream = Upstream::start(|_, _| async { ok() }).await;
    let own = free();
    let text = |listen: &str| file(upstream.address, &format!("limits: [1000/1s]\n{listen}"));
    let caller = format!("name: y\nupstream: http://{own}\nlimits: [1000/1s]\n{NO_RETRY}\n");
    write("given-y.yaml", &caller);
    write("given.yaml", &text(""));
    let mut sources = from_file("given.yaml");
    sources.providers.push("given-y.yaml".to_owned());
    let desk = Desk::open(sources).await;
    write("given.yaml", &text(&format!("listen: {own}")));
    assert_eq!(desk.reload().await.status, 200);
    assert_eq!(get(desk.gateway, "/y/a").await.status, 508, "it is ours");
    write("given.yaml", &text(""));
    assert_eq!(desk.reload().await.status, 200);
    let listener = soon(async {
        loop {
            if let Ok(listener) = tokio::net::TcpListener::bind(own).await {
                return listener;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let _other = Upstream::on(listener, |_, _| async { ok() });
    let answer = get(desk.gateway, "/y/b").await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
