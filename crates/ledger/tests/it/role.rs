//! The roles that tests give to child processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use smallvec::smallvec;
use tollgate_core::ask::{Ask, Outcome, ScopeId, Verdict};
use tollgate_core::health::{
    AttemptResult, BasePace, Class, Health, HealthEvent as Happened, HealthSettings,
};
use tollgate_core::limit::{Calendar, CalendarPeriod, Rule};
use tollgate_core::time::{Micros, Span};
use tollgate_ledger::postgres::PostgresAddress;
use tollgate_ledger::redis::RedisAddress;
use tollgate_ledger::{Clock, Event, Ledger, NetworkedOptions};

use crate::backend::{Owner, Permit, arrived, secs, term};
use crate::child::{reached, report};

/// Asks per offer.
const BATCH: usize = 8;

/// The sender does not use a permit that it asked for longer ago than this.
const TOO_OLD: Span = Span::from_millis(500);

const DAY: Span = Span::from_secs(86_400);

/// In a folder of this host, or on a Redis or Postgres server, with a registration that lapses soon.
fn owner(folder: &str) -> Owner {
    let options = NetworkedOptions {
        node_lease: Span::from_millis(500),
        ..NetworkedOptions::default()
    };
    if folder.starts_with("redis") {
        let address = RedisAddress::parse(folder).unwrap();
        return Owner::of(&Ledger::redis(&address, Clock::System, &options).0);
    }
    if folder.starts_with("postgres") {
        let address = PostgresAddress::parse(folder).unwrap();
        return Owner::of(&Ledger::postgres(&address, Clock::System, &options));
    }
    Owner::of(&Ledger::sqlite(folder, Clock::System).unwrap())
}

/// Takes one permit and reports it, or why the store cannot be reached.
pub(crate) async fn connect(url: &str) {
    let rule = Arc::new(Rule::sliding(5, secs(10)).unwrap());
    let mut owner = owner(url);
    let ask = owner.ask(smallvec![term("x", &rule)]);
    match owner.ledger.offer(vec![ask]).await {
        Ok(_) => report("granted", 0),
        Err(_) => report(&owner.ledger.loss_reason().unwrap_or_default(), 0),
    }
}

/// Spends a quota until it is used up; each call is one reported line.
pub(crate) async fn quota(folder: &str, limit: u64) {
    spend_by(folder, limit, OnLoss::End, |ask| {
        report("sent", ask.id.seq);
        true
    })
    .await;
}

/// Takes what a reservation covers while the disk stands still, and one more.
pub(crate) async fn ahead(folder: &str) {
    let ledger = Ledger::sqlite(folder, Clock::System).unwrap();
    let mut owner = Owner::of(&ledger);
    let day = Arc::new(Rule::sliding(1_000, DAY).unwrap());
    owner.take(smallvec![term("day", &day)]).await.unwrap();
    report("first", 0);
    for number in 1..=10 {
        owner.take(smallvec![term("day", &day)]).await.unwrap();
        report("covered", number);
    }
    let ask = owner.ask(smallvec![term("day", &day)]);
    let provider = owner.ledger.clone();
    let eleventh = tokio::spawn(async move { provider.offer(vec![ask]).await });
    // Of another provider, and decided after it.
    let mut other = Owner::of(&ledger);
    other.ledger = ledger.provider("other");
    let second = Arc::new(Rule::sliding(1_000, secs(1)).unwrap());
    for _ in 0..3 {
        other
            .take(smallvec![term("second", &second)])
            .await
            .unwrap();
    }
    report("other", 0);
    report("waits", u64::from(!eleventh.is_finished()));
    eleventh.await.unwrap().unwrap();
    report("served", 0);
}

/// Spends a quota at a provider over HTTP until it is used up. A process that is about to be killed
/// may hold the lock for longer than others wait for it.
pub(crate) async fn spend(folder: &str, limit: u64, provider: &str) {
    let mut calls = ProviderConnection::connect(provider);
    spend_by(folder, limit, OnLoss::Wait, move |ask| {
        reached("sending");
        calls.send(&format!("{}-{}", ask.id.owner.0, ask.id.seq));
        reached("sent");
        let is_answered = calls.read_response();
        reached("answered");
        is_answered
    })
    .await;
}

