//! A request of a governed client, while it is built.
//!
//! Promises: everything that reqwest can put into a request, by [`GovernedRequest::with`], and
//! everything that Tollgate can be asked for, by [`GovernedRequest::call`].
//!
//! Never: sends before `send`.

use std::error::Error as _;
use std::str::FromStr;
use std::time::Duration;

use ::reqwest::{Body, RequestBuilder, Response, Url};
use http::header::{InvalidHeaderName, InvalidHeaderValue};
use http::{HeaderName, HeaderValue};
use tollgate_core::ask::Priority;

use super::Governed;
use crate::{Call, Error, UseCache};

/// A request of a [`Governed`] client.
#[derive(Debug)]
#[must_use = "a request does nothing until `send`"]
pub struct GovernedRequest {
    client: Governed,
    builder: RequestBuilder,
    call: Call,
    /// The first thing that is wrong, where reqwest would not say so precisely.
    wrong: Option<Error>,
}

impl GovernedRequest {
    pub(super) fn new(client: Governed, builder: RequestBuilder) -> GovernedRequest {
        GovernedRequest {
            client,
            builder,
            call: Call::unaddressed(),
            wrong: None,
        }
    }

    /// Anything that reqwest's builder can do: `.with(|request| request.bearer_auth(token))`.
    pub fn with(
        mut self,
        change: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> GovernedRequest {
        self.builder = change(self.builder);
        self
    }

    /// Any option of a call: `.call(|call| call.cost("tokens", 1_200))`.
    pub fn call(mut self, change: impl FnOnce(Call) -> Call) -> GovernedRequest {
        self.call = change(self.call);
        self
    }

    /// A header.
    pub fn header<N, V>(mut self, name: N, value: V) -> GovernedRequest
    where
        HeaderName: TryFrom<N>,
        <HeaderName as TryFrom<N>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        let value = HeaderValue::try_from(value).map_err(Into::into);
        let wrong = match (HeaderName::try_from(name).map_err(Into::into), value) {
            (Ok(name), Ok(value)) => return self.with(move |request| add(request, name, value)),
            (Err(why), _) => not_built("the name of a header", &why, HEADER_NAME),
            (Ok(name), Err(why)) => not_built(
                &format!("the value of the header `{name}`"),
                &why,
                HEADER_VALUE,
            ),
        };
        self.wrong.get_or_insert(wrong);
        self
    }

    /// The body.
    pub fn body(self, body: impl Into<Body>) -> GovernedRequest {
        self.with(|request| request.body(body))
    }

    /// How urgent it is.
    pub fn priority(self, priority: Priority) -> GovernedRequest {
        self.call(|call| call.priority(priority))
    }

    /// The entity, where the path does not determine it.
    pub fn entity(self, entity: impl Into<String>) -> GovernedRequest {
        self.call(|call| call.entity(entity))
    }

    /// Who calls.
    pub fn caller(self, caller: impl Into<String>) -> GovernedRequest {
        self.call(|call| call.caller(caller))
    }

    /// How long it may wait and run in all.
    pub fn timeout(self, timeout: Duration) -> GovernedRequest {
        self.call(|call| call.timeout(timeout))
    }

    /// How it uses the cache.
    pub fn cache(self, cache: UseCache) -> GovernedRequest {
        self.call(|call| call.cache(cache))
    }

    /// `false`: its own response, even if an identical call is in flight.
    pub fn dedup(self, dedup: bool) -> GovernedRequest {
        self.call(|call| call.dedup(dedup))
    }

    /// Makes the call.
    ///
    /// # Errors
    /// As [`Governed::execute`].
    pub async fn send(self) -> Result<Response, Error> {
        let request = self.builder.build();
        match (self.wrong, request) {
            (Some(wrong), _) => Err(wrong),
            (None, Ok(request)) => self.client.execute(request, self.call).await,
            (None, Err(error)) => Err(not_built_by(&error)),
        }
    }
}

/// Outside of `header`, whose bounds would make the compiler expect its types here.
fn add(request: RequestBuilder, name: HeaderName, value: HeaderValue) -> RequestBuilder {
    request.header(name, value)
}

const HEADER_NAME: &str = "use letters, digits and `-`";
const HEADER_VALUE: &str = "leave out line breaks and other control characters";

/// What reqwest says only in the source of its error. The URL itself may have a key in its query.
fn not_built_by(error: &::reqwest::Error) -> Error {
    let Some(why) = error.source() else {
        return not_built("it is incomplete", error, "see reqwest's RequestBuilder");
    };
    let header = why.downcast_ref().map(http::Error::get_ref);
    let (what, remedy) = if why.is::<<Url as FromStr>::Err>() || error.url().is_some() {
        let remedy = "write an absolute URL such as https://api.example.org/items";
        ("its URL", remedy)
    } else if why.is::<serde_json::Error>() {
        ("its JSON body", "give a value that JSON can express")
    } else if header.is_some_and(|why| why.is::<InvalidHeaderName>()) {
        ("the name of a header", HEADER_NAME)
    } else if header.is_some_and(|why| why.is::<InvalidHeaderValue>()) {
        ("the value of a header", HEADER_VALUE)
    } else {
        (
            "its query, form or body",
            "give pairs of names and plain values",
        )
    };
    not_built(what, why, remedy)
}

fn not_built(what: &str, why: &dyn std::error::Error, remedy: &str) -> Error {
    Error::NotBuilt(format!("{what}: {why}; {remedy}"))
}

/// Why reqwest did not send a request that could be built. The URL may have a key in its query.
pub(super) fn not_sent(error: &::reqwest::Error) -> String {
    let why = error.source().map_or_else(String::new, ToString::to_string);
    let remedy = "the client allows `https` only, or the URL is not valid";
    format!("it was not sent: {why}; {remedy}")
}
