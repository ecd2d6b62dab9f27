//! The proxied rows.
use crate::{load, peers::Site, server::Server, upstream};
use std::time::Duration;

pub async fn run(mut site: Site, only: Vec<String>) -> anyhow::Result<()> {
    let log = upstream::Log::default();
    site.upstream = upstream::start(log).await?;
    let high = "[1000000/1s, 100000000/1m]";
    let mut servers: Vec<Server> = Vec::new();
    let wants = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    if wants("nginx") {
        servers.push(site.nginx("nginx", ["", ""])?);
    }
    if wants("haproxy") {
        servers.push(site.haproxy()?);
    }
    if wants("envoy") {
        servers.push(site.envoy("Envoy", "")?);
    }
    if wants("bare") {
        servers.push(site.bare()?);
    }
    if wants("ours") {
        servers.push(site.tollgate("Tollgate", "memory:", high)?);
    }
    for s in &servers {
        load::flood(s.address, s.path, 64, Duration::from_millis(500)).await?;
    }
    for _ in 0..5 {
        for s in &servers {
            let cpu = s.cpu();
            let seen = load::flood(s.address, s.path, 64, Duration::from_millis(1500)).await?;
            let cpu = s.cpu() - cpu;
            println!(
                "{:12} {:8.0}/s cpu {:6.2} us  p50 {:6.0} p99 {:6.0} refused {} failed {} mem {:.1} busy {:.2}",
                s.name,
                seen.per_second(),
                cpu.as_secs_f64() * 1e6 / seen.answers as f64,
                seen.percentile(50.0),
                seen.percentile(99.0),
                seen.refused,
                seen.failed,
                s.memory(),
                cpu.as_secs_f64() / seen.took.as_secs_f64()
            );
        }
    }
    Ok(())
}