/// Spends a quota until the disk is full and is then killed; where one was killed before, opens what
/// it has left and spends on.
pub(crate) async fn fill(folder: &str, limit: u64) {
    let is_second = std::path::Path::new(folder).join("ledger.db-wal").exists();
    let rule = Arc::new(Rule::sliding(limit, DAY).unwrap());
    let ledger = match Ledger::sqlite(folder, Clock::System) {
        Ok(ledger) => ledger,
        Err(error) => return report(&error.with_source(), 0),
    };
    let mut owner = Owner::of(&ledger);
    let mut events = owner.ledger.events();
    for _ in 0..limit {
        let ask = owner.ask(smallvec![term("day", &rule)]);
        match owner.ledger.offer(vec![ask]).await {
            Ok(_) => report(if is_second { "went on" } else { "sent" }, 0),
            // What the next transaction needs may be missing still; then the log is moved.
            Err(_) if is_second => {
                let back = async { while events.next().await != Some(Event::Recovered) {} };
                if tokio::time::timeout(Duration::from_secs(10), back)
                    .await
                    .is_err()
                {
                    return report("lost for good", 0);
                }
            }
            Err(_) => {
                report("killed", 0);
                kill_process(getpid(), Signal::KILL).unwrap();
            }
        }
    }
}

/// What a role does when its store is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLoss {
    End,
    Wait,
}

async fn spend_by(folder: &str, limit: u64, on_loss: OnLoss, mut call: impl FnMut(&Ask) -> bool) {
    let rule = Arc::new(Rule::sliding(limit, DAY).unwrap());
    let mut owner = owner(folder);
    loop {
        let asks: Vec<_> = (0..BATCH)
            .map(|_| owner.ask(smallvec![term("day", &rule)]))
            .collect();
        let Ok(decided) = owner.ledger.offer(asks.clone()).await else {
            if on_loss == OnLoss::Wait && owner.ledger.loss().is_none_or(|loss| !loss.is_final) {
                continue; // each offer waits for the lock
            }
            report(&owner.ledger.loss_reason().unwrap_or_default(), 0);
            report("lost", 0);
            return;
        };
        for (ask, (_, verdict)) in asks.into_iter().zip(decided.verdicts) {
            if let Verdict::Go { marks } = verdict {
                let outcome = if call(&ask) { arrived() } else { unknown() };
                owner.settle(&Permit { ask, marks }, outcome);
            } else if let Verdict::Wait { after, .. } = verdict
                && after > secs(60)
            {
                report("rejected", 0);
                return;
            }
        }
    }
}

fn unknown() -> Outcome {
    Outcome::Unknown {
        age: Span::ZERO,
        late: secs(5),
    }
}

/// One connection to a provider.
struct ProviderConnection {
    stream: BufReader<TcpStream>,
}

impl ProviderConnection {
    fn connect(provider: &str) -> ProviderConnection {
        let stream = TcpStream::connect(provider).unwrap();
        stream.set_nodelay(true).unwrap();
        ProviderConnection {
            stream: BufReader::new(stream),
        }
    }

    fn send(&mut self, id: &str) {
        let head = format!("GET /x HTTP/1.1\r\nHost: p\r\nX-Call-Id: {id}\r\n\r\n");
        self.stream.get_mut().write_all(head.as_bytes()).unwrap();
    }

    /// Reads the whole response; `false`: there was none.
    fn read_response(&mut self) -> bool {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
                return false;
            }
            let head = line.trim_end().to_ascii_lowercase();
            if head.is_empty() {
                break;
            }
            if let Some(value) = head.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        self.stream.read_exact(&mut vec![0; length]).is_ok()
    }
}

/// Sends as many calls as permitted for a while, each with another network delay.
pub(crate) async fn hammer(folder: &str, limit: u64, span: Span) {
    let rule = Arc::new(Rule::sliding(limit, secs(1)).unwrap());
    let mut owner = owner(folder);
    let mut events = owner.ledger.events();
    let mut dice = u64::from(std::process::id());
    let started = owner.ledger.now().at;
    report("started", started.0);
    while owner.ledger.now().at.since(started) < span {
        let asked = owner.ledger.now().at;
        let asks: Vec<_> = (0..BATCH)
            .map(|_| owner.ask(smallvec![term("second", &rule)]))
            .collect();
        let Ok(decided) = owner.ledger.offer(asks.clone()).await else {
            pause(Span::from_millis(20)).await;
            continue;
        };
        let mut wait = None;
        let mut granted = Vec::new();
        for (ask, (_, verdict)) in asks.into_iter().zip(decided.verdicts) {
            match verdict {
                Verdict::Go { marks } => granted.push(Permit { ask, marks }),
                Verdict::Wait { after, .. } => wait = Some(wait.unwrap_or(after).max(after)),
                Verdict::Never(why) => panic!("{why:?}"),
            }
        }
        for permit in granted {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            if dice >> 62 == 0 {
                pause(Span(dice >> 53)).await;
            }
            reached("sending");
            let now = owner.ledger.now().at;
            if now.since(asked) > TOO_OLD {
                owner.settle(&permit, Outcome::Unsent);
            } else {
                report("sent", now.0);
                owner.settle(&permit, arrived());
            }
        }
        if let Some(after) = wait {
            let pause = Duration::from(after).min(Duration::from_secs(1));
            drop(tokio::time::timeout(pause, events.next()).await);
        }
    }
}

