//! Compares `fresh` in `rfc9111` mode with an independent implementation of the same rules, the
//! crate `http-cache-semantics`, over every relevant combination. Where the two differ, a rule of
//! this file says why; a difference without a rule fails.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use http::{Request, Response};
use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};
use tollgate_core::fresh::{
    Demand, FreshnessDecision, FreshnessMode, FreshnessRule, Headers, ResponseTimes,
    StoreCandidate, check_storable,
};
use tollgate_core::time::{Span, Wall};

/// Sun, 15 Nov 2026 12:00:00 GMT.
const GOT: u64 = 1_794_744_000;

const CONTROLS: [&str; 17] = [
    "",
    "max-age=100",
    "max-age=0",
    "max-age=x",
    "public",
    "public, max-age=100",
    "s-maxage=100",
    "s-maxage=10, max-age=1000",
    "no-cache",
    "no-cache, max-age=100",
    "no-store",
    "no-store, max-age=100",
    "private",
    "private, max-age=100",
    "max-age=100, must-revalidate",
    "max-age=100, proxy-revalidate",
    "max-age=100, must-understand",
];

const DATES: [(&str, &str); 5] = [
    ("", ""),
    ("expires", "Sun, 15 Nov 2026 12:01:40 GMT"),
    ("expires", "Sun, 15 Nov 2026 11:00:00 GMT"),
    ("expires", "0"),
    ("last-modified", "Sun, 15 Nov 2026 11:00:00 GMT"),
];

const ASKS: [(&str, &str); 8] = [
    ("", ""),
    ("cache-control", "no-cache"),
    ("cache-control", "max-age=20"),
    ("cache-control", "min-fresh=60"),
    ("cache-control", "max-stale"),
    ("cache-control", "max-stale=20"),
    ("cache-control", "only-if-cached"),
    ("pragma", "no-cache"),
];

const STATUSES: [u16; 8] = [200, 204, 206, 302, 404, 410, 403, 503];

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Case {
    status: u16,
    control: &'static str,
    date: (&'static str, &'static str),
    cookie: bool,
    authorized: bool,
    ask: (&'static str, &'static str),
    /// Half seconds since its receipt, never a whole second: the edges are tested elsewhere.
    later: u64,
}

struct Lines(Vec<(&'static str, &'static str)>);

impl Headers for Lines {
    fn each(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for (found, value) in &self.0 {
            if *found == name {
                visit(value.as_bytes());
            }
        }
    }
}

impl Case {
    fn response_headers(&self) -> Vec<(&'static str, &'static str)> {
        let cookie = if self.cookie {
            ("set-cookie", "a=b")
        } else {
            ("", "")
        };
        let control = ("cache-control", self.control);
        let lines = [
            control,
            self.date,
            cookie,
            ("date", "Sun, 15 Nov 2026 12:00:00 GMT"),
        ];
        lines
            .into_iter()
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .collect()
    }

    fn request_headers(&self) -> Vec<(&'static str, &'static str)> {
        Some(self.ask)
            .filter(|(name, _)| !name.is_empty())
            .into_iter()
            .collect()
    }

    /// May it be served without a call, by our rules?
    fn ours(&self) -> bool {
        let rule = FreshnessRule {
            mode: FreshnessMode::Rfc9111,
            ..FreshnessRule::default()
        };
        let headers = Lines(self.response_headers());
        let candidate = StoreCandidate {
            status: self.status,
            headers: &headers,
            authorization: self.authorized,
            no_store: false,
        };
        let got = Wall(GOT * 1_000_000);
        let times = ResponseTimes {
            requested: got,
            received: got,
            chosen_lifetime: Span::ZERO,
        };
        let Ok(freshness) = check_storable(&rule, &candidate, times) else {
            return false;
        };
        let demand = Demand::read(FreshnessMode::Rfc9111, &Lines(self.request_headers()));
        let now = got + Span::from_millis(self.later * 500);
        match freshness.decide(&demand, now) {
            FreshnessDecision::Fresh | FreshnessDecision::Stale { .. } => true,
            FreshnessDecision::Fetch { .. } => false,
        }
    }

    /// The same by the crate's rules.
    fn theirs(&self) -> bool {
        let mut first = Request::get("http://a/");
        if self.authorized {
            first = first.header("authorization", "x");
        }
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.response_headers() {
            response = response.header(name, value);
        }
        let mut second = Request::get("http://a/");
        for (name, value) in self.request_headers() {
            second = second.header(name, value);
        }
        let got = SystemTime::UNIX_EPOCH + Duration::from_secs(GOT);
        let (first, response) = (first.body(()).unwrap(), response.body(()).unwrap());
        let policy = CachePolicy::new_options(&first, &response, got, CacheOptions::default());
        let now = got + Duration::from_millis(self.later * 500);
        policy.is_storable()
            && matches!(
                policy.before_request(&second.body(()).unwrap(), now),
                BeforeRequest::Fresh(_)
            )
    }

