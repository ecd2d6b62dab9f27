//! Redirects of a governed call: each hop is a call of its own.
//!
//! Promises: methods and bodies as reqwest treats them (a 303 becomes a GET, and so does a POST after a
//! 301 or 302; everything else is repeated with its body). Credentials are not sent to another
//! origin. A redirect to the provider's upstream is a call to the provider. A response that cannot
//! be followed goes to the caller.
//!
//! Never: follows more than it may.

use ::reqwest::{Body, Method, Url};
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName,
    LOCATION, PROXY_AUTHORIZATION, WWW_AUTHENTICATE,
};
use http::{Request, Response, StatusCode};

use crate::Error;
use crate::body::ReplyBody;
use crate::governed_call::CallerLinks;

/// The hops of one call.
pub(super) struct Redirects {
    remaining: usize,
    /// The client adds nothing to a request that another origin must not get.
    follows_elsewhere: bool,
    next: Option<::reqwest::Request>,
    /// The last request, for the next hop.
    last: Option<LastRequest>,
}

struct LastRequest {
    request: ::reqwest::Request,
    /// It had a body that cannot be sent again.
    has_lost_body: bool,
}

impl Redirects {
    pub(super) fn new(
        most: usize,
        follows_elsewhere: bool,
        request: ::reqwest::Request,
    ) -> Redirects {
        Redirects {
            remaining: most,
            follows_elsewhere,
            next: Some(request),
            last: None,
        }
    }

    /// The request of the next hop, and its URL.
    pub(super) fn next_request(&mut self) -> Result<(Url, Request<Body>), Error> {
        const INVALID: Error = Error::Malformed(
            "the request cannot be sent; write an absolute URL, such as https://api.example.org/items",
        );
        let request = self.next.take().ok_or(INVALID)?;
        self.last = (self.remaining > 0).then(|| LastRequest::of(&request));
        let url = request.url().clone();
        let request = Request::<Body>::try_from(request).map_err(|_| INVALID)?;
        Ok((url, request))
    }

    /// Is the response followed? Then it is unwanted, and `next_request` is the next hop.
    pub(super) fn follows(&mut self, response: &Response<ReplyBody>, links: &CallerLinks) -> bool {
        self.next = self.hop(response, links);
        self.remaining -= usize::from(self.next.is_some());
        self.next.is_some()
    }

    fn hop(
        &mut self,
        response: &Response<ReplyBody>,
        links: &CallerLinks,
    ) -> Option<::reqwest::Request> {
        if self.remaining == 0 {
            return None;
        }
        let location = response.headers().get(LOCATION)?.as_bytes();
        let location = links.to_caller(str::from_utf8(location).ok()?).ok()?;
        let LastRequest {
            request: mut next,
            has_lost_body,
        } = self.last.take()?;
        let becomes_get = match response.status() {
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => next.method() == Method::POST,
            StatusCode::SEE_OTHER => ![Method::GET, Method::HEAD].contains(next.method()),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
            _ => return None,
        };
        let mut url = next.url().join(&location).ok()?;
        // A user in a URL is not for the request line, and no credential of the caller's. Without
        // it, the URL may be one of the upstream.
        let without_user = url.set_username("").and_then(|()| url.set_password(None));
        without_user.ok()?;
        let url = url.join(&links.to_caller(url.as_str()).ok()?).ok()?;
        let is_elsewhere = url.origin() != next.url().origin();
        if !matches!(url.scheme(), "http" | "https") || is_elsewhere && !self.follows_elsewhere {
            return None;
        }
        if becomes_get {
            *next.method_mut() = Method::GET;
            *next.body_mut() = None;
            for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE] {
                next.headers_mut().remove(name);
            }
        } else if has_lost_body {
            return None;
        }
        if is_elsewhere {
            remove_credentials(next.headers_mut());
        }
        *next.url_mut() = url;
        Some(next)
    }
}

/// The response as reqwest gives it, with the URL of its last hop.
pub(super) fn finished(
    mut response: Response<ReplyBody>,
    links: &CallerLinks,
    url: Url,
) -> ::reqwest::Response {
    use ::reqwest::ResponseBuilderExt;
    links.rewrite(response.headers_mut());
    let with_url = Response::builder().url(url).body(());
    let (with_url, ()) = with_url
        .expect("a builder fails for a wrong status or header only, and gets neither")
        .into_parts();
    response.extensions_mut().extend(with_url.extensions);
    ::reqwest::Response::from(response.map(Body::wrap))
}

impl LastRequest {
    fn of(request: &::reqwest::Request) -> LastRequest {
        if let Some(request) = request.try_clone() {
            return LastRequest {
                request,
                has_lost_body: false,
            };
        }
        let mut same = ::reqwest::Request::new(request.method().clone(), request.url().clone());
        *same.headers_mut() = request.headers().clone();
        LastRequest {
            request: same,
            has_lost_body: true,
        }
    }
}

/// Those that everybody knows, and what is marked as sensitive.
fn remove_credentials(headers: &mut HeaderMap) {
    let all = headers.iter();
    let secret = all.filter(|(_, value)| value.is_sensitive());
    let secret: Vec<HeaderName> = secret.map(|(name, _)| name.clone()).collect();
    for name in secret {
        headers.remove(name);
    }
    for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE] {
        headers.remove(name);
    }
    headers.remove("cookie2");
}
