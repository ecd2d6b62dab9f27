//! Govern calls to APIs from inside a program: the same limits, files and shared counts as the
//! gateway, without a daemon.
//!
//! # The first five minutes
//!
//! `cargo add tollgate --path tollgate/crates/tollgate --features reqwest` in a program beside a clone of the
//! repository (nothing is published), and a client whose calls are routed, cached, shared, retried and counted. Each
//! attempt, each retry and each hop of a redirect has a permit.
//!
#![cfg_attr(
    feature = "reqwest",
    doc = r#"
```
use std::time::Duration;
use tollgate::{Priority::High, Provider, Tollgate, reqwest::Governed};
# use tollgate_sim::http::{Settings, SimProvider};
# #[tokio::main]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
# let strict = SimProvider::start(Settings::with_rules("sliding 40/10s")?).await?;
let shop = Provider::new("shop").domain("api.example.org").limit(40, Duration::from_secs(10));
# let shop = shop.upstream(strict.url()); // what stands for api.example.org
let tollgate = Tollgate::builder().provider(shop)?.build().await?;
let client = Governed::new(&tollgate, reqwest::Client::builder())?;
let response = client.get("https://api.example.org/items/1").priority(High).send().await?;
assert_eq!(response.status(), 200);
# let report = strict.stop().await;
# assert_eq!((report.violations, report.accepted), (0, 1));
# Ok(())
# }
```
"#
)]
//!
//! With the feature `tower`, `tollgate::tower::GovernLayer` does the same for any HTTP client service, and
//! `tollgate::tower::GuardLayer` limits the callers of a server. An error says which limit it was, why, and when to
//! come back.
//!
//! # A client of your own
//!
//! ```
//! use tollgate::{Call, Provider, Tollgate};
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! let shop = Provider::new("shop").domain("api.example.org").limit(40, Duration::from_secs(10));
//! let tollgate = Tollgate::builder().provider(shop)?.build().await?;
//! let permit = tollgate.acquire(Call::url("https://api.example.org/items/1")).await?;
//! let response = http::Response::new("what your client received");
//! permit.report(&response);
//! # Ok(())
//! # }
//! ```
//!
//! `acquire` waits until all limits of the provider allow one more call. `report` tells Tollgate what
//! came back: a 429 pauses the provider as long as it says, failures put it to sleep. A permit that is
//! dropped counts as sent, [`CallPermit::release`] gives it back, and an `acquire` future that is
//! dropped takes nothing.
//!
//! # Providers
//!
//! From files ([`TollgateBuilder::provider_file`], [`TollgateBuilder::provider_dir`]), built in
//! ([`TollgateBuilder::preset`]) or in code ([`Provider`]): all three have the same fields, defaults and
//! checks. Every mistake is reported before the first call, with its place and a remedy.
//!
//! # Several processes
//!
//! `store("sqlite:state")` counts in a folder. All processes that open it share one quota: programs
//! with this library, gateways, and Python programs with their daemons. `memory:` is this process only.
//! With the features `redis` and `postgres`, `store("redis://host")` and `store("postgres://host/db")`
//! count for many hosts.
//!
//! # What happened
//!
//! [`Tollgate::metrics`] has the counts of each entity (what remains, 429s, hits of the cache) and
//! [`Tollgate::alerts`] what needs an operator: the same numbers as the daemon's.
//!
//! # Errors
//!
//! [`Error::limit`], [`Error::reason`] and [`Error::retry_in`] say which limit, why, and when to come
//! back; [`Error::blame`] says whose fault it is. A call that is wrong is a typed error, and nothing is
//! counted.
//!
//! # Tests of your own
//!
//! [`TollgateBuilder::clock`] and [`TollgateBuilder::dice`] take time and randomness from you: with
//! [`Clock::tokio`] in a runtime whose time is paused, hours pass in milliseconds.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Call, Clock, Provider, Tollgate, Wall};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
//! runtime.block_on(async {
//!     let slow = Provider::new("slow").limit(1, Duration::from_secs(3_600));
//!     let builder = Tollgate::builder().clock(Clock::tokio(Wall(0))).dice(7);
//!     let tollgate = builder.provider(slow)?.build().await?;
//!     drop(tollgate.acquire("slow").await?);
//!     let patient = Call::provider("slow").timeout(Duration::from_secs(86_400));
//!     let permit = tollgate.acquire(patient).await?;
//!     assert!(permit.waited() >= Duration::from_secs(3_599)); // at once on your watch
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Features
//!
//! On by default: `sqlite` (permits and cached responses in a folder), `tls` (Tollgate's own connections
//! to `https:` upstreams: logins and [`path::call`]), `cache` (cached responses). Off: `reqwest`,
//! `tower` (with `guards`), `redis`, `postgres`. Without any the library is small: a test in `crates/tidy` pins the number of
//! crates that it compiles.
//!
//! Below all this are a [`ProviderRegistry`] over a ledger and [`path::call`], which the gateway uses.
//!
//! Promises: needs no daemon, and no clock except its ledger's.
//!
//! Never: sends a call that was not counted.

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

// Lowest first: a module uses only modules above it (a test in `crates/tidy` holds it).
mod failpoint;
mod timer;
pub mod period;
mod query;
mod headers;
mod decode;
mod json_cost;
mod body_scan;
mod token_estimates;
mod client_errors;
mod cost_doubts;
mod usage_event;
mod single_flight;
pub mod caller_shares;
mod body_memory;
pub mod error;
pub mod metrics;
pub mod event;
#[cfg(feature = "redis")]
mod redis_access;
mod payload;
mod foreign;
pub mod permits;
pub mod pool;
#[cfg_attr(
    not(all(feature = "cache", feature = "sqlite")),
    allow(dead_code, reason = "the tiers that use it are not built")
)]
pub mod cache;
pub mod body;
mod reply;
mod flights;
mod credentials;
pub mod providers;
pub mod path;
#[cfg(feature = "guards")]
pub mod guards;
pub mod rate_headers;
mod embed;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod governed_call;
#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

pub use embed::{
    Call, CallPermit, Observation, Observed, Provider, SetupError, Tollgate, TollgateBuilder,
};
pub use error::{Error, Reason};
pub use foreign::{ForeignClient, RequestBody};
pub use path::{CallOptions, Source, UseCache, capacity, decide, detached_permit, permit_table};
pub use permits::{LimitReport, Permit};
pub use providers::{EntityMetrics, Options, ProviderRegistry, Unknown, UnknownEntity};
pub use tollgate_core::alert::{Alert, AlertKind, Level as AlertLevel};
pub use tollgate_core::ask::Priority;
pub use tollgate_core::health::{Class, Fault};
pub use tollgate_core::time::{Micros, Now, Span, Wall};
pub use tollgate_ledger::{Clock, ManualClock};

/// Runs every snippet of the page about libraries.
#[cfg(all(doctest, feature = "reqwest", feature = "tower"))]
#[doc = include_str!("../../../docs/libraries.md")]
mod libraries_page {}
