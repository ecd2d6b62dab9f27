//! A request of the program's own client, through the whole path.
//!
//! Promises: route, cache, flight, retry, permit, send, learn and store, as in the gateway. Headers
//! of one connection are not passed on. The response has its [`Source`](crate::Source) in its
//! extensions, and its links to the provider lead through Tollgate.
//!
//! Never: follows a redirect.

mod links;
pub(crate) use links::CallerLinks;

use bytes::Bytes;
use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response};
use http_body::Body;

use crate::body::{BodyError, ReplyBody};
use crate::foreign::ForeignClient;
use crate::path::{self, CallTrace, HttpCall, Target};
use crate::{Call, Error, Tollgate};

/// Headers of one connection (RFC 9110, 7.6.1), and those that the client writes itself.
const OF_ONE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HOST,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Makes the call. A [`Call`] in the extensions of the request has its options. The links of the
/// response are as the provider wrote them.
pub(crate) async fn send<B>(
    tollgate: &Tollgate,
    client: ForeignClient,
    request: Request<B>,
) -> Result<(Response<ReplyBody>, CallerLinks), Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
    B::Error: Into<BodyError>,
{
    let (mut head, body) = request.into_parts();
    let target = Target::from_url(&head.uri).ok_or(Error::Malformed(
        "the URL of the request is not absolute; write one such as https://api.example.org/items",
    ))?;
    if head.headers.contains_key(UPGRADE) {
        return Err(Error::Malformed(
            "a governed client cannot change the protocol; acquire a permit and connect yourself",
        ));
    }
    let call = head.extensions.remove::<Call>();
    let mut options = call.unwrap_or_else(Call::unaddressed).into_options()?;
    options.client = Some(client);
    remove_connection_headers(&mut head.headers);
    let call = HttpCall {
        target,
        method: head.method,
        headers: head.headers,
        body,
        options,
    };
    let mut trace = CallTrace::default();
    let reply = path::call(tollgate.registry(), call, &mut trace).await?;
    let mut response = Response::from_parts(reply.head, reply.body);
    response.extensions_mut().insert(reply.source);
    Ok((response, CallerLinks::new(&head.uri, &trace)))
}

fn remove_connection_headers(headers: &mut HeaderMap) {
    // Those that `Connection` names belong to the connection too.
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
}
