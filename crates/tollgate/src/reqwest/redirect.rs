//! Redirects of a governed call: each hop is a call of its own.
//!
//! Promises: methods and bodies as reqwest treats them (a 303 becomes a GET, and so does a POST after a
//! 301 or 302; everything else is repeated with its body). Credentials are not sent to another origin. A response that cannot be followed goes to the
//! caller as it is.
//!
//! Never: follows more than it may.

use ::reqwest::{Body, Method, Url};
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, LOCATION,
    PROXY_AUTHORIZATION, WWW_AUTHENTICATE,
};
use http::{Request, Response, StatusCode};

use crate::Error;
use crate::body::ReplyBody;

/// The hops of one call.
pub(super) struct Redirects {
    remaining: usize,
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
    pub(super) fn new(most: usize, request: ::reqwest::Request) -> Redirects {
        Redirects {
            remaining: most,
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

    /// Follows a response; `Some` = it is the last one.
    pub(super) fn follow(&mut self, response: Response<ReplyBody>) -> Option<Response<ReplyBody>> {
        match self.hop(&response) {
            Some(next) => {
                self.remaining -= 1;
                self.next = Some(next);
                None
            }
            None => Some(response),
        }
    }

    fn hop(&mut self, response: &Response<ReplyBody>) -> Option<::reqwest::Request> {
        if self.remaining == 0 {
            return None;
        }
        let location = response.headers().get(LOCATION)?.to_str().ok()?;
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
        let url = next.url().join(location).ok()?;
        if !matches!(url.scheme(), "http" | "https") {
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
        if url.origin() != next.url().origin() {
            remove_credentials(next.headers_mut());
        }
        *next.url_mut() = url;
        Some(next)
    }
}

/// The response as reqwest gives it, with the URL of its last hop.
pub(super) fn finished(response: Response<ReplyBody>, url: Url) -> ::reqwest::Response {
    use ::reqwest::ResponseBuilderExt;
    let (head, body) = response.into_parts();
    let builder = Response::builder()
        .status(head.status)
        .version(head.version);
    let mut whole = builder
        .url(url)
        .body(Body::wrap(body))
        .unwrap_or_else(|_| Response::new(Body::default()));
    *whole.status_mut() = head.status;
    *whole.headers_mut() = head.headers;
    whole.extensions_mut().extend(head.extensions);
    ::reqwest::Response::from(whole)
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

fn remove_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE] {
        headers.remove(name);
    }
    headers.remove("cookie2");
}
