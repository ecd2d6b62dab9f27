//! Idle connections end, whoever calls or does not.

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tollgate_core::domain::Host;
use tollgate_core::time::{Now, Wall};
use tollgate_ledger::{Clock, ManualClock};

use super::*;

/// An upstream, and the connection that the pool opened to it.
async fn warmed(pool: &Pool) -> (Origin, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = Origin {
        tls: false,
        host: Host::parse("127.0.0.1").unwrap(),
        port: listener.local_addr().unwrap().port(),
        private: true,
    };
    let expected = pool.expect(&origin);
    expected.warm(1, Span::from_secs(5)).await.unwrap();
    (origin, listener.accept().await.unwrap().0)
}

/// Idle connections of a provider that was never called again stayed open until its server closed them.
#[tokio::test]
async fn old_connections_are_closed_although_nobody_calls() {
    let ledger = Ledger::memory(Clock::tokio(Wall(0)));
    let dialer = Dialer::new(&Roots::default(), crate::event::Events::new()).unwrap();
    let pool = Pool::new(Arc::new(dialer), ledger);
    let (_, mut opened) = warmed(&pool).await;
    // From here on nothing but the timer can happen.
    tokio::time::pause();
    let mut byte = [0];
    let closed = within(Some(IDLE_MAX + IDLE_MAX), opened.read(&mut byte)).await;
    assert_eq!(closed.expect("in time").unwrap(), 0);
    tokio::task::yield_now().await;
    assert!(pool.shared.upstreams.lock().is_empty());
    assert!(!pool.shared.is_pruned.load(Ordering::SeqCst));
}

/// The pool closes the connection to a host that is never called again.
#[tokio::test]
async fn old_connections_are_closed_when_another_upstream_is_called() {
    let clock = ManualClock::new(Now::default());
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    let dialer = Dialer::new(&Roots::default(), crate::event::Events::new()).unwrap();
    let pool = Pool::new(Arc::new(dialer), ledger);
    let (first, mut opened) = warmed(&pool).await;
    clock.pass(IDLE_MAX);
    let (second, _kept) = warmed(&pool).await;
    assert_eq!(opened.read(&mut [0]).await.unwrap(), 0, "it is closed");
    let upstreams = pool.shared.upstreams.lock();
    assert!(!upstreams.contains_key(&first) && upstreams.contains_key(&second));
}

/// The provider may close it at any moment: the call would fail after it has taken its permit.
#[tokio::test]
async fn a_connection_that_was_idle_for_too_long_is_not_taken() {
    let clock = ManualClock::new(Now::default());
    let ledger = Ledger::memory(Clock::Manual(clock.clone()));
    let dialer = Dialer::new(&Roots::default(), crate::event::Events::new()).unwrap();
    let pool = Pool::new(Arc::new(dialer), ledger);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = Origin {
        tls: false,
        host: Host::parse("127.0.0.1").unwrap(),
        port: listener.local_addr().unwrap().port(),
        private: true,
    };
    let five = Span::from_secs(5);
    pool.expect(&origin).warm(1, five).await.unwrap();
    let _first = listener.accept().await.unwrap();
    let upstream = pool.expect(&origin).upstream.clone();
    let is_ready = || upstream.state.lock().idle[0].wire.sender.is_ready();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(is_ready(), "one that is not ready is not taken at once");
    clock.pass(IDLE_MAX);
    let both = async { tokio::join!(pool.expect(&origin).take(1, five), listener.accept()) };
    let both = crate::timer::within(Some(five), both).await;
    let (taken, second) = both.expect("another one is opened");
    assert!(taken.is_ok() && second.is_ok());
}
