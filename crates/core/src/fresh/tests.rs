//! Every rule of RFC 9111 for a shared cache, and the `ttl` mode.

use super::*;

const NOW: Wall = Wall(1_794_700_800_000_000);
const TODAY: &str = "Sun, 15 Nov 2026 00:00:00 GMT";

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

fn rfc() -> FreshnessRule {
    FreshnessRule {
        mode: FreshnessMode::Rfc9111,
        ..FreshnessRule::default()
    }
}

fn ttl(lifetime: Lifetime) -> FreshnessRule {
    FreshnessRule {
        lifetime,
        stale: secs(100),
        ..FreshnessRule::default()
    }
}

struct Case<'a> {
    rule: FreshnessRule,
    status: u16,
    lines: Vec<(&'a str, &'a [u8])>,
    authorization: bool,
    no_store: bool,
}

fn response<'a>(rule: FreshnessRule, lines: &[(&'a str, &'a str)]) -> Case<'a> {
    let bytes = |(name, value): &(&'a str, &'a str)| (*name, value.as_bytes());
    Case {
        rule,
        status: 200,
        lines: lines.iter().map(bytes).collect(),
        authorization: false,
        no_store: false,
    }
}

impl Case<'_> {
    fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    fn check(&self) -> Result<Freshness, NotStored> {
        let candidate = StoreCandidate {
            status: self.status,
            headers: &self.lines.as_slice(),
            authorization: self.authorization,
            no_store: self.no_store,
        };
        let times = ResponseTimes {
            requested: NOW,
            received: NOW,
            chosen_lifetime: secs(7),
        };
        check_storable(&self.rule, &candidate, times)
    }
}

fn control(value: &str) -> Result<Freshness, NotStored> {
    response(rfc(), &[("Cache-Control", value)]).check()
}

fn demand(value: &str) -> Demand {
    let lines = [("cache-control", value.as_bytes())];
    Demand::read(FreshnessMode::Rfc9111, &lines.as_slice())
}

fn decide(freshness: &Freshness, demand: &Demand, later: u64) -> FreshnessDecision {
    freshness.decide(demand, NOW + secs(later))
}

const NOTHING: Demand = Demand {
    no_cache: false,
    no_store: false,
    only_if_cached: false,
    max_age: None,
    min_fresh: None,
    max_stale: None,
};

/// S8: configured lifetimes count, whatever the response's headers say.
#[test]
fn s8_in_ttl_mode_the_configured_lifetime_counts() {
    let freshness = response(
        ttl(Lifetime::For(secs(60))),
        &[("cache-control", "no-cache, max-age=0"), ("age", "1000")],
    );
    let freshness = freshness.check().unwrap();
    assert_eq!(decide(&freshness, &NOTHING, 59), FreshnessDecision::Fresh);
    assert_eq!(
        decide(&freshness, &NOTHING, 60),
        FreshnessDecision::Fetch { fallback: true }
    );
    assert_eq!(
        decide(&freshness, &NOTHING, 160),
        FreshnessDecision::Fetch { fallback: false }
    );
    assert_eq!(freshness.age(NOW), secs(1000));
}

/// M11: a lifetime of `forever` does not end.
#[test]
fn m11_forever_does_not_end() {
    let freshness = response(ttl(Lifetime::Forever), &[]).check().unwrap();
    let in_a_century = NOW + secs(100 * 366 * 86_400);
    assert_eq!(
        freshness.decide(&NOTHING, in_a_century),
        FreshnessDecision::Fresh
    );
}

#[test]
fn a_lifetime_range_uses_the_chosen_lifetime() {
    let freshness = response(ttl(Lifetime::Between(secs(5), secs(10))), &[]);
    assert_eq!(freshness.check().unwrap().fresh_until, NOW + secs(7));
}

#[test]
fn in_ttl_mode_only_successes_are_stored_and_404s_by_setting() {
    let rule = ttl(Lifetime::For(secs(60)));
    for status in [200, 203, 204, 301, 308] {
        let freshness = response(rule.clone(), &[]).status(status).check();
        assert!(freshness.is_ok(), "{status}");
    }
    for status in [201, 302, 400, 401, 404, 410, 429, 500, 503] {
        let freshness = response(rule.clone(), &[]).status(status).check();
        assert_eq!(freshness, Err(NotStored::Status), "{status}");
    }
    let negative = FreshnessRule {
        negative: secs(10),
        ..rule
    };
    let gone = response(negative, &[]).status(404).check().unwrap();
    assert_eq!(gone.fresh_until, NOW + secs(10));
}

