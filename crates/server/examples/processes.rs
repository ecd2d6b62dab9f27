//! W6 and W7: several processes share one quota through a state folder, without a daemon, and are
//! killed meanwhile. Judged by providers over HTTP, by their own logs.
//!
//! `cargo run --release -p tollgate-server --example processes -- [w6 [SECONDS]|w7]`
//!
//! Promises: every process is this program started again, with the whole path of a call in it. Rows
//! are Markdown. Never: decides whether a test passes.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]
#![expect(clippy::disallowed_methods, reason = "it lets real time pass")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use tollgate::path::{CallOptions, CallTrace, HttpCall, Target, call};
use tollgate::{Error, Options, ProviderRegistry};
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::time::Span;
use tollgate_ledger::{Clock, Ledger};
use tollgate_sim::http::{Report, Settings, SimProvider};
use tollgate_sim::latency::{Delay, Latency};

/// Callers per process and provider: 16 calls of 25 ms at once are 640 a second, so that every
/// process alone wants more than there is.
const CALLERS: usize = 16;

/// W7's quota and kills. One percent of it is two permits.
const QUOTA: u64 = 200;
const KILLS: u64 = 10;

/// What S and T are: as the provider counts, and as a provider file says it.
const S: (&str, &str) = ("sliding 40/10s", "40/10s");
const T: (&str, &str) = (
    "bucket 50/1s burst 50",
    "{limit: 50, period: 1s, algorithm: token-bucket, burst: 50}",
);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["child", folder, files, callers, seconds] => {
            child(folder, files, callers.parse().unwrap(), seconds).await;
        }
        ["w7"] => w7().await,
        ["w6"] => w6(20).await,
        ["w6", seconds] => w6(seconds.parse().unwrap()).await,
        _ => {
            w6(20).await;
            w7().await;
        }
    }
}

async fn w6(seconds: u64) {
    println!("| W6, {seconds} s | S 40/10 s: violations | use | T 50/s: violations | use |");
    println!("|---|---|---|---|---|");
    for (name, busy, idle) in [
        ("1 process", 1, 0),
        ("2 processes", 2, 0),
        ("4 processes", 4, 0),
        ("2 processes, one has all the demand", 1, 1),
        ("4 processes, one has all the demand", 1, 3),
    ] {
        let folder = Folder::new();
        let (s, t) = (provider(S.0).await, provider(T.0).await);
        let files = [("alpha", s.address(), S.1), ("beta", t.address(), T.1)]
            .map(|(name, at, limit)| file(name, at, limit))
            .join("---\n");
        let busy = (0..busy).map(|_| start(&folder.0, &files, CALLERS, seconds));
        let idle = (0..idle).map(|_| start(&folder.0, &files, 0, seconds));
        let children: Vec<Child> = idle.chain(busy).collect();
        let ended = tokio::task::spawn_blocking(|| {
            for mut child in children {
                child.wait().unwrap();
            }
        });
        ended.await.unwrap();
        let (s, t) = (s.stop().await, t.stop().await);
        println!(
            "| {name} | {} | {} | {} | {} |",
            s.violations,
            percent(&s),
            t.violations,
            percent(&t)
        );
    }
}

/// Processes that are killed one after the other, at any instant, on a daily quota.
async fn w7() {
    let folder = Folder::new();
    let provider = provider(&format!("sliding {QUOTA}/1d")).await;
    let files = file("alpha", provider.address(), &format!("{QUOTA}/1d"));
    for kill in 0..KILLS {
        let mut child = start(&folder.0, &files, CALLERS, 600);
        let instant = Duration::from_millis(20 + kill * 37 % 180);
        tokio::time::sleep(instant).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut last = start(&folder.0, &files, CALLERS, 3);
    let ended = tokio::task::spawn_blocking(move || last.wait().unwrap());
    ended.await.unwrap();
    let report = provider.stop().await;
    let sent = report.accepted as u64;
    println!(
        "\n| W7, {KILLS} kills at any instant | sent of {QUOTA} | violations | wasted per kill |"
    );
    println!("|---|---|---|---|");
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let wasted = (QUOTA - sent.min(QUOTA)) as f64 / KILLS as f64 / QUOTA as f64 * 100.0;
    println!(
        "| kill -9, then one that goes on | {sent} | {} | {wasted:.2} % of the quota |",
        report.violations
    );
}

fn percent(report: &Report) -> String {
    let quota = report.scopes.first().and_then(|scope| scope.rules[0].quota);
    quota.map_or("none".to_owned(), |quota| format!("{:.1} %", quota.percent))
}

async fn provider(rules: &str) -> SimProvider {
    let ms = Span::from_millis;
    let latency = Latency {
        up: Delay::Lognormal {
            median: ms(5),
            sigma: 0.5,
        },
        ..Latency::constant(ms(5), ms(20), ms(0))
    };
    let settings = Settings::with_rules(rules).unwrap().latency(latency);
    SimProvider::start(settings).await.unwrap()
}

fn file(name: &str, at: SocketAddr, limit: &str) -> String {
    format!("name: {name}\nupstream: http://{at}\nlimits: [{limit}]\n")
}

/// This program again, on this folder.
fn start(folder: &Path, files: &str, callers: usize, seconds: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .arg("child")
        .args([folder.to_str().unwrap(), files])
        .args([callers.to_string(), seconds.to_string()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Calls every provider as fast as allowed, for a while or until nothing remains for a minute.
/// Without callers it makes one call each and then has no demand.
async fn child(folder: &str, files: &str, callers: usize, seconds: &str) {
    let ledger = Ledger::sqlite(folder, Clock::System).unwrap();
    let providers = files.split("---\n").map(|text| {
        let checked = ProviderFile::read("x.yaml", text)
            .unwrap()
            .check(&Environment::empty());
        checked.provider.unwrap()
    });
    let providers: Vec<_> = providers.collect();
    let names: Vec<String> = providers.iter().map(|one| one.name.clone()).collect();
    let registry = ProviderRegistry::build(providers, ledger, Options::default()).unwrap();
    let span = Duration::from_secs(seconds.parse().unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for name in names {
        for _ in 0..callers.max(1) {
            let (registry, name) = (registry.clone(), name.clone());
            tasks.spawn(
                async move { while call_provider(&registry, &name).await && callers > 0 {} },
            );
        }
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    let rest = tokio::time::sleep(span);
    if callers == 0 {
        rest.await;
    } else {
        tokio::select! { () = all => {} () = rest => {} }
    }
}

/// One call. `false`: there is nothing to be had for a long time.
async fn call_provider(registry: &ProviderRegistry, name: &str) -> bool {
    let outgoing = HttpCall {
        target: Target::Provider {
            name: name.to_owned(),
            path: "/x".to_owned(),
            query: None,
        },
        method: Method::GET,
        headers: HeaderMap::new(),
        body: Full::new(Bytes::new()),
        options: CallOptions {
            timeout: Some(Span::from_secs(30)),
            ..CallOptions::default()
        },
    };
    match call(registry, outgoing, &mut CallTrace::default()).await {
        Ok(reply) => {
            drop(reply.body.collect().await);
            true
        }
        Err(Error::NoPermit { retry_in, .. }) => {
            retry_in.is_none_or(|wait| wait < Span::from_secs(60))
        }
        Err(_) => true,
    }
}

/// A state folder that goes with the run.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Folder {
        let number = Clock::System.now().at.0;
        Folder(std::env::temp_dir().join(format!("tollgate-processes-{number}")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
