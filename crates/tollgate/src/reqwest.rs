//! A governed reqwest client.
//!
//! [`Governed`] takes a `ClientBuilder`, not a client: redirects and repetitions inside reqwest
//! would be calls that nobody counted. Both are ours here: each hop of a redirect and each retry has
//! a permit of its own.
//!
//! Promises: the whole path of a call: route, cache, flight, retry, permit, send, learn, store. The
//! permit comes before reqwest connects; a failed connection gives it back.
//!
//! Never: sends anything without a permit, or a header with a credential to another origin than the
//! caller's.

mod redirect;
mod request;
pub use request::GovernedRequest;

use ::reqwest::{Body, Client, ClientBuilder, IntoUrl, Method, Response, redirect::Policy, retry};
use http::Request;
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::body::BodyError;
use crate::embed::{Observation, Observed};
use crate::foreign::{Exchange, ForeignBody, ForeignClient, ForeignError, ForeignFuture};
use crate::{Call, Error, RequestBody, SetupError, Tollgate, governed_call};
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
/// let request = client.get("http://127.0.0.1:9/items").timeout(std::time::Duration::ZERO);
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
}

impl Governed {
    /// Builds the client, under the limits of this Tollgate.
    ///
    /// # Errors
    /// reqwest cannot build it.
    pub fn new(tollgate: &Tollgate, builder: ClientBuilder) -> Result<Governed, SetupError> {
        let builder = builder.redirect(Policy::none()).retry(retry::never());
        let client = builder.build()?;
        Ok(Governed {
            foreign: ForeignClient::new(ReqwestClient(client.clone())),
            client,
            tollgate: tollgate.clone(),
            redirects: REDIRECTS,
        })
    }

    /// How many redirects of a call are followed; 0 = the caller gets them. Each hop is a call of
    /// its own, with its own permit.
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
        request: ::reqwest::Request,
        options: Call,
    ) -> Result<Response, Error> {
        let options = options.or_timeout(request.timeout().copied());
        let mut redirects = Redirects::new(self.redirects, request);
        loop {
            let (url, mut request) = redirects.next_request()?;
            request.extensions_mut().insert(options.clone());
            let sent = governed_call::send(&self.tollgate, self.foreign.clone(), request);
            let response = sent.await?;
            if let Some(response) = redirects.follow(response) {
                return Ok(redirect::finished(response, url));
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
        Observation::Unsent(fault) => ForeignError { fault, sent: false },
        Observation::Failed(fault) => ForeignError { fault, sent: true },
        Observation::Response { .. } => ForeignError {
            fault: crate::Fault::Reset,
            sent: true,
        },
    }
}
