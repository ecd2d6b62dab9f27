//! Every rule of RFC 9111 that a shared cache must keep, and the `ttl` mode.

use super::*;

const NOW: Wall = Wall(1_794_700_800_000_000);
const TODAY: &str = "Sun, 15 Nov 2026 00:00:00 GMT";

fn secs(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

fn rfc() -> Rule {
    Rule {
        mode: Mode::Rfc9111,
        ..Rule::default()
    }
}

fn ttl(lifetime: Lifetime) -> Rule {
    Rule {
        lifetime,
        stale: secs(100),
        ..Rule::default()
    }
}

struct Case<'a> {
    rule: Rule,
    status: u16,
    lines: Vec<(&'a str, &'a [u8])>,
    authorization: bool,
    no_store: bool,
}

fn answer<'a>(rule: Rule, lines: &[(&'a str, &'a str)]) -> Case<'a> {
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

    fn keep(&self) -> Result<Kept, NotKept> {
        let answered = Answered {
            status: self.status,
            headers: &self.lines.as_slice(),
            authorization: self.authorization,
            no_store: self.no_store,
        };
        let times = Times {
            asked: NOW,
            got: NOW,
            chosen: secs(7),
        };
        keep(&self.rule, &answered, times)
    }
}

fn control(value: &str) -> Result<Kept, NotKept> {
    answer(rfc(), &[("Cache-Control", value)]).keep()
}

fn demand(value: &str) -> Demand {
    let lines = [("cache-control", value.as_bytes())];
    Demand::read(Mode::Rfc9111, &lines.as_slice())
}

fn look(kept: &Kept, demand: &Demand, later: u64) -> Look {
    kept.look(demand, NOW + secs(later))
}

const NOTHING: Demand = Demand {
    no_cache: false,
    no_store: false,
    only_if_cached: false,
    max_age: None,
    min_fresh: None,
    max_stale: None,
};

/// S8: configured lifetimes count, whatever the answer says of its own.
#[test]
fn s8_in_ttl_mode_the_configured_lifetime_counts() {
    let kept = answer(
        ttl(Lifetime::For(secs(60))),
        &[("cache-control", "no-cache, max-age=0"), ("age", "1000")],
    );
    let kept = kept.keep().unwrap();
    assert_eq!(look(&kept, &NOTHING, 59), Look::Fresh);
    assert_eq!(look(&kept, &NOTHING, 60), Look::Ask { fallback: true });
    assert_eq!(look(&kept, &NOTHING, 160), Look::Ask { fallback: false });
    assert_eq!(kept.age(NOW), secs(1000));
}

/// M11: for ever is for ever.
#[test]
fn m11_forever_does_not_end() {
    let kept = answer(ttl(Lifetime::Forever), &[]).keep().unwrap();
    let in_a_century = NOW + secs(100 * 366 * 86_400);
    assert_eq!(kept.look(&NOTHING, in_a_century), Look::Fresh);
}

#[test]
fn a_range_takes_the_lifetime_that_was_chosen() {
    let kept = answer(ttl(Lifetime::Between(secs(5), secs(10))), &[]);
    assert_eq!(kept.keep().unwrap().fresh_until, NOW + secs(7));
}

#[test]
fn in_ttl_mode_only_what_went_well_is_kept_and_absence_by_setting() {
    let rule = ttl(Lifetime::For(secs(60)));
    for status in [200, 203, 204, 301, 308] {
        let kept = answer(rule.clone(), &[]).status(status).keep();
        assert!(kept.is_ok(), "{status}");
    }
    for status in [201, 302, 400, 401, 404, 410, 429, 500, 503] {
        let kept = answer(rule.clone(), &[]).status(status).keep();
        assert_eq!(kept, Err(NotKept::Status), "{status}");
    }
    let negative = Rule {
        negative: secs(10),
        ..rule
    };
    let gone = answer(negative, &[]).status(404).keep().unwrap();
    assert_eq!(gone.fresh_until, NOW + secs(10));
}

