//! A governed reqwest client.
//!
//! [`Governed`] takes a `ClientBuilder`, not a client: redirects and repetitions inside reqwest
//! would be calls that nobody counted. Both are ours here: each hop of a redirect and each retry has
//! a permit of its own.
//!
//! Promises: the whole path of a call: route, cache, flight, retry, permit, send, learn, store. The
//! permit comes before reqwest connects; a failed connection gives it back. All hops together have
//! the time of the call.
//!
//! Never: sends anything without a permit, or to another origin than the caller's one of the usual headers of
//! credentials (`Authorization`, `Cookie` …), a header that is marked as sensitive, or a default header. Gives a response to a client that may have another credential.

mod default_headers;
mod redirect;
mod request;
pub use request::GovernedRequest;

use std::sync::Arc;

use ::reqwest::{Body, Client, ClientBuilder, IntoUrl, Method, Response, redirect::Policy, retry};
use http::{HeaderMap, Request};
use http_body::Body as _;
use http_body_util::BodyExt;
use tollgate_core::time::Span;

use crate::body::BodyError;
use crate::embed::{Observation, Observed};
use crate::foreign::{Exchange, ForeignBody, ForeignClient, ForeignError, ForeignFuture};
use crate::{Call, Error, RequestBody, SetupError, Tollgate, governed_call, path};
use default_headers::Additions;
use redirect::Redirects;

/// Redirects that are followed unless [`Governed::redirects`] says otherwise: as many as reqwest
/// follows.
const REDIRECTS: usize = 10;

/// A reqwest client whose calls are governed. Clones share its connections.
///
/// ```
/// use tollgate::{Provider, Tollgate, reqwest::Governed};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nobody = Provider::new("nobody").upstream("http://127.0.0.1:9").limit_with("40/10s");
/// let tollgate = Tollgate::builder().provider(nobody)?.build().await?;
/// let client = Governed::new(&tollgate, reqwest::Client::builder())?;
/// let request = client.get("http://127.0.0.1:9/items").timeout(std::time::Duration::from_millis(200));
/// match request.send().await {
///     Ok(response) => println!("{}", response.status()),
///     Err(error) => println!("{error}: {:?}, come back in {:?}", error.reason(), error.retry_in()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Governed {
    client: Client,
    foreign: ForeignClient,
    tollgate: Tollgate,
    redirects: usize,
    additions: Additions,
    default_headers: Arc<HeaderMap>,
}

impl Governed {
    /// Builds the client, under the limits of this Tollgate.
    ///
    /// Tollgate does not see headers that reqwest adds to every request by itself. A builder with
    /// default headers that may be credentials (all but `user-agent` and the like) makes a client
    /// whose responses, cached ones too, are its own, and whose redirects to another origin go to the
    /// caller: reqwest would add the credential there too. [`Governed::default_headers`] has neither
    /// consequence. The calls of a client with a cookie jar share no responses at all. A client
    /// certificate cannot be found: see [`Governed::isolated`].
    ///
    /// # Errors
    /// reqwest cannot build it.
    pub fn new(tollgate: &Tollgate, builder: ClientBuilder) -> Result<Governed, SetupError> {
        let builder = builder.redirect(Policy::none()).retry(retry::never());
        let client = builder.build()?;
        let additions = Additions::of(&client);
        let governed = Governed {
            foreign: ForeignClient::new(ReqwestClient(client.clone())),
            client,
            tollgate: tollgate.clone(),
            redirects: REDIRECTS,
            additions,
            default_headers: Arc::default(),
        };
        Ok(match additions.headers || additions.cookies {
            true => governed.isolated(),
            false => governed,
        })
    }

    /// Headers of every request that has not its own, in place of the builder's. Tollgate sees them:
    /// clients with the same ones share responses, others do not. A hop to another origin has none of
    /// them that may be a credential.
    #[must_use]
    pub fn default_headers(mut self, headers: HeaderMap) -> Governed {
        self.default_headers = Arc::new(headers);
        self
    }

