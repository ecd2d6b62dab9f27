//! A provider of language models over real sockets: buckets of calls and tokens per key and model.
//!
//! Promises: loopback, a free port; limits are enforced and advertised in the words of the chosen
//! dialect; the length of a completion is known only when it is over; the account of every key and
//! model is the provider's own. Stopping or dropping leaves no task behind.
//!
//! Never: shares counting code with the code under test, prints a caller's key.

pub mod account;
pub mod completion;
mod server;
pub mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tollgate_core::time::{Micros, Span};

use crate::real_time;
use account::{Account, Tier};
use wire::LlmDialect;

/// How the provider behaves.
#[derive(Clone, Debug)]
pub struct LlmSettings {
    /// Whose words it speaks.
    pub dialect: LlmDialect,
    /// The limits of every key and model.
    pub tier: Tier,
    /// How long it takes until the first token.
    pub first_token: Span,
    /// How long one token of a completion takes.
    pub token_time: Span,
    /// How long a completion gets if the request does not say.
    pub output: u64,
    /// A call whose request states no bound holds this many tokens of completion.
    pub unbounded_hold: u64,
    /// How many tokens a prompt has, in percent of a quarter of its characters: other languages have
    /// more than English.
    pub prompt_percent: u64,
}

impl LlmSettings {
    /// These words and these limits; completions take no time.
    #[must_use]
    pub fn new(dialect: LlmDialect, tier: Tier) -> LlmSettings {
        LlmSettings {
            dialect,
            tier,
            first_token: Span::ZERO,
            token_time: Span::ZERO,
            output: 16,
            unbounded_hold: 0,
            prompt_percent: 100,
        }
    }
}

/// A running provider.
#[derive(Debug)]
pub struct LlmProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What all connections use.
#[derive(Debug)]
struct Shared {
    settings: LlmSettings,
    started: tokio::time::Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tier: Tier,
    /// By key and model.
    accounts: BTreeMap<(String, String), Account>,
    /// The next calls get 529.
    overloaded: u32,
    /// Keys whose account is empty get what the dialect says of an unpaid bill.
    unpaid: Vec<String>,
    /// Requests that the provider did not take.
    bad_requests: u64,
    /// Calls of keys whose account is empty.
    unpaid_calls: u64,
}

impl LlmProvider {
    /// Begins to serve.
    ///
    /// # Errors
    /// If no port can be opened.
    pub async fn start(settings: LlmSettings) -> io::Result<LlmProvider> {
        LlmProvider::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), settings).await
    }

    /// Begins to serve at this address.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub async fn start_at(at: SocketAddr, settings: LlmSettings) -> io::Result<LlmProvider> {
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            started: real_time::now(),
            state: Mutex::new(State {
                tier: settings.tier,
                accounts: BTreeMap::new(),
                overloaded: 0,
                unpaid: Vec::new(),
                bad_requests: 0,
                unpaid_calls: 0,
            }),
            settings,
        });
        let task = tokio::spawn(server::accept(listener, Arc::clone(&shared)));
        Ok(LlmProvider {
            address,
            shared,
            task,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The tier of every key and model changes.
    pub fn change_tier(&self, tier: Tier) {
        let now = self.shared.now();
        let mut state = self.shared.state.lock();
        state.tier = tier;
        for account in state.accounts.values_mut() {
            account.change_tier(tier, now);
        }
    }

    /// The next calls get 529.
    pub fn overload(&self, calls: u32) {
        self.shared.state.lock().overloaded = calls;
    }

    /// How many of the calls that get 529 are still to come.
    #[must_use]
    pub fn overloads_left(&self) -> u32 {
        self.shared.state.lock().overloaded
    }

    /// Calls with this key get what the dialect says of an unpaid bill, until it is paid.
    pub fn set_unpaid(&self, key: &str, is_unpaid: bool) {
        let mut state = self.shared.state.lock();
        state.unpaid.retain(|known| known != key);
        if is_unpaid {
            state.unpaid.push(key.to_owned());
        }
    }

    /// The account of each key and model.
    #[must_use]
    pub fn accounts(&self) -> Vec<((String, String), Account)> {
        let state = self.shared.state.lock();
        let all = state.accounts.iter();
        all.map(|(name, account)| (name.clone(), account.clone()))
            .collect()
    }

    /// Accepted and rejected calls of all accounts.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        self.shared.counts()
    }

    /// All accounts together as JSON; `GET /-/report` has it too.
    #[must_use]
    pub fn report(&self) -> String {
        self.shared.report().to_string()
    }

    /// Calls of keys whose account is empty.
    #[must_use]
    pub fn unpaid_calls(&self) -> u64 {
        self.shared.state.lock().unpaid_calls
    }

    /// Requests that it did not take.
    #[must_use]
    pub fn bad_requests(&self) -> u64 {
        self.shared.state.lock().bad_requests
    }

    /// Time since it started.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.shared.now()
    }
}

impl Drop for LlmProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        let all = state.accounts.values();
        all.fold((0, 0), |(yes, no), one| {
            (yes + one.accepted, no + one.rejected)
        })
    }

    fn report(&self) -> serde_json::Value {
        let (accepted, rejected) = self.counts();
        let state = self.state.lock();
        let used = state.accounts.values().fold((0, 0), |sum, one| {
            (sum.0 + one.used.input, sum.1 + one.used.output)
        });
        serde_json::json!({ "accepted": accepted, "rejected": rejected,
            "input_tokens": used.0, "output_tokens": used.1, "seconds": self.now().0 / 1_000_000 })
    }

    fn now(&self) -> Micros {
        let passed = real_time::now().duration_since(self.started);
        Micros(Span::from(passed).0)
    }
}
