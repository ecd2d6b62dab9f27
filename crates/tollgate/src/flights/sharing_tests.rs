//! Which responses may be shared, by their headers.

use http::Response;

use super::*;

/// A request that names no user.
pub(crate) fn anonymous() -> RequestIdentity {
    RequestIdentity {
        user_agent: user_agent(&HeaderMap::new()),
        is_head: false,
        is_authorized: false,
        names_user: false,
    }
}

/// A key by number.
pub(crate) fn numbered(number: u8) -> FlightKey {
    FlightKey([number; 16])
}

fn head(status: u16, headers: &[(&str, &str)]) -> Parts {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(()).expect("a sane head").into_parts().0
}

fn cacheable(status: u16, headers: &[(&str, &str)]) -> bool {
    may_share(&anonymous(), Dedup::Cacheable, &head(status, headers))
}

#[test]
fn s7_an_uncacheable_response_is_not_shared() {
    let cc = |value| [("cache-control", value)];
    for value in [
        "private",
        "no-store",
        "No-Cache",
        "max-age=0",
        "s-maxage=0, max-age=9",
        "max-age=x",
        "max-age=9, max-age=0",
        "private=\"x-user\"",
        "max-age =60",
    ] {
        assert!(!cacheable(200, &cc(value)), "{value}");
    }
    for value in [
        "public",
        "max-age=60",
        "max-age=0, s-maxage=9",
        "nothing-known",
        // A directive inside quotes does not count.
        "x=\"no-store, private\", max-age=60",
    ] {
        assert!(cacheable(200, &cc(value)), "{value}");
    }
    assert!(cacheable(200, &[]) && cacheable(404, &[]) && cacheable(304, &[]));
    assert!(!cacheable(206, &[]) && !cacheable(302, &[]) && !cacheable(403, &[]));
    assert!(!cacheable(200, &[("expires", "0")]));
    let (date, later) = (
        "Sun, 01 Mar 2026 00:00:00 GMT",
        "Sun, 01 Mar 2026 00:01:00 GMT",
    );
    assert!(!cacheable(200, &[("expires", date), ("date", date)]));
    assert!(cacheable(200, &[("expires", later), ("date", date)]));
}

#[test]
fn s7_an_authorized_response_is_shared_only_if_public() {
    let identity = RequestIdentity {
        is_authorized: true,
        names_user: true,
        ..anonymous()
    };
    let shares = |mode, headers: &[(&str, &str)]| may_share(&identity, mode, &head(200, headers));
    assert!(!shares(Dedup::Cacheable, &[]));
    assert!(shares(Dedup::Cacheable, &[("cache-control", "public")]));
    assert!(
        shares(Dedup::On, &[("cache-control", "private")]),
        "the credential is in the key"
    );
    assert!(!shares(Dedup::Off, &[]));
}

#[test]
fn s7_a_response_that_varies_by_user_agent_is_shared_per_agent() {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, http::HeaderValue::from_static("other"));
    let other = user_agent(&headers);
    let varies = head(200, &[("vary", "Accept, User-Agent")]);
    assert!(anonymous().varies_for(&varies, &other));
    assert!(!anonymous().varies_for(&varies, &anonymous().user_agent));
    assert!(!anonymous().varies_for(&head(200, &[]), &other));
    assert!(!cacheable(200, &[("vary", "*")]) && !cacheable(200, &[("vary", "traceparent")]));
}