/// A missing resource may have been created since: a 404 is never served stale, unless its headers
/// allow it.
#[test]
fn a_stored_404_is_never_served_stale() {
    for (mode, lines, stale) in [
        (FreshnessMode::Ttl, &[][..], 0),
        (
            FreshnessMode::Rfc9111,
            &[("cache-control", "max-age=10")],
            0,
        ),
        (
            FreshnessMode::Rfc9111,
            &[("cache-control", "max-age=10, stale-if-error=5")],
            5,
        ),
    ] {
        let rule = FreshnessRule {
            mode,
            negative: secs(10),
            stale: secs(1_000),
            ..ttl(Lifetime::For(secs(10)))
        };
        for status in [404, 410] {
            let freshness = response(rule.clone(), lines)
                .status(status)
                .check()
                .unwrap();
            assert_eq!(freshness.stale_until, NOW + secs(10 + stale), "{status}");
        }
        let freshness = response(rule, lines).check().unwrap();
        assert_eq!(freshness.stale_until, NOW + secs(1_010));
    }
}

/// A shortened lifetime applies to stored responses; a lengthened one does not.
#[test]
fn a_stored_response_lives_no_longer_than_the_current_rule_allows() {
    let stored = |lifetime| {
        let rule = FreshnessRule {
            negative: secs(500),
            ..ttl(lifetime)
        };
        let freshness = response(rule.clone(), &[]).check().unwrap();
        let gone = response(rule, &[]).status(404).check().unwrap();
        (freshness, gone)
    };
    let now = FreshnessRule {
        stale: secs(5),
        ..ttl(Lifetime::For(secs(60)))
    };
    for before in [Lifetime::Forever, Lifetime::For(secs(3_600))] {
        let (freshness, gone) = stored(before);
        let bound = now.limit_lifetime(freshness, 200, NOW);
        assert_eq!(bound.fresh_until, NOW + secs(60));
        assert_eq!(bound.stale_until, NOW + secs(65));
        assert_eq!(
            now.limit_lifetime(gone, 404, NOW).fresh_until,
            NOW,
            "off now"
        );
    }
    let (freshness, _) = stored(Lifetime::For(secs(30)));
    assert_eq!(now.limit_lifetime(freshness, 200, NOW), freshness);
    assert_eq!(
        ttl(Lifetime::Forever).limit_lifetime(freshness, 200, NOW),
        freshness
    );
    let (freshness, _) = stored(Lifetime::Between(secs(1), secs(9)));
    let range = ttl(Lifetime::Between(secs(1), secs(7)));
    assert_eq!(
        range.limit_lifetime(freshness, 200, NOW),
        freshness,
        "seven were chosen"
    );
}

/// R-D6: a private response is not stored, in either mode, and the reason is reported.
#[test]
fn private_responses_are_not_stored() {
    for rule in [rfc(), ttl(Lifetime::Forever)] {
        let fresh = |value| [("cache-control", value), ("etag", "\"a\"")];
        for (value, why) in [
            ("no-store, max-age=60", NotStored::NoStore),
            ("nO-StOrE", NotStored::NoStore),
            ("private, max-age=60", NotStored::Private),
            ("no-store, must-understand, max-age=60", NotStored::Status),
        ] {
            let status = if why == NotStored::Status { 599 } else { 200 };
            let freshness = response(rule.clone(), &fresh(value)).status(status).check();
            assert_eq!(freshness, Err(why), "{value}");
        }
        let cookie = [("cache-control", "max-age=60"), ("set-cookie", "a=b")];
        let cookie = response(rule.clone(), &cookie).check();
        assert_eq!(cookie, Err(NotStored::SetCookie));
        let mut own = response(rule.clone(), &fresh("max-age=60"));
        own.authorization = true;
        assert_eq!(own.check(), Err(NotStored::Authorization));
        let star = [("cache-control", "max-age=60"), ("vary", "*")];
        let star = response(rule.clone(), &star).check();
        assert_eq!(star, Err(NotStored::VariesOnAnything));
        let mut quiet = response(rule.clone(), &fresh("max-age=60"));
        quiet.no_store = true;
        assert_eq!(quiet.check(), Err(NotStored::RequestNoStore));
        let part = response(rule, &fresh("max-age=60")).status(206).check();
        assert_eq!(part, Err(NotStored::Partial));
    }
}

#[test]
fn the_configuration_may_ignore_each_reason_not_to_store() {
    let mut rule = ttl(Lifetime::For(secs(60)));
    rule.ignore = Ignore {
        private: true,
        no_store: true,
        set_cookie: true,
        authorization: true,
    };
    let lines = [
        ("cache-control", "private, no-store"),
        ("set-cookie", "a=b"),
    ];
    let mut own = response(rule, &lines);
    own.authorization = true;
    own.check().unwrap();
}

