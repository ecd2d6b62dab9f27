//! What happens to a Postgres server under load, and what its ledger makes of it. The provider's own
//! log judges.

use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_sim::fault_proxy::{FaultProxy, Flow};
use tollgate_sim::test_servers::PostgresServer;

use crate::backend::Backend;
use crate::load::{LIMIT, Load};
use crate::postgres_server::Postgres;

fn open(url: &str) -> Ledger {
    let address = PostgresAddress::parse(url).unwrap();
    Ledger::postgres(&address, Clock::System, &NetworkedOptions::default())
}

/// What it has committed it still has: it goes on counting.
#[tokio::test]
async fn a_server_that_stops_at_once_keeps_the_limit() {
    let mut server = PostgresServer::start(&[]);
    let ledgers = [0; 3].map(|_| open(&server.url("postgres")));
    let load = Load::start(&ledgers);
    load.more(2 * LIMIT).await;
    server.kill();
    server.restart();
    load.more(2 * LIMIT).await;
    load.judge();
}

/// The standby may lack what was committed last.
#[tokio::test]
async fn a_standby_that_is_promoted_keeps_the_limit() {
    let mut server = PostgresServer::start(&[]);
    let standby = server.standby();
    let (one, two) = (server.address(), standby.address());
    let url = format!("postgres://postgres@{one},{two}/postgres?target_session_attrs=read-write");
    let ledgers = [0; 3].map(|_| open(&url));
    let load = Load::start(&ledgers);
    load.more(2 * LIMIT).await;
    server.kill();
    standby.promote();
    load.more(2 * LIMIT).await;
    load.judge();
}

/// Nobody can write, and requests are cancelled at their deadline.
#[tokio::test]
async fn a_table_that_is_locked_by_somebody_else_keeps_the_limit() {
    let postgres = Postgres::start();
    let ledgers = [0; 3].map(|_| postgres.ledger());
    let load = Load::start(&ledgers);
    load.more(2 * LIMIT).await;
    let (server, database) = (postgres.server.clone(), postgres.database.clone());
    let lock = "BEGIN; LOCK TABLE tollgate_rows; SELECT pg_sleep(1.5); COMMIT";
    let locked = std::thread::spawn(move || server.sql(&database, lock));
    load.more(2 * LIMIT).await;
    load.judge();
    assert!(locked.join().unwrap().ends_with("COMMIT"));
}

/// The server has granted, and nobody hears of it.
#[tokio::test]
async fn replies_that_are_lost_after_the_commit_keep_the_limit() {
    let postgres = Postgres::start();
    let proxy = FaultProxy::start(postgres.server.address(), 1)
        .await
        .unwrap();
    let database = &postgres.database;
    let far = open(&format!(
        "postgres://postgres@{}/{database}",
        proxy.address()
    ));
    let load = Load::start(&[far, open(&postgres.server.url(database))]);
    for _ in 0..2 {
        load.more(2 * LIMIT).await;
        proxy.update(|faults| faults.down.flow = Flow::Drop);
        load.more(2 * LIMIT).await;
        proxy.cut();
        proxy.clear();
    }
    load.more(2 * LIMIT).await;
    load.judge();
}
