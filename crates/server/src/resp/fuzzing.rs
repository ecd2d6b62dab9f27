//! A connection without a socket and without providers, for fuzz targets and tests.
//!
//! Promises: calls the code of the listener, and adds nothing to it. Time stands still for fuzz targets.
//!
//! Never: is part of a program.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tollgate_config::Secret;
use tollgate_ledger::{Clock, Ledger};

use super::client_stream::ClientStream;
use super::connection::serve;
use super::session::{RespContext, Session};
use super::waiting_places::WaitingPlaces;
use crate::accept_loop::ShutdownSignal;
use crate::connection_table::ConnectionTable;
use crate::gateway::ConnectionCap;
use crate::test_config;

/// Something to wait for.
const GUARD: &str = "guards: { task: { limit: 1, period: 1h, burst: 1, by: name } }\n";

/// More than any fuzz target sends or gets.
const PIPE: usize = 1 << 24;

impl ClientStream for DuplexStream {
    /// A pipe has no kernel that knows.
    fn hung_up(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// What a connection replies to these pieces, until its client ends it or it ends by itself.
pub async fn replies<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let ledger = Ledger::memory(Clock::Manual(test_config::clock()));
    let (mut client, serving) = connection(ledger, None, PIPE);
    let talk = async {
        for piece in pieces {
            // It may have ended already.
            client.write_all(piece).await.ok();
            tokio::task::yield_now().await;
        }
        client.shutdown().await.ok();
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).await.ok();
        replies
    };
    tokio::join!(talk, serving).0
}

/// The client's end of a connection, and the serving of it; with a token, if there is one.
pub(super) fn connection(
    ledger: Ledger,
    token: Option<&str>,
    capacity: usize,
) -> (DuplexStream, impl Future<Output = ()> + Send + 'static) {
    let (client, server) = duplex(capacity);
    (client, serving(ledger, token, server))
}

/// The serving of a connection.
pub(super) fn serving<S>(
    ledger: Ledger,
    token: Option<&str>,
    server: S,
) -> impl Future<Output = ()> + Send + use<S>
where
    S: ClientStream + Send + 'static,
{
    let cap = Arc::new(ConnectionCap::new(1, 1, false));
    let slot = cap.try_acquire([127, 0, 0, 1].into());
    let context = context(ledger, token);
    let open = ConnectionTable::new(1).open();
    let place = context.place(
        slot.expect("the first connection has a slot"),
        open.expect("the first connection has a place"),
    );
    let session = Session::new(context, 1, None);
    let (shutdown, over) = (watch::Sender::new(false), watch::Sender::new(false));
    let signal = ShutdownSignal::new(shutdown.subscribe(), over.subscribe());
    async move {
        serve(server, session, place, signal).await;
        drop((shutdown, over));
    }
}

fn context(ledger: Ledger, token: Option<&str>) -> Arc<RespContext> {
    Arc::new(RespContext {
        daemon: test_config::daemon(ledger, GUARD),
        token: token.map(|token| Secret::new(token.to_owned())),
        is_open: token.is_none(),
        clients: AtomicUsize::new(0),
        waiting: WaitingPlaces::new(1),
    })
}
