//! M5: the numbers of the requirement, row by row.

use tollgate_config::Provider;
use tollgate_config::amount::Lifetime;
use tollgate_config::preset;
use tollgate_config::provider::{AuthStyle, Limit, Per};
use tollgate_config::settings::Order;
use tollgate_core::limit::{Algorithm, HoldUntil, Rule};
use tollgate_core::time::Span;

use crate::presets::built_in;
use crate::provider;

const DAY: Span = Span::from_secs(86_400);
const SECOND: Span = Span::from_secs(1);

fn only_limit(provider: &Provider) -> &Limit {
    assert_eq!(provider.limits.len(), 1, "{}", provider.name);
    &provider.limits[0]
}

fn days(least: u64, most: u64) -> Lifetime {
    Lifetime::Between(Span(DAY.0 * least), Span(DAY.0 * most))
}

/// M5: `tmdb` 35/1s bucket burst 35, concurrency 4, ttl 24h..48h.
#[test]
fn m5_tmdb() {
    let tmdb = built_in("tmdb");
    assert_eq!(
        only_limit(&tmdb).rule,
        Rule::bucket(35, SECOND, 35)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(tmdb.concurrency.as_ref().unwrap().rule.limit(), 4);
    assert_eq!(tmdb.cache.ttl, days(1, 2));
}

/// M5: `tmdb-legacy` 40/10s.
#[test]
fn m5_tmdb_legacy() {
    let legacy = built_in("tmdb-legacy");
    assert_eq!(
        only_limit(&legacy).rule,
        Rule::sliding(40, Span::from_secs(10))
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(
        (only_limit(&legacy).reserve, legacy.dialect.as_str()),
        (0, "tmdb")
    );
}

/// M5, M6: `tvdb` 50/10s reserve 40, login 24h, ttl 24h..48h.
#[test]
fn m5_tvdb() {
    let tvdb = built_in("tvdb");
    assert_eq!(
        only_limit(&tvdb).rule,
        Rule::sliding(50, Span::from_secs(10))
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(
        (only_limit(&tvdb).reserve, tvdb.cache.ttl),
        (40, days(1, 2))
    );
    let AuthStyle::Login(login) = tvdb.auth.style else {
        panic!("a login")
    };
    assert_eq!(
        (login.lifetime, login.refresh_before),
        (DAY, Span::from_secs(300))
    );
    assert_eq!(
        (login.token.as_str(), login.url.base.as_str()),
        ("data.token", "/v4/login")
    );
}

/// M5: `fanart` 5/1s reserve 4 and `fanart-personal` 10/1s reserve 8, for ever.
#[test]
fn m5_fanart() {
    for (name, limit, reserve) in [("fanart", 5, 4), ("fanart-personal", 10, 8)] {
        let fanart = built_in(name);
        assert_eq!(
            only_limit(&fanart).rule,
            Rule::sliding(limit, SECOND)
                .unwrap()
                .hold_until(HoldUntil::Arrived)
        );
        assert_eq!(
            (only_limit(&fanart).reserve, fanart.cache.ttl),
            (reserve, Lifetime::Forever)
        );
    }
}

/// M5: `fanart-personal` is chosen by itself when a `client_key` is set.
#[test]
fn m5_a_client_key_chooses_fanart_personal() {
    let fanart = provider("preset: fanart\napi_key: a\nauth: { also: { client_key: b } }");
    assert_eq!(
        (fanart.preset, only_limit(&fanart).rule.limit()),
        (Some("fanart-personal"), 10)
    );
    assert_eq!(fanart.auth.also[0].0, "client_key");
    assert_eq!(
        provider("preset: fanart\napi_key: a").preset,
        Some("fanart")
    );
}

/// M5: `musicbrainz` 1/1s, concurrency 1, order fifo, for ever.
#[test]
fn m5_musicbrainz() {
    let musicbrainz = built_in("musicbrainz");
    assert_eq!(
        only_limit(&musicbrainz).rule,
        Rule::sliding(1, SECOND)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(only_limit(&musicbrainz).reserve, 0);
    assert_eq!(musicbrainz.concurrency.unwrap().rule.limit(), 1);
    assert_eq!(
        (musicbrainz.queue.order, musicbrainz.cache.ttl),
        (Order::Fifo, Lifetime::Forever)
    );
}

/// M5: `omdb` 1000/1d and `omdb-paid` 100000/1d per key, by the UTC day, 7d.
#[test]
fn m5_omdb() {
    for (name, limit) in [("omdb", 1_000), ("omdb-paid", 100_000)] {
        let omdb = built_in(name);
        let is = only_limit(&omdb);
        assert_eq!((is.rule.limit(), is.per), (limit, Per::ApiKey));
        assert_eq!(is.rule.to_string(), format!("{limit}/1d"));
        assert!(matches!(is.rule.algorithm(), Algorithm::Calendar(_)));
        assert_eq!(omdb.cache.ttl, Lifetime::For(Span(DAY.0 * 7)));
    }
}

/// M5: `local` 10000/1s reserve 9000, acquire only.
#[test]
fn m5_local() {
    let local = built_in("local");
    assert_eq!(
        only_limit(&local).rule,
        Rule::sliding(10_000, SECOND)
            .unwrap()
            .hold_until(HoldUntil::Arrived)
    );
    assert_eq!(only_limit(&local).reserve, 9_000);
    assert!(local.domains.is_empty() && local.upstream.is_none());
}

/// M5: `provider list` and `show` print every preset with its batching advice.
#[test]
fn m5_list_and_show_print_the_presets_with_their_advice() {
    let list = preset::list();
    for built_in in preset::all() {
        assert!(
            list.contains(&format!("{:<17} ", built_in.name)),
            "{}",
            built_in.name
        );
        let shown = preset::show(built_in.name).unwrap();
        assert!(shown.contains("source"), "{shown}");
    }
    assert!(list.contains("append_to_response: up to 20 sub-requests in one call"));
    let tmdb = preset::show("tmdb").unwrap();
    for line in [
        "limit        35/1s token-bucket burst 35",
        "at a time    4",
        "cache        24h..48h",
        "batching     append_to_response",
        "auth         query parameter api_key",
    ] {
        assert!(tmdb.contains(line), "{line}\n{tmdb}");
    }
    assert!(
        preset::show("omdb")
            .unwrap()
            .contains("tier         paid: 100000/1d calendar per api_key")
    );
    assert!(preset::show("nobody").is_none());
}