/// What was not there yesterday may be there today: an absence stands in for nothing, unless it says
/// so itself.
#[test]
fn an_absence_is_not_used_when_it_is_old() {
    for (mode, lines, stale) in [
        (Mode::Ttl, &[][..], 0),
        (Mode::Rfc9111, &[("cache-control", "max-age=10")], 0),
        (
            Mode::Rfc9111,
            &[("cache-control", "max-age=10, stale-if-error=5")],
            5,
        ),
    ] {
        let rule = Rule {
            mode,
            negative: secs(10),
            stale: secs(1_000),
            ..ttl(Lifetime::For(secs(10)))
        };
        for status in [404, 410] {
            let kept = answer(rule.clone(), lines).status(status).keep().unwrap();
            assert_eq!(kept.stale_until, NOW + secs(10 + stale), "{status}");
        }
        let kept = answer(rule, lines).keep().unwrap();
        assert_eq!(kept.stale_until, NOW + secs(1_010));
    }
}

/// A lifetime that was made shorter holds for what is kept; one that was made longer does not.
#[test]
fn what_was_kept_lasts_no_longer_than_the_rule_of_now_lets_it() {
    let stored = |lifetime| {
        let rule = Rule {
            negative: secs(500),
            ..ttl(lifetime)
        };
        let kept = answer(rule.clone(), &[]).keep().unwrap();
        let gone = answer(rule, &[]).status(404).keep().unwrap();
        (kept, gone)
    };
    let now = Rule {
        stale: secs(5),
        ..ttl(Lifetime::For(secs(60)))
    };
    for before in [Lifetime::Forever, Lifetime::For(secs(3_600))] {
        let (kept, gone) = stored(before);
        let bound = now.bound(kept, 200, NOW);
        assert_eq!(bound.fresh_until, NOW + secs(60));
        assert_eq!(bound.stale_until, NOW + secs(65));
        assert_eq!(now.bound(gone, 404, NOW).fresh_until, NOW, "off now");
    }
    let (kept, _) = stored(Lifetime::For(secs(30)));
    assert_eq!(now.bound(kept, 200, NOW), kept);
    assert_eq!(ttl(Lifetime::Forever).bound(kept, 200, NOW), kept);
    let (kept, _) = stored(Lifetime::Between(secs(1), secs(9)));
    let range = ttl(Lifetime::Between(secs(1), secs(7)));
    assert_eq!(range.bound(kept, 200, NOW), kept, "seven were chosen");
}

/// R-D6: what is somebody's own is not kept, in either mode, and the reason is told.
#[test]
fn what_is_not_for_everyone_is_not_kept() {
    for rule in [rfc(), ttl(Lifetime::Forever)] {
        let fresh = |value| [("cache-control", value), ("etag", "\"a\"")];
        for (value, why) in [
            ("no-store, max-age=60", NotKept::NoStore),
            ("nO-StOrE", NotKept::NoStore),
            ("private, max-age=60", NotKept::Private),
            ("no-store, must-understand, max-age=60", NotKept::Status),
        ] {
            let status = if why == NotKept::Status { 599 } else { 200 };
            let kept = answer(rule.clone(), &fresh(value)).status(status).keep();
            assert_eq!(kept, Err(why), "{value}");
        }
        let cookie = [("cache-control", "max-age=60"), ("set-cookie", "a=b")];
        let cookie = answer(rule.clone(), &cookie).keep();
        assert_eq!(cookie, Err(NotKept::SetCookie));
        let mut own = answer(rule.clone(), &fresh("max-age=60"));
        own.authorization = true;
        assert_eq!(own.keep(), Err(NotKept::Authorization));
        let star = [("cache-control", "max-age=60"), ("vary", "*")];
        let star = answer(rule.clone(), &star).keep();
        assert_eq!(star, Err(NotKept::VariesOnAnything));
        let mut quiet = answer(rule.clone(), &fresh("max-age=60"));
        quiet.no_store = true;
        assert_eq!(quiet.keep(), Err(NotKept::RequestNoStore));
        let part = answer(rule, &fresh("max-age=60")).status(206).keep();
        assert_eq!(part, Err(NotKept::Partial));
    }
}

