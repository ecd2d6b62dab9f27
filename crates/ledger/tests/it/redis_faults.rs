//! What happens to a redis-server under load, and what its ledger makes of it. The provider's own
//! log judges.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use smallvec::smallvec;
use tollgate_core::ask::Verdict;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Ledger, NetworkedOptions, OfferVerdicts, StoreLost};
use tollgate_sim::fault_proxy::{FaultProxy, Flow};
use tollgate_sim::test_host::TempFolder;
use tollgate_sim::test_servers::RedisServer;

use crate::backend::{Backend, Owner, arrived, secs, sliding, term};
use crate::load::{LIMIT, Load};
use crate::redis_server::Redis;

/// Three owners under load.
pub(crate) fn load(redis: &Redis) -> (Vec<Ledger>, Load) {
    let ledgers: Vec<Ledger> = (0..3).map(|_| redis.ledger()).collect();
    let load = Load::start(&ledgers);
    (ledgers, load)
}

pub(crate) fn send(server: &RedisServer, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let reply = server.command(&words).unwrap();
    assert!(reply.starts_with('+'), "{command}: {reply}");
}

/// Sends a command on a thread of its own, and returns the reply when it comes.
fn say_elsewhere(server: &RedisServer, words: &'static [u8]) -> JoinHandle<String> {
    let address = server.address();
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(words).unwrap();
        let mut reply = [0; 256];
        let length = stream.read(&mut reply).unwrap();
        String::from_utf8_lossy(&reply[..length]).into_owned()
    })
}

/// Nothing that it counted is on a disk. What it granted last is unknown to everybody but the owners.
#[tokio::test]
async fn a_killed_server_without_a_disk_keeps_the_limit() {
    let mut redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    redis.server.kill();
    redis.server.restart();
    load.more(2 * LIMIT).await;
    load.judge();
}

#[tokio::test]
async fn a_server_that_pauses_keeps_the_limit() {
    let redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    send(&redis.server, "CLIENT PAUSE 1500 ALL");
    load.more(2 * LIMIT).await;
    load.judge();
}

/// A blocked server replies to nobody, and then to all at once.
#[tokio::test]
async fn a_server_that_is_blocked_keeps_the_limit() {
    let redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    let words = b"*3\r\n$5\r\nDEBUG\r\n$5\r\nSLEEP\r\n$3\r\n1.2\r\n";
    let blocked = say_elsewhere(&redis.server, words);
    load.more(2 * LIMIT).await;
    load.judge();
    assert_eq!(blocked.join().unwrap(), "+OK\r\n");
}

/// A script of another program runs and runs: the server says BUSY until it is ended.
#[tokio::test]
async fn a_busy_server_keeps_the_limit() {
    let redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    send(&redis.server, "CONFIG SET busy-reply-threshold 100");
    load.more(2 * LIMIT).await;
    let words = b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n";
    let endless = say_elsewhere(&redis.server, words);
    // It can be ended as soon as the server says that it is busy.
    while !redis
        .server
        .command(&["SCRIPT", "KILL"])
        .is_ok_and(|reply| reply.starts_with('+'))
    {
        tokio::task::yield_now().await;
    }
    assert!(endless.join().unwrap().starts_with('-'));
    load.more(2 * LIMIT).await;
    load.judge();
}

/// Scripts that the server has forgotten are sent again.
#[tokio::test]
async fn a_server_without_its_scripts_gets_them_again() {
    let redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    send(&redis.server, "SCRIPT FLUSH");
    load.more(2 * LIMIT).await;
    load.judge();
}

/// The server's identity stays, its rows are gone.
#[tokio::test]
async fn a_flushed_server_keeps_the_limit() {
    let redis = Redis::start();
    let (_ledgers, load) = load(&redis);
    for _ in 0..2 {
        load.more(2 * LIMIT).await;
        send(&redis.server, "FLUSHALL");
    }
    load.more(2 * LIMIT).await;
    load.judge();
}