/// Takes the only permit, reports it, and returns it on the first scope event.
pub(crate) async fn hold(folder: &str, cell: &str) {
    let rule = Arc::new(Rule::in_flight(1).unwrap());
    let mut owner = owner(folder);
    let mut events = owner.ledger.events();
    let permit = owner.take(smallvec![term(cell, &rule)]).await.unwrap();
    report("held", 1);
    while !matches!(events.next().await, None | Some(Event::Scopes(_))) {}
    owner.settle(&permit, Outcome::Unsent);
    owner.wait_settled().await;
    report("given back", 1);
}

/// Panics in its first transaction, and lives on.
pub(crate) async fn panics(folder: &str) {
    let rule = Arc::new(Rule::in_flight(1).unwrap());
    let mut owner = owner(folder);
    let ask = owner.ask(smallvec![term("x", &rule)]);
    assert!(owner.ledger.offer(vec![ask]).await.is_err());
    assert!(owner.ledger.loss().is_some_and(|loss| loss.is_final));
    report("lost", 1);
    assert!(std::io::stdin().lines().next().is_some());
}

/// Calls a provider that is down, one call at a time, and reports each. Ends when the ledger
/// rejects the next call.
pub(crate) async fn outage(folder: &str) {
    let scope = ScopeId::named(&["provider", "health"]);
    let rule = Arc::new(Rule::sliding(1_000, secs(1)).unwrap());
    let mut owner = owner(folder);
    let mut health = Health::new(
        HealthSettings::default(),
        BasePace::default(),
        owner_now(&owner),
    )
    .unwrap();
    report("ready", 0);
    assert!(std::io::stdin().lines().next().is_some());
    loop {
        let mut ask = owner.ask(smallvec![term("second", &rule)]);
        ask.scopes.push(scope);
        let Ok(permit) = owner.take_ask(ask).await else {
            report("closed", 0);
            return;
        };
        let granted = owner_now(&owner);
        report("sent", granted.0);
        pause(Span::from_millis(5)).await;
        owner.settle(&permit, Outcome::Failed { age: Span::ZERO });
        let attempt = AttemptResult::new(Class::ServerError, granted);
        let actions = health.on(Happened::Completed(attempt), owner_now(&owner));
        for settle in actions.iter().filter_map(|action| action.settle(scope)) {
            owner.ledger.settle(settle);
        }
    }
}

fn owner_now(owner: &Owner) -> Micros {
    owner.ledger.now().at
}

/// For each input line, reports how many permits it gets: of five a calendar day, of five an hour,
/// and of three a second. Days end in a time zone that is so many hours ahead of UTC.
pub(crate) async fn clocks(folder: &str, zone: i8) {
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(zone));
    let calendar = Calendar::new(CalendarPeriod::Day, zone);
    let rules = [
        ("day", Rule::calendar(5, calendar).unwrap()),
        ("hour", Rule::sliding(5, secs(3_600)).unwrap()),
        ("second", Rule::sliding(3, secs(1)).unwrap()),
    ];
    let rules = rules.map(|(name, rule)| (name, Arc::new(rule)));
    let mut owner = owner(folder);
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "try");
        report("wall", owner.ledger.now().wall.0 / 1_000_000);
        for (name, rule) in &rules {
            let permits = owner.take_all(name, rule).await;
            for permit in &permits {
                owner.settle(permit, arrived());
            }
            report(name, permits.len() as u64);
        }
    }
}

/// Reports whether the folder can be opened, or the error.
pub(crate) fn open(folder: &str) {
    match Ledger::sqlite(folder, Clock::System) {
        Ok(_) => report("opened", 0),
        Err(error) => report(&error.with_source(), 0),
    }
}

async fn pause(span: Span) {
    drop(tokio::time::timeout(span.into(), std::future::pending::<()>()).await);
}