    /// Why we do not serve a response that the crate would serve.
    fn why_stricter(&self) -> Option<&'static str> {
        let says = |word: &str| self.control.contains(word);
        let wants = |word: &str| self.ask.1.starts_with(word);
        if self.cookie && says("public") {
            return Some("a cookie is private, whatever `public` says about the response");
        }
        if wants("max-stale") && says("s-maxage") {
            return Some("`s-maxage` has the meaning of `proxy-revalidate` (RFC 9111, 5.2.2.10)");
        }
        if wants("max-stale") && says("proxy-revalidate") {
            return Some("`proxy-revalidate` forbids shared caches to serve stale (5.2.2.8)");
        }
        if wants("max-stale") && says("no-cache") {
            return Some(
                "`no-cache` means revalidation before every use (5.2.2.4), even with max-stale",
            );
        }
        let has_time = says("max-age") || !self.date.0.is_empty();
        if wants("max-stale") && !has_time {
            return Some("a response without lifetime and validator is not stored");
        }
        if wants("max-stale") && self.cookie {
            return Some("a response that sets a cookie is not stored");
        }
        if wants("max-stale") && self.date.1 == "0" || wants("max-stale") && says("max-age=0") {
            return Some("a response stale on receipt and without validator is not stored");
        }
        if wants("max-stale") && says("max-age=x") {
            return Some("an invalid lifetime counts as none");
        }
        if wants("max-stale") && self.date.1.contains("11:00:00") {
            return Some("a response stale on receipt and without validator is not stored");
        }
        None
    }

    /// Why we serve a response that the crate would not.
    fn why_looser(&self) -> Option<&'static str> {
        let says = |word: &str| self.control.contains(word);
        let is_dated = self.date.0 == "last-modified";
        // Its lifetime in seconds. Without explicit freshness we serve nothing that the crate would
        // not serve.
        let lifetime = match self.control {
            "s-maxage=10, max-age=1000" => 10,
            _ if says("=100") => 100,
            "max-age=0" | "max-age=x" if is_dated => 0,
            "public" if is_dated => 360,
            _ if says("max-age") || self.date.1 != "Sun, 15 Nov 2026 12:01:40 GMT" => return None,
            _ => 100,
        };
        let is_fresh = self.later < 2 * lifetime;
        let is_wanted = match self.ask.1 {
            "max-stale" => true,
            "max-stale=20" => self.later < 2 * (lifetime + 20),
            _ => false,
        };
        let is_forbidden = ["no-store", "no-cache", "private"]
            .iter()
            .any(|word| says(word));
        let is_own = self.cookie || (self.authorized && !says("public") && !says("s-maxage"));
        if is_forbidden || self.cookie || self.status == 206 || !(is_fresh || is_wanted) {
            return None;
        }
        if says("proxy-revalidate") && is_fresh && !is_own {
            return Some("`proxy-revalidate` is about stale responses only (5.2.2.8)");
        }
        let is_known = [200, 204, 302, 404, 410].contains(&self.status);
        if !is_known && (!is_own || says("must-revalidate")) {
            return Some("with explicit freshness every final status may be stored (RFC 9111, 3)");
        }
        None
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let statuses = STATUSES.into_iter();
    statuses.flat_map(|status| {
        CONTROLS.into_iter().flat_map(move |control| {
            DATES.into_iter().flat_map(move |date| {
                ASKS.into_iter().flat_map(move |ask| {
                    [1, 31, 101, 221, 100_001]
                        .into_iter()
                        .flat_map(move |later| {
                            [(false, false), (true, false), (false, true)].map(
                                move |(cookie, authorized)| Case {
                                    status,
                                    control,
                                    date,
                                    cookie,
                                    authorized,
                                    ask,
                                    later,
                                },
                            )
                        })
                })
            })
        })
    })
}

/// R-D6: nothing is served that the reference would not serve, except where a rule says why; and no
/// call is made in vain.
#[test]
fn r_d6_rfc_9111_decisions_match_the_reference_except_where_explained() {
    let mut used = 0;
    let mut rules: BTreeMap<&str, u32> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for case in cases() {
        let why = match (case.ours(), case.theirs()) {
            (ours, theirs) if ours == theirs => {
                used += u32::from(ours);
                continue;
            }
            (true, _) => case.why_looser(),
            (false, _) => case.why_stricter(),
        };
        let Some(why) = why else {
            unexplained.push(case);
            continue;
        };
        *rules.entry(why).or_default() += 1;
    }
    let few: Vec<_> = unexplained
        .iter()
        .step_by(1 + unexplained.len() / 12)
        .collect();
    assert!(few.is_empty(), "{} such as {few:#?}", unexplained.len());
    assert!(
        used > 1_000,
        "it would prove nothing if nothing were used: {used}"
    );
    assert!(rules.len() >= 4, "{rules:?}");
}

/// A shared cache never serves a private response, whatever its other headers say.
#[test]
fn private_responses_are_never_served_from_a_shared_cache() {
    for case in cases() {
        let is_own = case.cookie || case.control.contains("private");
        assert!(!(is_own && case.ours()), "{case:?}");
        assert!(
            !(case.control.contains("no-store") && case.ours()),
            "{case:?}"
        );
        assert!(!(case.status == 206 && case.ours()), "{case:?}");
    }
}
