//! What happens to a Postgres server under load, and what its ledger makes of it. The provider's own
//! log judges.

use std::net::TcpListener;

use smallvec::smallvec;
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::{Clock, Ledger, NetworkedOptions};
use tollgate_sim::fault_proxy::{FaultProxy, Flow};
use tollgate_sim::test_servers::PostgresServer;

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::load::{LIMIT, Load, OUTLASTS_FAULTS, use_up_quota};
use crate::postgres_server::Postgres;

pub(crate) fn open(url: &str) -> Ledger {
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
    server.stop("immediate");
    server.restart();
    load.more(2 * LIMIT).await;
    load.judge();
}

/// kill -9 of every process of the server, which none of them can notice. What it has committed is in the kernel:
/// it goes on counting. The window outlasts the kill and the start, so that what was forgotten could be granted twice.
#[tokio::test]
async fn a_server_whose_processes_are_killed_comes_back_and_keeps_the_limit() {
    let mut server = PostgresServer::start(&[]);
    let ledgers = [0; 3].map(|_| open(&server.url("postgres")));
    let load = Load::of(OUTLASTS_FAULTS, &ledgers);
    load.more(LIMIT).await;
    server.kill();
    assert!(server.try_sql("postgres", "SELECT 1").is_err());
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

/// A standby whose clock differs takes over: nothing that was counted is free because of it.
async fn a_host_on_another_clock_takes_over(clock: &str) {
    let mut server = PostgresServer::start(&[]);
    let standby = server.standby_on_clock(Some(clock));
    let seconds = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    let [here, there] = [&server, &standby].map(|one| one.sql("postgres", seconds));
    let (here, there): (i64, i64) = (here.parse().unwrap(), there.parse().unwrap());
    assert!((here - there).abs() >= 25, "{here} and {there}");
    let (one, two) = (server.address(), standby.address());
    let url = format!("postgres://postgres@{one},{two}/postgres?target_session_attrs=read-write");
    let ledgers = [0; 3].map(|_| open(&url));
    let load = Load::start(&ledgers);
    load.more(2 * LIMIT).await;
    server.kill();
    standby.promote();
    load.more(3 * LIMIT).await;
    load.judge();
}

#[tokio::test]
async fn a_promotion_to_a_host_that_is_30_s_ahead_keeps_the_limit() {
    a_host_on_another_clock_takes_over("+30s").await;
}

#[tokio::test]
async fn a_promotion_to_a_host_that_is_30_s_behind_keeps_the_limit() {
    a_host_on_another_clock_takes_over("-30s").await;
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

/// A network that loses what is sent and closes nothing. Requests were sent on such a connection for
/// ever: every call failed, also when the network was well again.
#[tokio::test]
async fn a_connection_that_lost_replies_is_replaced() {
    let postgres = Postgres::start();
    let proxy = FaultProxy::start(postgres.server.address(), 1)
        .await
        .unwrap();
    let far = open(&format!(
        "postgres://postgres@{}/{}",
        proxy.address(),
        postgres.database
    ));
    let load = Load::start(std::slice::from_ref(&far));
    load.more(LIMIT).await;
    proxy.update(|faults| faults.down.flow = Flow::Drop);
    wait_until_lost(&far).await;
    proxy.clear();
    let before = far.at();
    load.more(2 * LIMIT).await;
    assert!(far.at().since(before) < secs(120));
    load.judge();
}

async fn wait_until_lost(ledger: &Ledger) {
    let mut events = ledger.events();
    while ledger.loss().is_none() {
        events.next().await.unwrap();
    }
}

/// All attempts began with the first host, and it had all of their time: the second was never tried.
#[tokio::test]
async fn a_host_that_hangs_keeps_nobody_from_the_next_one() {
    let postgres = Postgres::start();
    // The kernel accepts connections, and nobody reads them.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let (hung, works) = (hung.local_addr().unwrap(), postgres.server.address());
    let (database, password) = (&postgres.database, "s3cret");
    let url = format!("postgres://postgres:{password}@{hung},{works}/{database}");
    let mut owner = Owner::of(&open(&url));
    let rule = sliding(5, secs(10));
    let before = owner.ledger.at();
    while owner.ledger.loss().is_some() || take(&mut owner, &rule).await.is_err() {
        tokio::task::yield_now().await;
        assert!(owner.ledger.at().since(before) < secs(10));
    }
    let nobody = format!("postgres://postgres:{password}@{hung},{hung}/{database}");
    let address = PostgresAddress::parse(&nobody).unwrap();
    let (ledger, why) =
        Ledger::postgres_or_lost(&address, Clock::System, &NetworkedOptions::default()).await;
    let mut why = why.unwrap();
    let mut events = ledger.events();
    let mut asker = Owner::of(&ledger);
    // The reason is known when all hosts were tried.
    while !why.contains("no connection within") {
        assert!(take(&mut asker, &rule).await.is_err());
        drop(tokio::time::timeout(std::time::Duration::from_millis(50), events.next()).await);
        why = ledger.loss_reason().unwrap();
    }
    assert!(why.contains(&format!("{hung}: no connection")), "{why}");
    assert!(!why.contains(password), "{why}");
}

async fn take(
    owner: &mut Owner,
    rule: &std::sync::Arc<tollgate_core::limit::Rule>,
) -> Result<(), tollgate_ledger::StoreLost> {
    let ask = owner.ask(smallvec![term("x", rule)]);
    owner.ledger.offer(vec![ask]).await.map(drop)
}

/// Three owners use an hour's quota while the server stops at once and comes back.
#[tokio::test]
async fn a_quota_of_an_hour_is_used_up_and_not_exceeded_across_a_stop() {
    let mut server = PostgresServer::start(&[]);
    let ledgers = [0; 3].map(|_| open(&server.url("postgres")));
    let used = use_up_quota(&ledgers, 300, async |_| {
        server.stop("immediate");
        server.restart();
    })
    .await;
    // What was granted when it stopped and nobody heard of is not used: one per owner.
    assert!((297..=300).contains(&used), "{used} of 300");
}

/// A standby that confirms every commit, and the address of both.
fn with_synchronous_standby() -> (PostgresServer, PostgresServer, String) {
    let server = PostgresServer::start(&[]);
    let standby = server.standby();
    let alter = "ALTER SYSTEM SET synchronous_standby_names = '*'";
    assert_eq!(server.sql("postgres", alter), "ALTER SYSTEM");
    let _reloaded = server.sql("postgres", "SELECT pg_reload_conf()");
    let sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    let mut tries = 0..600;
    while server.sql("postgres", sync) != "1" {
        assert!(tries.next().is_some(), "the standby does not follow");
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    let (one, two) = (server.address(), standby.address());
    let url = format!("postgres://postgres@{one},{two}/postgres?target_session_attrs=read-write");
    (server, standby, url)
}

/// Whatever was granted is on the standby: a day's quota goes on counting where it was.
#[tokio::test]
async fn a_promotion_of_a_synchronous_standby_is_exact() {
    let (mut server, standby, url) = with_synchronous_standby();
    let mut owner = Owner::of(&open(&url));
    let rule = sliding(5, secs(86_400));
    for _ in 0..3 {
        let permit = owner.take(smallvec![term("day", &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
    }
    owner.wait_settled().await;
    server.kill();
    standby.promote();
    let alter = "ALTER SYSTEM RESET synchronous_standby_names";
    assert_eq!(standby.sql("postgres", alter), "ALTER SYSTEM");
    let _reloaded = standby.sql("postgres", "SELECT pg_reload_conf()");
    let mut other = Owner::of(&open(&url));
    let mut granted = 0;
    let mut events = other.ledger.events();
    for taker in [&mut other, &mut owner] {
        loop {
            let ask = taker.ask(smallvec![term("day", &rule)]);
            match taker.ledger.offer(vec![ask]).await {
                Ok(decided) if is_granted(&decided) => granted += 1,
                Ok(_) => break,
                // The first address is gone.
                Err(_) => {
                    let wait = std::time::Duration::from_millis(50);
                    drop(tokio::time::timeout(wait, events.next()).await);
                }
            }
        }
    }
    assert_eq!(granted, 2);
}

fn is_granted(decided: &tollgate_ledger::OfferVerdicts) -> bool {
    let verdict = decided.verdicts.first();
    matches!(verdict, Some((_, tollgate_core::ask::Verdict::Go { .. })))
}

/// The standby that must confirm hangs: nothing is granted until it confirms.
#[tokio::test]
async fn a_synchronous_standby_that_hangs_stops_permits_until_it_confirms() {
    let (_server, standby, url) = with_synchronous_standby();
    let mut owner = Owner::of(&open(&url));
    let rule = sliding(500, secs(86_400));
    owner.take(smallvec![term("day", &rule)]).await.unwrap();
    let receiver = standby.sql("postgres", "SELECT pid FROM pg_stat_wal_receiver");
    let receiver = rustix::process::Pid::from_raw(receiver.parse().unwrap()).unwrap();
    rustix::process::kill_process(receiver, rustix::process::Signal::STOP).unwrap();
    let mut events = owner.ledger.events();
    while owner.ledger.loss().is_none() {
        let ask = owner.ask(smallvec![term("day", &rule)]);
        if let Ok(decided) = owner.ledger.offer(vec![ask]).await {
            assert!(!is_granted(&decided), "granted without the standby");
        }
    }
    rustix::process::kill_process(receiver, rustix::process::Signal::CONT).unwrap();
    loop {
        let ask = owner.ask(smallvec![term("day", &rule)]);
        match owner.ledger.offer(vec![ask]).await {
            Ok(decided) if is_granted(&decided) => return,
            Ok(_) | Err(_) => {
                let wait = std::time::Duration::from_millis(50);
                drop(tokio::time::timeout(wait, events.next()).await);
            }
        }
    }
}

/// The disk of the server is full. It may stop by itself, and is started again when there is room.
#[tokio::test]
async fn a_server_whose_disk_is_full_keeps_the_limit() {
    let mut server = PostgresServer::start_on_small_disk(100)
        .expect("this user may not mount a file system: run as root");
    let ledgers = [0; 2].map(|_| open(&server.url("postgres")));
    let load = Load::start(&ledgers);
    load.more(2 * LIMIT).await;
    let other = server.folder().join("other");
    let mut file = std::fs::File::create(&other).unwrap();
    let full = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    // What is allocated already is used up before.
    let fill = "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    assert!(server.try_sql("postgres", fill).is_err());
    wait_until_lost_or(&ledgers[0], 4 * LIMIT, &load).await;
    // The space comes back when the file is closed too.
    drop(file);
    std::fs::remove_file(&other).unwrap();
    server.restart();
    load.more(2 * LIMIT).await;
    load.judge();
}

/// Rows are replaced in pages that exist, so a full disk may go unnoticed for a while.
async fn wait_until_lost_or(ledger: &Ledger, calls: u64, load: &Load) {
    let until = load.arrived() + calls;
    let wait = async {
        while ledger.loss().is_none() && load.arrived() < until {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "neither lost nor used");
}