#[test]
fn an_authorized_response_is_stored_only_if_its_headers_allow_it() {
    for (value, is_stored) in [
        ("max-age=60", false),
        ("max-age=60, public", true),
        ("max-age=60, must-revalidate", true),
        ("s-maxage=60", true),
        ("max-age=60, proxy-revalidate", false),
    ] {
        let mut case = response(rfc(), &[("cache-control", value)]);
        case.authorization = true;
        assert_eq!(case.check().is_ok(), is_stored, "{value}");
    }
}

#[test]
fn freshness_is_s_maxage_then_max_age_then_expires_then_a_heuristic() {
    let ahead = ("expires", "Sun, 15 Nov 2026 00:01:40 GMT");
    let date = ("date", TODAY);
    let modified = ("last-modified", "Sat, 14 Nov 2026 23:43:20 GMT");
    let lifetime = |lines: &[(&str, &str)]| {
        response(rfc(), lines)
            .check()
            .map(|freshness| freshness.lifetime)
    };
    let cc = |value| ("cache-control", value);
    assert_eq!(
        lifetime(&[cc("s-maxage=9, max-age=50"), ahead, date]),
        Ok(secs(9))
    );
    assert_eq!(lifetime(&[cc("max-age=50"), ahead, date]), Ok(secs(50)));
    assert_eq!(lifetime(&[ahead, date]), Ok(secs(100)));
    assert_eq!(lifetime(&[ahead]), Ok(secs(100)));
    assert_eq!(lifetime(&[modified, date]), Ok(secs(100)));
    assert_eq!(lifetime(&[("expires", "0"), modified]), Ok(Span::ZERO));
    assert_eq!(lifetime(&[("expires", "0")]), Err(NotStored::NoLifetime));
    assert_eq!(lifetime(&[ahead, ahead]), Err(NotStored::NoLifetime));
    assert_eq!(lifetime(&[]), Err(NotStored::NoLifetime));
    assert_eq!(
        lifetime(&[("last-modified", "Tue, 15 Nov 1994 00:00:00 GMT"), date]),
        Ok(secs(86_400))
    );
}

#[test]
fn without_explicit_freshness_the_status_decides_storability() {
    let modified = [("last-modified", "Sat, 14 Nov 2026 00:00:00 GMT")];
    for (status, is_stored) in [
        (200, true),
        (204, true),
        (404, true),
        (410, true),
        (501, true),
        (201, false),
        (302, false),
        (403, false),
        (503, false),
        (599, false),
    ] {
        let freshness = response(rfc(), &modified).status(status).check();
        assert_eq!(freshness.is_ok(), is_stored, "{status}");
        let explicit = [("cache-control", "max-age=5")];
        let freshness = response(rfc(), &explicit).status(status).check();
        assert!(freshness.is_ok(), "{status}");
    }
}

/// RFC 6585: responses about one request are for no other, whatever lifetime they state.
#[test]
fn statuses_about_one_request_are_never_stored() {
    let lines = [("cache-control", "public, max-age=60"), ("etag", "\"a\"")];
    for rule in [rfc(), ttl(Lifetime::Forever)] {
        for status in [428, 429, 431, 511] {
            let freshness = response(rule.clone(), &lines).status(status).check();
            assert_eq!(freshness, Err(NotStored::Status), "{status}");
        }
    }
}

#[test]
fn age_headers_count_and_unreadable_ones_mean_stale() {
    let aged = |lines: &[(&str, &str)]| {
        let mut all = vec![("cache-control", "max-age=3600"), ("etag", "\"a\"")];
        all.extend_from_slice(lines);
        let freshness = response(rfc(), &all).check().unwrap();
        decide(&freshness, &NOTHING, 0) == FreshnessDecision::Fresh
    };
    assert!(aged(&[("age", "3599")]));
    assert!(!aged(&[("age", "3600")]));
    for odd in ["abc", "-1", "0.5", "7200, 0", "x, 0", "0;a=1", ""] {
        assert!(!aged(&[("age", odd)]), "{odd}");
    }
    assert!(aged(&[("age", "0"), ("age", "7200")]));
    assert!(!aged(&[("age", "7200"), ("age", "0")]));
    assert!(!aged(&[("date", "Sat, 14 Nov 2026 22:00:00 GMT")]));
    assert!(aged(&[("date", "Sun, 15 Nov 2026 09:00:00 GMT")]));
}

#[test]
fn the_request_delay_counts_as_age() {
    let lines = [("cache-control", &b"max-age=10"[..]), ("age", b"3")];
    let candidate = StoreCandidate {
        status: 200,
        headers: &lines.as_slice(),
        authorization: false,
        no_store: false,
    };
    let times = ResponseTimes {
        requested: NOW - secs(4),
        received: NOW,
        chosen_lifetime: Span::ZERO,
    };
    let freshness = check_storable(&rfc(), &candidate, times).unwrap();
    assert_eq!(freshness.age(NOW), secs(7));
    assert_eq!(freshness.fresh_until, NOW + secs(3));
}

