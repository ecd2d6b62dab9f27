//! reqwest: bare, with reqwest-ratelimit and governor, and governed.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota};
use reqwest_middleware::ClientBuilder;
use tollgate::reqwest::Governed;
use tollgate::{Provider, Tollgate, UseCache};

use crate::server::Server;
use crate::{Effort, Row, cpu};

/// Never reached.
const MANY: u32 = 1_000_000_000;

/// governor behind reqwest-ratelimit, as its documentation shows.
struct Governor(DefaultDirectRateLimiter);

impl reqwest_ratelimit::RateLimiter for Governor {
    async fn acquire_permit(&self) {
        self.0.until_ready().await;
    }
}

/// All subjects, in interleaved rounds.
pub async fn measure(effort: Effort) -> anyhow::Result<Vec<Row>> {
    let server = Server::start()?;
    let url = format!("{}/items/1", server.url);
    let bare = reqwest::Client::new();
    let quota = Quota::per_second(NonZeroU32::new(MANY).expect("not 0"));
    let governor = Governor(DefaultDirectRateLimiter::direct(quota));
    let with_governor = ClientBuilder::new(reqwest::Client::new());
    let with_governor = with_governor.with(reqwest_ratelimit::all(governor)).build();
    let api = Provider::new("shop").domain("api.example.org").upstream(server.url.clone());
    let api = api.limit(MANY.into(), Duration::from_secs(3_600));
    let tollgate = Tollgate::builder().provider(api)?.build().await?;
    let governed = Governed::new(&tollgate, reqwest::Client::builder())?;
    let names = [
        "bare reqwest",
        "reqwest-ratelimit with governor (one process, no reaction to responses)",
        "`Governed`, `memory:` (the whole path)",
    ];
    let mut rows: Vec<Row> = names.map(|name| Row { name, rounds: Vec::new() }).into();
    let per_call = |before: f64| (cpu() - before) / effort.sockets as f64;
    for _ in 0..effort.rounds {
        let before = cpu();
        for _ in 0..effort.sockets {
            bare.get(&url).send().await?.bytes().await?;
        }
        rows[0].rounds.push(per_call(before));
        let before = cpu();
        for _ in 0..effort.sockets {
            with_governor.get(&url).send().await?.bytes().await?;
        }
        rows[1].rounds.push(per_call(before));
        let before = cpu();
        for _ in 0..effort.sockets {
            let request = governed.get("https://api.example.org/items/1");
            let request = request.cache(UseCache::No).dedup(false);
            request.send().await?.bytes().await?;
        }
        rows[2].rounds.push(per_call(before));
    }
    Ok(rows)
}
