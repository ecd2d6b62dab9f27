//! Properties of `fresh` under arbitrary headers and times.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate_core::fresh::{
    ByteRange, CacheControl, ContentChange, Demand, FOREVER, Freshness, FreshnessDecision,
    FreshnessMode, FreshnessRule, Ignore, Lifetime, ResponseTimes, StoreCandidate, adapted,
    check_storable, is_not_modified, lengthened, requested_range, spread, variant_text, varies,
};
use tollgate_core::time::{Span, Wall};

const GOT: Wall = Wall(1_794_744_000_000_000);

fn config() -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(9_111),
        ..ProptestConfig::with_cases(256)
    }
}

/// A directive as it may be written, well or badly.
fn directive() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("max-age"),
        Just("s-maxage"),
        Just("no-cache"),
        Just("no-store"),
        Just("private"),
        Just("public"),
        Just("must-revalidate"),
        Just("stale-if-error"),
        Just("max-stale"),
        Just("stale-while-revalidate"),
        Just("min-fresh"),
        Just("must-understand"),
        Just("x"),
    ];
    let value = prop_oneof![
        Just(String::new()),
        (0_u64..200_000).prop_map(|n| format!("={n}")),
        (0_u64..90).prop_map(|n| format!("=\"{n}\"")),
        "=[ -~]{0,8}",
    ];
    (name, value).prop_map(|(name, value)| format!("{name}{value}"))
}

fn lines() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let control = prop::collection::vec(directive(), 0..5)
        .prop_map(|all| ("cache-control".to_owned(), all.join(", ").into_bytes()));
    let name = prop_oneof![
        Just("date"),
        Just("expires"),
        Just("last-modified"),
        Just("age"),
        Just("vary"),
        Just("etag"),
        Just("pragma"),
        Just("set-cookie"),
        Just("cache-control"),
        Just("range"),
    ];
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..24),
        Just(b"Sun, 15 Nov 2026 11:00:00 GMT".to_vec()),
        Just(b"60".to_vec()),
    ];
    let other = (name, value).prop_map(|(name, value)| (name.to_owned(), value));
    (control, prop::collection::vec(other, 0..5)).prop_map(|(control, mut others)| {
        others.push(control);
        others
    })
}

fn borrowed(lines: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    lines
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect()
}

fn rule() -> impl Strategy<Value = FreshnessRule> {
    let mode = prop_oneof![Just(FreshnessMode::Ttl), Just(FreshnessMode::Rfc9111)];
    let lifetime = prop_oneof![
        Just(Lifetime::Off),
        (0_u64..1 << 40).prop_map(|span| Lifetime::For(Span(span))),
        Just(Lifetime::Forever),
    ];
    (mode, lifetime, 0_u64..1 << 50, 0_u64..1 << 30).prop_map(
        |(mode, lifetime, stale, negative)| FreshnessRule {
            mode,
            lifetime,
            stale: Span(stale),
            negative: Span(negative),
            vary: vec![],
            ignore: Ignore::default(),
        },
    )
}

fn store(
    rule: &FreshnessRule,
    status: u16,
    headers: &[(String, Vec<u8>)],
    authorization: bool,
) -> Option<Freshness> {
    let lines = borrowed(headers);
    let candidate = StoreCandidate {
        status,
        headers: &lines.as_slice(),
        authorization,
        no_store: false,
    };
    let times = ResponseTimes {
        requested: GOT,
        received: GOT,
        chosen_lifetime: Span::from_secs(5),
    };
    check_storable(rule, &candidate, times).ok()
}