/// The server has granted, and nobody hears of it.
#[tokio::test]
async fn replies_that_are_lost_after_the_commit_keep_the_limit() {
    let redis = Redis::start();
    let proxy = FaultProxy::start(redis.server.address(), 1).await.unwrap();
    let far = redis.open_at(&format!("redis://{}", proxy.address()));
    let near = redis.ledger();
    let load = Load::start(&[far, near]);
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

/// A former master accepts no writes, and leads nobody on.
#[tokio::test]
async fn a_server_that_becomes_a_replica_and_a_master_again_keeps_the_limit() {
    let redis = Redis::start();
    let (ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    send(&redis.server, "REPLICAOF 127.0.0.1 1");
    let before = load.arrived();
    wait_until_lost(&ledgers[0]).await;
    // What was granted before the server changed may still arrive.
    assert!(load.arrived() <= before + LIMIT);
    send(&redis.server, "REPLICAOF NO ONE");
    load.more(2 * LIMIT).await;
    load.judge();
}

pub(crate) async fn wait_until_lost(ledger: &Ledger) {
    let mut events = ledger.events();
    while ledger.loss().is_none() {
        events.next().await.unwrap();
    }
}

/// The replica lacks what was counted last when it takes over the master's address.
#[tokio::test]
async fn a_replica_that_is_behind_and_takes_over_keeps_the_limit() {
    let mut redis = Redis::start();
    let replica = RedisServer::start(&[]);
    let proxy = FaultProxy::start(redis.server.address(), 1).await.unwrap();
    let port = proxy.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    let (_ledgers, load) = load(&redis);
    load.more(2 * LIMIT).await;
    while !replica
        .command(&["INFO", "replication"])
        .unwrap()
        .contains("master_link_status:up")
    {
        load.more(1).await;
    }
    // From here on the replica learns nothing.
    proxy.update(|faults| faults.down.flow = Flow::Drop);
    load.more(LIMIT / 2).await;
    let address = redis.server.address();
    redis.server.kill();
    send(&replica, "REPLICAOF NO ONE");
    send(&replica, &format!("CONFIG SET port {}", address.port()));
    load.more(2 * LIMIT).await;
    load.judge();
}

/// What limits count must not be deleted to make room for something else.
#[tokio::test]
async fn a_server_that_evicts_keys_is_not_used_until_it_no_longer_does() {
    let mut redis = Redis::start();
    redis.server =
        RedisServer::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let address = RedisAddress::parse(&redis.server.url()).unwrap();
    let (ledger, why) = Ledger::redis_or_lost(&address, redis.clock(), &redis.options()).await;
    let why = why.unwrap();
    assert!(why.contains("set maxmemory-policy noeviction"), "{why}");
    assert!(ledger.loss().is_some());
    let mut events = ledger.events();
    send(&redis.server, "CONFIG SET maxmemory-policy noeviction");
    let mut owner = Owner::numbered(&ledger, 1);
    let rule = sliding(1, secs(10));
    let ask = owner.ask(smallvec![term("x", &rule)]);
    // Somebody has to ask before the store is tried again.
    if owner.ledger.offer(vec![ask]).await.is_err() {
        while ledger.loss().is_some() {
            events.next().await.unwrap();
        }
    }
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok());
}

/// A day's quota: the store forgets what was used, the host does not.
#[tokio::test]
async fn a_wiped_store_is_full_and_a_new_one_is_empty() {
    let folder = TempFolder::new("state");
    let mut redis = Redis::start().patient();
    redis.state_dir = Some(folder.path().to_owned());
    let rule = sliding(500, secs(86_400));
    {
        let mut owner = Owner::new(&redis, 1);
        let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
        owner.settle(&permit, arrived());
        owner.wait_settled().await;
    }
    send(&redis.server, "FLUSHALL");
    let mut owner = Owner::new(&redis, 2);
    assert!(
        owner.take(smallvec![term("x", &rule)]).await.is_err(),
        "wiped"
    );
    send(&redis.server, "FLUSHALL");
    redis.state_dir = None;
    let mut owner = Owner::new(&redis, 3);
    assert!(owner.take(smallvec![term("x", &rule)]).await.is_ok(), "new");
}

/// A host that is new makes a wiped store look like one that is in use. The old one had been granted
/// again what it had used: 5 of 3 in an hour.
#[tokio::test]
async fn a_wiped_store_that_a_new_host_uses_is_full_for_the_others() {
    let redis = Redis::start().patient();
    let rule = sliding(3, secs(3_600));
    let mut old = Owner::new(&redis, 1);
    for _ in 0..2 {
        let permit = old.take(smallvec![term("x", &rule)]).await.unwrap();
        old.settle(&permit, arrived());
    }
    old.wait_settled().await;
    send(&redis.server, "FLUSHALL");
    let mut new = Owner::new(&redis, 2);
    new.take(smallvec![term("x", &rule)]).await.unwrap();
    for owner in [&mut old, &mut new] {
        for cell in ["x", "y"] {
            let taken = owner.take(smallvec![term(cell, &rule)]).await;
            assert!(taken.is_err(), "{cell}");
        }
    }
}

/// The same, and the old host was not running meanwhile: its state folder knows whose rows it used.
#[tokio::test]
async fn a_wiped_store_that_a_new_host_uses_is_full_for_a_host_that_returns() {
    let folder = TempFolder::new("state");
    let mut redis = Redis::start().patient();
    let rule = sliding(3, secs(3_600));
    redis.state_dir = Some(folder.path().to_owned());
    {
        let mut old = Owner::new(&redis, 1);
        let permit = old.take(smallvec![term("x", &rule)]).await.unwrap();
        old.settle(&permit, arrived());
        old.wait_settled().await;
    }
    send(&redis.server, "FLUSHALL");
    redis.state_dir = None;
    let mut new = Owner::new(&redis, 2);
    new.take(smallvec![term("x", &rule)]).await.unwrap();
    redis.state_dir = Some(folder.path().to_owned());
    for owner in [&mut Owner::new(&redis, 3), &mut new] {
        let taken = owner.take(smallvec![term("x", &rule)]).await;
        assert!(taken.is_err(), "wiped");
    }
}

/// A permit of a long limit is handed out when the replica has it, and not before.
#[tokio::test]
async fn a_permit_of_a_long_limit_waits_for_the_replica() {
    let redis = Redis::start().patient();
    let replica = RedisServer::start(&[]);
    let port = redis.server.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    let mut tries = 0..60;
    while redis.server.command(&["WAIT", "1", "1000"]).unwrap() != ":1\r\n" {
        assert!(tries.next().is_some(), "the replica does not follow");
    }
    let mut owner = Owner::new(&redis, 1);
    let long = sliding(500, secs(86_400));
    owner.take(smallvec![term("x", &long)]).await.unwrap();
    // It neither reads nor confirms, and stays connected.
    signal(&replica, Signal::STOP);
    let mut ask = pin_offer(&mut owner, &long);
    let waited = tokio::time::timeout(Duration::from_millis(1_000), &mut ask).await;
    if let Ok(offered) = waited {
        assert!(!is_granted(offered), "granted without the replica");
    }
    signal(&replica, Signal::CONT);
    drop(ask);
    let mut events = owner.ledger.events();
    while !is_granted(pin_offer(&mut owner, &long).await) {
        // A grant that came too late to be used was given back: no event follows.
        drop(tokio::time::timeout(Duration::from_millis(50), events.next()).await);
    }
}

/// A master with a replica that follows it.
pub(crate) fn with_replica() -> (Redis, RedisServer) {
    let redis = Redis::start();
    let replica = RedisServer::start(&[]);
    let port = redis.server.address().port();
    send(&replica, &format!("REPLICAOF 127.0.0.1 {port}"));
    while redis.server.command(&["WAIT", "1", "1000"]).unwrap() != ":1\r\n" {}
    (redis, replica)
}

/// Writes that wait for a replica have a connection of their own. If that one lost replies, every
/// call of a long limit failed from then on, and the store was lost and back with each of them.
#[tokio::test]
async fn a_connection_that_waits_for_replicas_and_lost_replies_is_replaced() {
    let (redis, _replica) = with_replica();
    let proxy = FaultProxy::start(redis.server.address(), 1).await.unwrap();
    let far = redis.open_at(&format!("redis://{}", proxy.address()));
    let mut owner = Owner::of(&far);
    let long = sliding(3_000, secs(3_600));
    for _ in 0..2 {
        owner.take(smallvec![term("x", &long)]).await.unwrap();
    }
    proxy.update(|faults| faults.down.flow = Flow::Drop);
    let mut events = far.events();
    while far.loss().is_none() {
        drop(pin_offer(&mut owner, &long).await);
    }
    proxy.clear();
    let before = far.at();
    while !is_granted(pin_offer(&mut owner, &long).await) {
        drop(tokio::time::timeout(Duration::from_millis(50), events.next()).await);
        assert!(far.at().since(before) < secs(120));
    }
}

/// A store that can be read and not written (no memory is free) is not back with every read: `local-share` waits until a loss
/// has lasted for a while.
#[tokio::test]
async fn a_store_that_can_only_be_read_stays_lost() {
    let redis = Redis::start();
    let ledger = redis.ledger();
    let mut owner = Owner::of(&ledger);
    let rule = sliding(1_000, secs(1));
    let permit = owner.take(smallvec![term("x", &rule)]).await.unwrap();
    send(&redis.server, "CONFIG SET maxmemory 1");
    let mut events = ledger.events();
    while ledger.loss().is_none() {
        drop(pin_offer(&mut owner, &rule).await);
    }
    // It waits to be written, and is tried again and again.
    owner.settle(&permit, arrived());
    // Longer than the silence after which a node reads the rows again.
    let until = ledger.at() + secs(12);
    while ledger.at() < until {
        assert!(
            ledger.loss().is_some(),
            "back, although nothing can be written"
        );
        drop(tokio::time::timeout(Duration::from_millis(20), events.next()).await);
    }
    send(&redis.server, "CONFIG SET maxmemory 0");
    while !is_granted(pin_offer(&mut owner, &rule).await) {
        drop(tokio::time::timeout(Duration::from_millis(50), events.next()).await);
        assert!(ledger.at() < until + secs(30), "it does not come back");
    }
}

/// A replica that hangs closed every provider, and the store was lost and back in turns. Only what
/// must be on the replica waits for it, and stays lost until it confirms.
#[tokio::test]
async fn a_replica_that_hangs_stops_only_providers_with_long_limits() {
    let (redis, replica) = with_replica();
    // The wait for a replica ends by itself: a longer deadline only keeps a busy machine from being taken for a loss.
    let options = NetworkedOptions {
        deadline: secs(5),
        ..redis.options()
    };
    let ledger = redis.open_with(&redis.server.url(), &options);
    let (mut owner, mut asker) = (Owner::of(&ledger), Owner::of(&ledger));
    let (long, short) = (sliding(3_000, secs(3_600)), sliding(1_000, secs(1)));
    let other = ledger.provider("other");
    asker.ledger = other.clone();
    let mut take_short = async || asker.take(smallvec![term("y", &short)]).await.is_ok();
    let mut events = ledger.events();
    // The replica of a busy machine may be too slow for the first write.
    while !is_granted(pin_offer(&mut owner, &long).await) {
        drop(tokio::time::timeout(Duration::from_millis(50), events.next()).await);
    }
    assert!(take_short().await);
    signal(&replica, Signal::STOP);
    while owner.ledger.loss().is_none() {
        assert!(!is_granted(pin_offer(&mut owner, &long).await));
        assert!(take_short().await, "another provider");
    }
    let until = ledger.at() + secs(3);
    while ledger.at() < until {
        assert!(take_short().await, "another provider");
        assert!(owner.ledger.loss().is_some(), "back without the replica");
        assert!(other.loss().is_none());
        drop(tokio::time::timeout(Duration::from_millis(20), events.next()).await);
    }
    signal(&replica, Signal::CONT);
    while !is_granted(pin_offer(&mut owner, &long).await) {
        // A grant that came too late to be used was given back: no event follows.
        drop(tokio::time::timeout(Duration::from_millis(50), events.next()).await);
    }
    assert!(ledger.loss().is_none());
}

pub(crate) fn signal(server: &RedisServer, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

pub(crate) fn is_granted(offered: Result<OfferVerdicts, StoreLost>) -> bool {
    let verdicts = offered.map_or_else(|_| Vec::new(), |offered| offered.verdicts);
    matches!(verdicts.first(), Some((_, Verdict::Go { .. })))
}

pub(crate) fn pin_offer(
    owner: &mut Owner,
    rule: &std::sync::Arc<tollgate_core::limit::Rule>,
) -> std::pin::Pin<Box<tollgate_ledger::PendingOffer>> {
    let ask = owner.ask(smallvec![term("x", rule)]);
    Box::pin(owner.ledger.offer(vec![ask]))
}