#[test]
fn the_configuration_may_pass_over_each_of_these() {
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
    let mut own = answer(rule, &lines);
    own.authorization = true;
    own.keep().unwrap();
}

#[test]
fn an_authorized_answer_is_kept_where_it_says_so() {
    for (value, is_kept) in [
        ("max-age=60", false),
        ("max-age=60, public", true),
        ("max-age=60, must-revalidate", true),
        ("s-maxage=60", true),
        ("max-age=60, proxy-revalidate", false),
    ] {
        let mut case = answer(rfc(), &[("cache-control", value)]);
        case.authorization = true;
        assert_eq!(case.keep().is_ok(), is_kept, "{value}");
    }
}

#[test]
fn freshness_is_s_maxage_then_max_age_then_expires_then_a_guess() {
    let ahead = ("expires", "Sun, 15 Nov 2026 00:01:40 GMT");
    let date = ("date", TODAY);
    let modified = ("last-modified", "Sat, 14 Nov 2026 23:43:20 GMT");
    let lifetime = |lines: &[(&str, &str)]| answer(rfc(), lines).keep().map(|kept| kept.lifetime);
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
    assert_eq!(lifetime(&[("expires", "0")]), Err(NotKept::NoTime));
    assert_eq!(lifetime(&[ahead, ahead]), Err(NotKept::NoTime));
    assert_eq!(lifetime(&[]), Err(NotKept::NoTime));
    assert_eq!(
        lifetime(&[("last-modified", "Tue, 15 Nov 1994 00:00:00 GMT"), date]),
        Ok(secs(86_400))
    );
}

#[test]
fn statuses_without_a_word_about_it_are_kept_by_their_kind() {
    let modified = [("last-modified", "Sat, 14 Nov 2026 00:00:00 GMT")];
    for (status, is_kept) in [
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
        let kept = answer(rfc(), &modified).status(status).keep();
        assert_eq!(kept.is_ok(), is_kept, "{status}");
        let explicit = [("cache-control", "max-age=5")];
        let kept = answer(rfc(), &explicit).status(status).keep();
        assert!(kept.is_ok(), "{status}");
    }
}

/// RFC 6585: answers about this one request are for nobody else, however long they claim to be good.
#[test]
fn what_is_about_one_request_is_never_kept() {
    let lines = [("cache-control", "public, max-age=60"), ("etag", "\"a\"")];
    for rule in [rfc(), ttl(Lifetime::Forever)] {
        for status in [428, 429, 431, 511] {
            let kept = answer(rule.clone(), &lines).status(status).keep();
            assert_eq!(kept, Err(NotKept::Status), "{status}");
        }
    }
}

