//! Addresses of providers that come and go on reload.

use std::net::SocketAddr;

use tollgate_server::Door;

use crate::client::{Session, get, soon};
use crate::desk::{Desk, from_file, write};
use crate::stand::file;
use crate::upstream::{Upstream, ok};

/// An address that was free a moment ago.
fn free() -> SocketAddr {
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