    /// The responses of this client, cached ones too, go to its own callers and those of its clones
    /// only. For clients with a certificate of their own, or another thing that decides who gets
    /// which response and that Tollgate does not see.
    #[must_use]
    pub fn isolated(mut self) -> Governed {
        self.foreign = self.foreign.isolated();
        self
    }

    /// How many redirects of a call are followed; 0 = the caller gets them. Each hop is a call of
    /// its own, with its own permit; all of them together have the time of the call. A redirect to
    /// the provider's upstream is a call to the provider, unless it leads out of the upstream's path:
    /// that one the caller gets.
    #[must_use]
    pub fn redirects(mut self, most: usize) -> Governed {
        self.redirects = most;
        self
    }

    /// A GET.
    pub fn get(&self, url: impl IntoUrl) -> GovernedRequest {
        self.request(Method::GET, url)
    }

    /// A POST.
    pub fn post(&self, url: impl IntoUrl) -> GovernedRequest {
        self.request(Method::POST, url)
    }

    /// A request of any method.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> GovernedRequest {
        GovernedRequest::new(self.clone(), self.client.request(method, url))
    }

    /// Makes a call with these options ([`Call::unaddressed`]).
    ///
    /// # Errors
    /// Tollgate has no response: which limit, why, and when to come back, or that the request is
    /// wrong. A response of the provider is no error, whatever its status.
    pub async fn execute(
        &self,
        mut request: ::reqwest::Request,
        options: Call,
    ) -> Result<Response, Error> {
        let mut options = options.or_timeout(request.timeout().copied());
        if self.additions.cookies {
            options = options.unshared(); // each response may change the cookies of the next request
        }
        let ledger = self.tollgate.registry().ledger();
        let deadline = options.timeout_span().map(|timeout| ledger.at() + timeout);
        default_headers::add(request.headers_mut(), &self.default_headers);
        let mut redirects = Redirects::new(self.redirects, !self.additions.headers, request);
        loop {
            let (url, mut request) = redirects.next_request()?;
            request.extensions_mut().insert(options.clone());
            let sent = governed_call::send(&self.tollgate, self.foreign.clone(), request);
            let (response, links) = sent.await?;
            if !redirects.follows(&response, &links) {
                return Ok(redirect::finished(response, &links, url));
            }
            // Its slot comes free, and its connection can be reused.
            path::discard_body(response.into_body()).await;
            if let Some(deadline) = deadline {
                // Without time the hop is rejected as too late, like every call that is.
                let remaining = deadline.since(ledger.at()).max(Span(1));
                options = options.timeout(remaining.into());
            }
        }
    }
}

/// Sends through reqwest.
struct ReqwestClient(Client);

impl Exchange for ReqwestClient {
    fn exchange(&self, request: Request<RequestBody>) -> ForeignFuture {
        let client = self.0.clone();
        Box::pin(async move {
            // A body that is known to be empty must not look like a stream.
            let request = request.map(|body| match body.is_end_stream() {
                true => Body::default(),
                false => Body::wrap(body),
            });
            let request = ::reqwest::Request::try_from(request).map_err(|error| failed(&error))?;
            let response = client
                .execute(request)
                .await
                .map_err(|error| failed(&error))?;
            let response: http::Response<Body> = response.into();
            Ok(response.map(|body| ForeignBody::new(body.map_err(BodyError::from))))
        })
    }
}

fn failed(error: &::reqwest::Error) -> ForeignError {
    match error.observed() {
        Observation::Unsent(fault) => ForeignError::Unsent(fault),
        Observation::Failed(fault) => ForeignError::Failed(fault),
        Observation::NotSent => ForeignError::NotBuilt(request::not_sent(error)),
        Observation::Response { .. } => ForeignError::Failed(crate::Fault::Reset),
    }
}