proptest! {
    #![proptest_config(config())]

    /// M11: times are in order and within what every store can hold, whatever the headers.
    #[test]
    fn m11_times_are_in_order_and_bounded(
        rule in rule(), status in 100_u16..600, headers in lines(),
    ) {
        if let Some(freshness) = store(&rule, status, &headers, false) {
            prop_assert!(freshness.fresh_until <= freshness.stale_until.max(freshness.revalidate_until));
            prop_assert!(freshness.revalidate_until >= freshness.fresh_until);
            for at in [freshness.generated_at, freshness.fresh_until, freshness.revalidate_until, freshness.stale_until] {
                prop_assert!(at <= FOREVER);
            }
            prop_assert!(freshness.generated_at <= GOT);
        }
    }

    /// A stale response does not become fresh again. A request with directives gets no response
    /// that a request without them would not get, unless it accepts stale ones.
    #[test]
    fn freshness_ends_once_and_request_directives_only_restrict(
        rule in rule(), headers in lines(), request in lines(), first in 0_u64..1 << 42, more in 0_u64..1 << 42,
    ) {
        if let Some(freshness) = store(&rule, 200, &headers, false) {
            let (early, late) = (GOT + Span(first), GOT + Span(first) + Span(more));
            let none = Demand::default();
            let demand = Demand::read(rule.mode, &borrowed(&request).as_slice());
            if freshness.decide(&none, late) == FreshnessDecision::Fresh {
                prop_assert_eq!(freshness.decide(&none, early), FreshnessDecision::Fresh);
            }
            if freshness.decide(&demand, early) == FreshnessDecision::Fresh {
                prop_assert_eq!(freshness.decide(&none, early), FreshnessDecision::Fresh);
            }
            if freshness.must_revalidate && early >= freshness.fresh_until {
                let decision = freshness.decide(&demand, early);
                prop_assert_eq!(decision, FreshnessDecision::Fetch { fallback: false }, "strict is never used old");
            }
        }
    }

    /// R-D6: a private or `no-store` response is never stored, whatever its other headers.
    #[test]
    fn r_d6_private_responses_are_never_stored(
        rule in rule(), mut headers in lines(), which in 0_usize..5,
    ) {
        let own = [("cache-control", "private"), ("set-cookie", "a=b"), ("set-cookie2", "a=b"), ("vary", "*"), ("x", "y")];
        let (name, value) = own[which];
        // A list of headers after it would be about those only.
        headers.retain(|(name, _)| name != "cache-control");
        headers.push((name.to_owned(), value.as_bytes().to_vec()));
        let authorized = which == 4;
        prop_assert_eq!(store(&rule, 200, &headers, authorized), None);
        prop_assert_eq!(store(&rule, 206, &headers, false), None, "a part is no whole");
    }

    /// A range is never empty and never past the end, whatever the request.
    #[test]
    fn a_range_lies_within_its_response(
        text in prop_oneof![
            "[ -~]{0,20}",
            "bytes=[0-9]{0,4}-[0-9]{0,4}",
            "bytes=[0-9]{18,24}-[0-9]{0,24}",
        ],
        headers in lines(), length in 0_u64..2_000,
    ) {
        let mut request = headers.clone();
        request.retain(|(name, _)| name != "range");
        request.push(("range".to_owned(), text.into_bytes()));
        match requested_range(&borrowed(&request).as_slice(), &borrowed(&headers).as_slice(), length, GOT) {
            ByteRange::Bytes(first, end) => prop_assert!(first < end && end <= length),
            ByteRange::Whole | ByteRange::Unsatisfiable => {}
        }
    }

    /// No header makes a parser fail.
    #[test]
    fn no_header_bytes_break_the_parsers(headers in lines(), request in lines()) {
        let (headers, request) = (borrowed(&headers), borrowed(&request));
        let control = CacheControl::read("cache-control", &headers.as_slice());
        prop_assert!(control.omit.len() <= 32);
        let _same = is_not_modified(&request.as_slice(), &headers.as_slice(), GOT, GOT);
        let _names = varies(&headers.as_slice(), &[]);
    }

    /// Text inside quotes is no directive.
    #[test]
    fn quoted_directives_are_ignored(inside in "[a-z=0-9, -]{0,30}") {
        let line = format!("x=\"{inside}\", max-age=7");
        let lines = [("cache-control", line.as_bytes())];
        let control = CacheControl::read("cache-control", &lines.as_slice());
        prop_assert_eq!(control.max_age, Some(Span::from_secs(7)));
        prop_assert!(!control.no_store && !control.private && control.omit.is_empty());
    }

    /// Languages mean the same in any order and with any spaces.
    #[test]
    fn the_order_of_accept_language_does_not_matter(mut languages in prop::collection::vec("[a-z]{2}(;q=0\\.[1-9])?", 1..6)) {
        let text = |languages: &[String], gap: &str| {
            let line = languages.join(gap);
            let lines = [("accept-language", line.as_bytes())];
            let mut into = Vec::new();
            variant_text("accept-language", &lines.as_slice(), &mut into);
            into
        };
        let before = text(&languages, ", ");
        languages.reverse();
        prop_assert_eq!(before, text(&languages, " ,"));
    }

    /// S13: lifetimes stay within their range, however often they change.
    #[test]
    fn s13_lifetimes_never_leave_their_range(
        least in 0_u64..1 << 50, width in 0_u64..1 << 50, dice in any::<u64>(), changes in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let range = (Span(least), Span(least + width));
        let mut lifetime = spread(range, dice);
        for is_changed in changes {
            let change = if is_changed { ContentChange::Changed } else { ContentChange::Unchanged };
            let next = adapted(lifetime, change, range);
            let goes_on = if is_changed { next <= lifetime } else { next >= lifetime };
            prop_assert!(goes_on);
            prop_assert!(range.0 <= next && next <= range.1);
            let longer = lengthened(next, range);
            prop_assert!(longer >= next && longer <= range.1);
            lifetime = next;
        }
    }
}
