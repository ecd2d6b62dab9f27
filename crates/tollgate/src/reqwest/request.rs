//! A request of a governed client, while it is built.
//!
//! Promises: everything that reqwest can put into a request, by [`GovernedRequest::with`], and
//! everything that Tollgate can be asked for, by [`GovernedRequest::call`].
//!
//! Never: sends before `send`.

use std::time::Duration;

use ::reqwest::{Body, RequestBuilder, Response};
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
}

impl GovernedRequest {
    pub(super) fn new(client: Governed, builder: RequestBuilder) -> GovernedRequest {
        GovernedRequest {
            client,
            builder,
            call: Call::unaddressed(),
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
    pub fn header<N, V>(self, name: N, value: V) -> GovernedRequest
    where
        HeaderName: TryFrom<N>,
        <HeaderName as TryFrom<N>>::Error: Into<http::Error>,
        HeaderValue: TryFrom<V>,
        <HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.with(|request| request.header(name, value))
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
        let request = self.builder.build().map_err(|_| {
            Error::Malformed(
                "reqwest cannot build the request; write an absolute URL and valid headers",
            )
        })?;
        self.client.execute(request, self.call).await
    }
}