#[test]
fn must_revalidate_responses_are_never_a_fallback() {
    let mut rule = rfc();
    rule.stale = secs(1_000);
    for (value, fallback) in [
        ("max-age=10", true),
        ("max-age=10, must-revalidate", false),
        ("max-age=10, proxy-revalidate", false),
        ("s-maxage=10", false),
        ("max-age=10, no-cache", false),
    ] {
        let freshness = response(rule.clone(), &[("cache-control", value)]).check();
        let freshness = freshness.unwrap();
        assert_eq!(
            decide(&freshness, &NOTHING, 20),
            FreshnessDecision::Fetch { fallback },
            "{value}"
        );
        assert_eq!(
            freshness.may_serve_stale(NOW + secs(20)),
            fallback,
            "{value}"
        );
        // A request cannot allow what the response forbids.
        let allowed = FreshnessDecision::Stale { refresh: false };
        assert_eq!(
            decide(&freshness, &demand("max-stale"), 20) == allowed,
            fallback,
            "{value}"
        );
    }
}

#[test]
fn no_cache_revalidates_before_each_use_even_when_fresh() {
    let freshness = control("no-cache, max-age=60").unwrap();
    assert_eq!(
        decide(&freshness, &NOTHING, 0),
        FreshnessDecision::Fetch { fallback: false }
    );
    let listed = control("no-cache=\"x-a\", max-age=60").unwrap();
    assert_eq!(decide(&listed, &NOTHING, 0), FreshnessDecision::Fresh);
}

#[test]
fn stale_responses_serve_during_refresh_and_provider_failure() {
    let freshness = control("max-age=10, stale-while-revalidate=5, stale-if-error=20").unwrap();
    assert_eq!(
        decide(&freshness, &NOTHING, 10),
        FreshnessDecision::Stale { refresh: true }
    );
    assert_eq!(
        decide(&freshness, &NOTHING, 15),
        FreshnessDecision::Fetch { fallback: true }
    );
    assert_eq!(
        decide(&freshness, &NOTHING, 30),
        FreshnessDecision::Fetch { fallback: false }
    );
}

#[test]
fn request_directives_tighten_or_relax_freshness() {
    let freshness = control("max-age=60").unwrap();
    let fetch = FreshnessDecision::Fetch { fallback: false };
    assert_eq!(decide(&freshness, &demand("no-cache"), 1), fetch);
    // A client that demands a newer response prefers to wait.
    assert_eq!(decide(&freshness, &demand("max-age=0"), 1), fetch);
    assert_eq!(decide(&freshness, &demand("max-age=5"), 6), fetch);
    assert_eq!(
        decide(&freshness, &demand("max-age=5"), 5),
        FreshnessDecision::Fresh
    );
    assert_eq!(decide(&freshness, &demand("min-fresh=30"), 31), fetch);
    assert_eq!(
        decide(&freshness, &demand("min-fresh=30"), 30),
        FreshnessDecision::Fresh
    );
    let stale = FreshnessDecision::Stale { refresh: false };
    assert_eq!(decide(&freshness, &demand("max-stale=5"), 65), stale);
    assert_eq!(decide(&freshness, &demand("max-stale=5"), 66), fetch);
    assert!(demand("only-if-cached").only_if_cached);
}

#[test]
fn pragma_counts_only_without_cache_control() {
    let read = |lines: &[(&str, &str)]| {
        let lines: Vec<(&str, &[u8])> = lines.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        Demand::read(FreshnessMode::Rfc9111, &lines.as_slice()).no_cache
    };
    assert!(read(&[("pragma", "No-Cache")]));
    assert!(!read(&[
        ("pragma", "no-cache"),
        ("cache-control", "max-age=1")
    ]));
    assert!(!read(&[("pragma", "other")]));
}

#[test]
fn in_ttl_mode_a_request_can_only_forbid_storing() {
    let lines = [("cache-control", &b"no-cache, no-store, max-age=0"[..])];
    let demand = Demand::read(FreshnessMode::Ttl, &lines.as_slice());
    assert_eq!(
        demand,
        Demand {
            no_store: true,
            ..NOTHING
        }
    );
}

#[test]
fn a_clock_that_goes_back_makes_nothing_older_or_negative() {
    let freshness = control("max-age=60").unwrap();
    assert_eq!(freshness.age(NOW - secs(1_000)), Span::ZERO);
    assert_eq!(
        freshness.decide(&NOTHING, Wall(0)),
        FreshnessDecision::Fresh
    );
}
