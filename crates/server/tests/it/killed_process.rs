//! A gateway that is killed at named steps of a call, under load, verified by the provider's own
//! log.
//!
//! The gateway is a separate process: this test binary, started again. At a failpoint it reports
//! and stops, so that it is killed exactly there.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tollgate::providers::Options;
use tollgate_ledger::{Clock, Ledger, failpoint};
use tollgate_sim::http::{Settings, SimProvider};

use crate::client::within_timeout;
use crate::store_loss::LedgerFolder;
use crate::test_gateway::{TestGateway, file};

/// The role of a child process: folder, upstream, step, and how often it reaches that step before
/// it stops.
const ROLE: &str = "TOLLGATE_SERVER_CHILD";

const QUOTA: usize = 400;

/// Calls at a time: each holds a permit at most, so no kill wastes more than 1 % of the quota.
const CLIENTS: usize = 4;

/// Large enough to come in pieces.
const BODY: usize = 100_000;

/// The steps of a call: its permit is committed, its bytes are sent, the head of its response has
/// arrived, a part of its body has, and the permit is settled.
const STEPS: [&str; 6] = ["granted", "sent", "head", "mid-body", "settling", "settled"];

/// A gateway in a process of its own.
struct GatewayProcess {
    child: Child,
    address: SocketAddr,
    lines: mpsc::Receiver<String>,
}

impl GatewayProcess {
    async fn start(folder: &Path, upstream: SocketAddr, place: &str, times: u32) -> GatewayProcess {
        let folder = folder.display();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "killed_process::child_process_entry",
                "--exact",
                "--nocapture",
            ])
            .env(ROLE, format!("{folder} {upstream} {place} {times}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (tell, mut lines) = mpsc::channel(8);
        std::thread::spawn(move || {
            let said = out.lines().map_while(Result::ok);
            let said = said.filter_map(|line| line.strip_prefix('@').map(str::to_owned));
            for line in said {
                if tell.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        let address = within_timeout(lines.recv()).await.expect("an address");
        GatewayProcess {
            child,
            address: address.parse().unwrap(),
            lines,
        }
    }

    /// kill -9.
    fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a behaviour: the entry point of every child process. It does nothing without `ROLE`.
#[test]
fn child_process_entry() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words: VecDeque<&str> = role.split(' ').collect();
    let [folder, upstream, place, times] =
        std::array::from_fn(|_| words.pop_front().expect("four words"));
    stop_at(place.to_owned(), times.parse().unwrap());
    let upstream: SocketAddr = upstream.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let ledger = Ledger::sqlite(folder, Clock::System).unwrap();
        let files = [file(upstream, &format!("limits: [{QUOTA}/1d]"))];
        let test_gateway = TestGateway::start_on_ledger(ledger, &files, Options::default()).await;
        print_line(&test_gateway.address.to_string());
        std::future::pending::<()>().await;
    });
}

/// Bypasses the test harness, which captures only the print macros.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{line}").unwrap();
    out.flush().unwrap();
}

fn stop_at(place: String, times: u32) {
    let seen = AtomicU32::new(0);
    failpoint::set(Box::new(move |reached| {
        if reached == place && seen.fetch_add(1, Ordering::SeqCst) + 1 == times {
            print_line("at");
            loop {
                std::thread::park();
            }
        }
    }));
}

/// The status of one call; `None` if the gateway is gone.
async fn call(address: SocketAddr, number: usize) -> Option<u16> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let head = format!(
        "GET /x/{number} HTTP/1.1\r\nHost: g\r\nX-Call-Id: {number}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.ok()?;
    std::str::from_utf8(response.get(9..12)?).ok()?.parse().ok()
}

/// Clients that call one after the other until the quota is used up or the gateway is gone.
fn flood(address: SocketAddr, next: &Arc<AtomicUsize>) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let next = next.clone();
        clients.spawn(async move {
            while call(address, next.fetch_add(1, Ordering::Relaxed)).await == Some(200) {}
        });
    }
    clients
}

/// A quota that is spent through kills at these places, and then to its end. Returns what arrived.
async fn spend(places: &[(&str, u32)]) -> usize {
    let mut settings = Settings::with_rules("sliding 400/1d").unwrap();
    settings.body_bytes = BODY;
    let provider = SimProvider::start(settings).await.unwrap();
    let (folder, upstream) = (LedgerFolder::new(), provider.address());
    let next = Arc::new(AtomicUsize::new(0));
    for (place, times) in places {
        let mut gateway = GatewayProcess::start(folder.path(), upstream, place, *times).await;
        let clients = flood(gateway.address, &next);
        let said = within_timeout(gateway.lines.recv()).await;
        assert_eq!(said.as_deref(), Some("at"), "`{place}` was never reached");
        gateway.kill();
        within_timeout(clients.join_all()).await;
    }
    let gateway = GatewayProcess::start(folder.path(), upstream, "nowhere", 1).await;
    within_timeout(flood(gateway.address, &next).join_all()).await;
    assert_eq!(call(gateway.address, usize::MAX).await, Some(429));
    drop(gateway);
    let report = provider.stop().await;
    assert_eq!((report.violations, report.duplicates), (0, 0), "{places:?}");
    report.accepted
}

/// H9: killed at every step of a call, each time later in its life. Never above the quota, and no
/// kill wastes more than 1 % of it. `KILLS=200` is the long version.
#[tokio::test]
#[expect(
    clippy::print_stdout,
    reason = "the long version is run for its figures"
)]
async fn h9_a_gateway_killed_at_any_step_never_exceeds_and_fully_uses_a_daily_quota() {
    let kills: usize = std::env::var("KILLS").map_or(STEPS.len(), |kills| kills.parse().unwrap());
    let steps = STEPS.iter().cycle().zip((5..30).cycle()).take(kills);
    let steps: Vec<(&str, u32)> = steps.map(|(place, times)| (*place, times)).collect();
    let mut wasted = 0;
    for round in steps.chunks(STEPS.len()) {
        let arrived = spend(round).await;
        assert!(arrived <= QUOTA, "{arrived} of {QUOTA}: {round:?}");
        let lost = QUOTA - arrived;
        let most = round.len() * QUOTA / 100;
        assert!(lost <= most, "{lost} wasted by {round:?}");
        wasted += lost;
    }
    println!("{kills} kills: 0 above the quota, {wasted} permits wasted in all");
}
