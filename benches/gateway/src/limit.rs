//! The limit row: 100 a second, offered 1,000 a second, judged by the arrival times at the
//! upstream.

use std::time::{Duration, Instant};

use crate::Effort;
use crate::load::{CallResult, Caller};
use crate::peers::Site;
use crate::plot::Plot;
use crate::report::{Part, table};
use crate::server::Server;
use crate::upstream::{Arrival, Log};

const LIMIT: usize = 100;
/// Connections; each sends its share of the 1,000 a second.
const CALLERS: u32 = 64;

/// A local limit of Envoy: 100 tokens, filled every second.
const ENVOY_LIMIT: &str = "
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: limit
              token_bucket: { max_tokens: 100, tokens_per_fill: 100, fill_interval: 1s }
              filter_enabled: { default_value: { numerator: 100, denominator: HUNDRED } }
              filter_enforced: { default_value: { numerator: 100, denominator: HUNDRED } }";

pub async fn run(site: &Site, log: &Log, effort: Effort) -> anyhow::Result<Part> {
    // The key must have a value: nginx does not count requests without one.
    let zone = "limit_req_zone $server_port zone=z:1m rate=100r/s;";
    let servers = [
        site.nginx(
            "nginx with a burst of 100",
            [zone, "limit_req zone=z burst=100 nodelay;"],
        )?,
        site.nginx("nginx paced", [zone, "limit_req zone=z burst=20;"])?,
        site.envoy("Envoy", ENVOY_LIMIT)?,
        site.tollgate("Tollgate", "memory:", "[100/1s]", "")?,
    ];
    let seconds = effort.limit_seconds;
    let mut lines = Vec::new();
    let mut bars = Vec::new();
    let mut ours = (0, 0.0);
    for server in &servers {
        log.begin();
        offer(server, Duration::from_secs(seconds)).await?;
        let (most, used) = judge(&log.take(), seconds);
        ours = (most, used);
        lines.push(vec![
            server.name.to_owned(),
            most.to_string(),
            format!("{used:.1} %"),
        ]);
        bars.push((server.name.to_owned(), most as f64));
    }
    let mut part = Part::default();
    let peers: Vec<String> = lines[..3]
        .iter()
        .map(|line| format!("{} {}", line[0], line[1]))
        .collect();
    let (most, used) = ours;
    part.goal(
        "limit 100/s, offered 1,000/s: most calls in any second, use",
        &peers.join(", "),
        format!("{most}, {used:.1} %"),
        "≤ 100, ≥ 99.5 %",
        most <= LIMIT && used >= 99.5,
    );
    let head = ["limit of 100 a second", "most in any second", "use"];
    part.section("The limit, as the upstream saw it", table(&head, &lines));
    let title = "most requests in any second under a limit of 100";
    part.plots.push(Plot::new("limit-most", title, bars));
    Ok(part)
}

/// Sends 1,000 requests a second, whatever the responses.
async fn offer(server: &Server, span: Duration) -> anyhow::Result<()> {
    let path = server.path;
    // The last header is for Tollgate: a call that would wait longer is rejected, as by the others.
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Tollgate-Timeout: 60ms\r\n\r\n");
    let began = tokio::time::Instant::now();
    let mut tasks = Vec::new();
    for index in 0..CALLERS {
        let mut caller = Caller::connect(server.address).await?;
        let request = request.clone();
        tasks.push(tokio::task::spawn_local(async move {
            let every = Duration::from_millis(u64::from(CALLERS));
            let mut next = began + Duration::from_millis(u64::from(index));
            while next < began + span {
                tokio::time::sleep_until(next).await;
                let CallResult { .. } = caller.call(request.as_bytes()).await?;
                next += every;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// The most in any second, and how much of the limit was used, in percent.
fn judge(log: &[Arrival], seconds: u64) -> (usize, f64) {
    let arrivals: Vec<Instant> = log.iter().map(|one| one.at).collect();
    let window = Duration::from_secs(1);
    let mut most = 0;
    let mut first = 0;
    for (index, at) in arrivals.iter().enumerate() {
        while at.duration_since(arrivals[first]) >= window {
            first += 1;
        }
        most = most.max(index + 1 - first);
    }
    let allowed = LIMIT as f64 * seconds as f64;
    (most, arrivals.len() as f64 * 100.0 / allowed)
}
