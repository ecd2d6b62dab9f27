//! An upstream that issues tokens and accepts only the newest ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tollgate_core::time::{Micros, Now, Span, Wall};
use tollgate_ledger::{Clock, ManualClock};

use crate::upstream::{ReceivedRequest, Reply, Upstream, reply};

/// The password that it accepts.
pub(crate) const PASSWORD: &str = "canary-password-77aa";

/// An upstream with a login at `/v4/login`.
pub(crate) struct Issuer {
    pub(crate) upstream: Upstream,
    state: Arc<IssuerState>,
}

struct IssuerState {
    logins: AtomicUsize,
    /// Accepts tokens from this one on.
    since: AtomicUsize,
    /// The status of a failed login; 0 = none fails.
    fails: AtomicU16,
    /// Rejects every token.
    refuses: AtomicBool,
    /// A login waits for one of these.
    gate: Semaphore,
}

impl Issuer {
    pub(crate) async fn start() -> Issuer {
        let state = Arc::new(IssuerState {
            logins: AtomicUsize::new(0),
            since: AtomicUsize::new(0),
            fails: AtomicU16::new(0),
            refuses: AtomicBool::new(false),
            gate: Semaphore::new(1_000),
        });
        let shared = state.clone();
        let upstream = Upstream::start(move |_, received| {
            let state = shared.clone();
            async move { state.answer(received).await }
        })
        .await;
        Issuer { upstream, state }
    }

    /// A file of the built-in preset, with its calls sent here.
    pub(crate) fn tvdb(&self, rest: &str) -> String {
        format!(
            "name: x\npreset: tvdb\nupstream: http://{}\napi_key: {PASSWORD}\n{rest}\n",
            self.upstream.address
        )
    }

    pub(crate) fn logins(&self) -> usize {
        self.state.logins.load(Ordering::SeqCst)
    }

    /// Revokes all issued tokens.
    pub(crate) fn revoke(&self) {
        self.state.since.store(self.logins() + 1, Ordering::SeqCst);
    }

    pub(crate) fn reject_all(&self) {
        self.state.refuses.store(true, Ordering::SeqCst);
    }

    /// Logins get this status; 0 = a token.
    pub(crate) fn fail_logins(&self, status: u16) {
        self.state.fails.store(status, Ordering::SeqCst);
    }

    /// Logins wait until [`Issuer::release_logins`].
    pub(crate) fn hold_logins(&self) {
        self.state.gate.forget_permits(1_000);
    }

    pub(crate) fn release_logins(&self) {
        self.state.gate.add_permits(1_000);
    }

    /// The tokens of its calls, in order.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let calls = self.upstream.requests().into_iter();
        calls
            .filter(|received| received.method == "GET")
            .map(|received| bearer(&received))
            .collect()
    }

    /// The requests to the login.
    pub(crate) fn login_requests(&self) -> Vec<ReceivedRequest> {
        let received = self.upstream.requests().into_iter();
        received
            .filter(|received| received.method == "POST")
            .collect()
    }
}

pub(crate) fn bearer(received: &ReceivedRequest) -> String {
    let value = received.headers.get("authorization");
    let text = value.map_or("", |value| value.to_str().unwrap());
    text.trim_start_matches("Bearer ").to_owned()
}

impl IssuerState {
    async fn answer(&self, received: ReceivedRequest) -> Reply {
        if received.method == "POST" && received.target.ends_with("/login") {
            return self.login(&received).await;
        }
        let number = bearer(&received).strip_prefix("token-").map(str::to_owned);
        let number: Option<usize> = number.and_then(|number| number.parse().ok());
        let is_good = number.is_some_and(|number| number >= self.since.load(Ordering::SeqCst));
        if is_good && !self.refuses.load(Ordering::SeqCst) {
            return reply(200, &[], "fine");
        }
        // As careless providers do, it repeats what it was sent.
        reply(401, &[], &format!("bad token {}", bearer(&received).len()))
    }

    async fn login(&self, received: &ReceivedRequest) -> Reply {
        let number = self.logins.fetch_add(1, Ordering::SeqCst) + 1;
        drop(self.gate.acquire().await.unwrap());
        let body: Value = serde_json::from_slice(&received.body).unwrap_or_default();
        match self.fails.load(Ordering::SeqCst) {
            0 if body["apikey"] == PASSWORD => {}
            0 => return reply(401, &[], &body.to_string()),
            status => return reply(status, &[], &body.to_string()),
        }
        let token = json!({"status": "success", "data": {"token": format!("token-{number}")}});
        reply(
            200,
            &[("content-type", "application/json")],
            &token.to_string(),
        )
    }
}

/// A manual clock, for tests that cover hours.
pub(crate) fn clock() -> (Arc<ManualClock>, Clock) {
    let clock = ManualClock::new(Now {
        at: Micros(1_000_000),
        wall: Wall(1_772_323_200_000_000),
    });
    (clock.clone(), Clock::Manual(clock))
}

pub(crate) fn minutes(minutes: u64) -> Span {
    Span::from_secs(minutes * 60)
}