#[test]
fn ages_of_other_caches_count_and_unreadable_ones_are_old() {
    let aged = |lines: &[(&str, &str)]| {
        let mut all = vec![("cache-control", "max-age=3600"), ("etag", "\"a\"")];
        all.extend_from_slice(lines);
        let kept = answer(rfc(), &all).keep().unwrap();
        look(&kept, &NOTHING, 0) == Look::Fresh
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
fn the_way_of_the_request_counts_as_age() {
    let lines = [("cache-control", &b"max-age=10"[..]), ("age", b"3")];
    let answered = Answered {
        status: 200,
        headers: &lines.as_slice(),
        authorization: false,
        no_store: false,
    };
    let times = Times {
        asked: NOW - secs(4),
        got: NOW,
        chosen: Span::ZERO,
    };
    let kept = keep(&rfc(), &answered, times).unwrap();
    assert_eq!(kept.age(NOW), secs(7));
    assert_eq!(kept.fresh_until, NOW + secs(3));
}

#[test]
fn old_answers_that_must_be_asked_for_are_never_a_fallback() {
    let mut rule = rfc();
    rule.stale = secs(1_000);
    for (value, fallback) in [
        ("max-age=10", true),
        ("max-age=10, must-revalidate", false),
        ("max-age=10, proxy-revalidate", false),
        ("s-maxage=10", false),
        ("max-age=10, no-cache", false),
    ] {
        let kept = answer(rule.clone(), &[("cache-control", value)]).keep();
        let kept = kept.unwrap();
        assert_eq!(look(&kept, &NOTHING, 20), Look::Ask { fallback }, "{value}");
        assert_eq!(kept.may_stand_in(NOW + secs(20)), fallback, "{value}");
        // A request cannot allow what the answer forbids.
        let allowed = Look::Stale { refresh: false };
        assert_eq!(
            look(&kept, &demand("max-stale"), 20) == allowed,
            fallback,
            "{value}"
        );
    }
}

#[test]
fn no_cache_asks_before_each_use_even_when_fresh() {
    let kept = control("no-cache, max-age=60").unwrap();
    assert_eq!(look(&kept, &NOTHING, 0), Look::Ask { fallback: false });
    let listed = control("no-cache=\"x-a\", max-age=60").unwrap();
    assert_eq!(look(&listed, &NOTHING, 0), Look::Fresh);
}

#[test]
fn old_answers_serve_while_a_new_one_is_fetched_and_if_the_provider_fails() {
    let kept = control("max-age=10, stale-while-revalidate=5, stale-if-error=20").unwrap();
    assert_eq!(look(&kept, &NOTHING, 10), Look::Stale { refresh: true });
    assert_eq!(look(&kept, &NOTHING, 15), Look::Ask { fallback: true });
    assert_eq!(look(&kept, &NOTHING, 30), Look::Ask { fallback: false });
}

#[test]
fn requests_may_ask_for_more_or_less() {
    let kept = control("max-age=60").unwrap();
    let refused = Look::Ask { fallback: false };
    assert_eq!(look(&kept, &demand("no-cache"), 1), refused);
    // Whoever asks for a newer one would rather wait.
    assert_eq!(look(&kept, &demand("max-age=0"), 1), refused);
    assert_eq!(look(&kept, &demand("max-age=5"), 6), refused);
    assert_eq!(look(&kept, &demand("max-age=5"), 5), Look::Fresh);
    assert_eq!(look(&kept, &demand("min-fresh=30"), 31), refused);
    assert_eq!(look(&kept, &demand("min-fresh=30"), 30), Look::Fresh);
    let stale = Look::Stale { refresh: false };
    assert_eq!(look(&kept, &demand("max-stale=5"), 65), stale);
    assert_eq!(look(&kept, &demand("max-stale=5"), 66), refused);
    assert!(demand("only-if-cached").only_if_cached);
}

#[test]
fn pragma_counts_only_where_nothing_newer_is_said() {
    let read = |lines: &[(&str, &str)]| {
        let lines: Vec<(&str, &[u8])> = lines.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
        Demand::read(Mode::Rfc9111, &lines.as_slice()).no_cache
    };
    assert!(read(&[("pragma", "No-Cache")]));
    assert!(!read(&[
        ("pragma", "no-cache"),
        ("cache-control", "max-age=1")
    ]));
    assert!(!read(&[("pragma", "other")]));
}

#[test]
fn in_ttl_mode_a_request_can_only_ask_for_silence() {
    let lines = [("cache-control", &b"no-cache, no-store, max-age=0"[..])];
    let demand = Demand::read(Mode::Ttl, &lines.as_slice());
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
    let kept = control("max-age=60").unwrap();
    assert_eq!(kept.age(NOW - secs(1_000)), Span::ZERO);
    assert_eq!(kept.look(&NOTHING, Wall(0)), Look::Fresh);
}
