//! Redirects of a governed call: each hop is a call of its own.
//!
//! Promises: methods and bodies as reqwest treats them (a 303 becomes a GET, a 307 repeats the
//! body). Credentials are not sent to another origin. A response that cannot be followed goes to the
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
    /// The last request, if its body can be sent again.
    last: Option<::reqwest::Request>,
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
        self.last = (self.remaining > 0)
            .then(|| request.try_clone())
            .flatten()
            .or_else(|| without_body(&request));
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
        let status = response.status();
        let becomes_get = match status {
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => true,
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
            _ => return None,
        };
        let location = response.headers().get(LOCATION)?.to_str().ok()?;
        let mut next = self.last.take()?;
        let url = next.url().join(location).ok()?;
        if !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        let keeps = [Method::GET, Method::HEAD].contains(next.method());
        if becomes_get && !keeps {
            *next.method_mut() = Method::GET;
            *next.body_mut() = None;
            for name in [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE] {
                next.headers_mut().remove(name);
            }
        } else if !becomes_get && next.body().is_none() && !keeps {
            return None; // its body is gone
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

/// The same request for a hop that sends no body.
fn without_body(request: &::reqwest::Request) -> Option<::reqwest::Request> {
    let mut same = ::reqwest::Request::new(request.method().clone(), request.url().clone());
    *same.headers_mut() = request.headers().clone();
    Some(same)
}

fn remove_credentials(headers: &mut HeaderMap) {
    for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE] {
        headers.remove(name);
    }
    headers.remove("cookie2");
}
