//! A provider over real sockets that enforces its limits, fails on schedule, and reports
//! violations.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tollgate_sim::http::{Settings, SimProvider};
//!
//! let provider = SimProvider::start(Settings::with_rules("sliding 40/10s")?).await?;
//! println!("{}", provider.url());
//! provider.fault("outage next 2 503")?;
//! // … send requests …
//! assert_eq!(provider.report().violations, 0);
//! provider.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Promises: loopback unless configured otherwise; a request is counted when it has arrived, after
//! its uplink delay; the log is the provider's own; stopping leaves no task behind, and neither
//! does dropping.
//!
//! Never: shares counting code with the code under test, prints a caller's key.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checker::Checker;

pub mod settings;
pub mod style;
mod clock;
mod request;
mod scope;
mod state;
#[cfg(test)]
mod state_tests;
pub mod report;
mod context;
mod fault_stream;
mod body;
mod handler;
mod control;
mod serve;

pub use report::Report;
pub use request::{CALL_ID_BYTES_MAX, NAME_CHARS_MAX};
pub use serve::{CONNECTIONS_MAX, GRACE};
pub use settings::{KeyLocation, Settings};
pub use state::{ARRIVALS_MAX, FaultError, LOG_LINES_MAX, SCOPES_MAX};
pub use style::Style;

use context::ServerContext;
use serve::PortRole;

/// Why a provider could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be opened.
    #[error("could not listen on {address}; choose another one, or port 0 for a free one")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The settings plan too many faults, or one for a rule that does not exist.
    #[error(transparent)]
    Faults(#[from] FaultError),
}

/// A running provider.
#[derive(Debug)]
pub struct SimProvider {
    address: SocketAddr,
    control: Option<SocketAddr>,
    context: Arc<ServerContext>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl SimProvider {
    /// Opens the ports and begins to serve.
    ///
    /// # Errors
    /// If an address cannot be opened or the faults cannot be planned.
    pub async fn start(settings: Settings) -> Result<SimProvider, StartError> {
        let (listener, address) = listen(settings.listen).await?;
        let control = match settings.control {
            Some(wanted) => Some(listen(wanted).await?),
            None => None,
        };
        let (stop, stopping) = watch::channel(false);
        let context = Arc::new(ServerContext::open(settings, stopping)?);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve::accept(
            listener,
            Arc::clone(&context),
            PortRole::Clients,
        ));
        let control = control.map(|(listener, address)| {
            tasks.spawn(serve::accept(
                listener,
                Arc::clone(&context),
                PortRole::Control,
            ));
            address
        });
        Ok(SimProvider {
            address,
            control,
            context,
            stop,
            tasks,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the separate control plane, if there is one.
    #[must_use]
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// The address as a base URL, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Plans a fault, written as `outage now 503`.
    ///
    /// # Errors
    /// If it cannot be parsed, names a rule that does not exist, or the plan is full.
    pub fn fault(&self, line: &str) -> Result<(), FaultError> {
        let planned = line.parse()?;
        self.context
            .with_state(|state, now| state.plan(&[planned], now))
    }

    /// Clears counters and log; faults stay.
    pub fn reset(&self) {
        self.context.with_state(|state, now| state.reset(now));
    }

    /// The current report.
    #[must_use]
    pub fn report(&self) -> Report {
        self.context.report()
    }

    /// A copy of the judge of every scope, by name, for figures that the report does not have.
    #[must_use]
    pub fn judges(&self) -> Vec<(String, Checker)> {
        let records = self.context.with_state(|state, _| state.scope_records());
        records
            .into_iter()
            .map(|record| (record.name, record.checker))
            .collect()
    }

    /// Stops accepting, gives running responses [`GRACE`] to finish, and returns the last report.
    pub async fn stop(mut self) -> Report {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        self.context.report()
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
