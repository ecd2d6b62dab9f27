//! The messages of the gRPC address without a socket, for fuzz targets.
//!
//! Promises: calls the code of the listener, and adds nothing to it. Time stands still, and each service is
//! new: the same message gives the same reply.
//!
//! Never: is part of a program.

use std::net::{IpAddr, Ipv4Addr};

use tollgate_ledger::{Clock, Ledger};

use super::messages::{RateLimitRequest, health_service};
use super::rate_limit::should_rate_limit;
use crate::decision_api::Asker;
use crate::test_config;

/// Guards of every kind that a descriptor can mean.
const GUARDS: &str = "guards:
  ip:     { limit: 2, period: 1m, burst: 2, by: ip }
  api:    { limit: 3, period: 1m, burst: 3, by: global }
  trial:  { limit: 1, period: 1h, burst: 1, by: name, shadow: true }
  tenant: { limit: 4, period: 10s, by: name, match: { descriptor: { tenant: '*', plan: free } } }
callers: { app: { token: fuzz } }
";

/// The frames of the responses to these messages of one client, or the sentences of their errors. As
/// the operator, or as a caller with a token.
pub async fn replies<'a>(
    messages: impl Iterator<Item = &'a [u8]>,
    is_operator: bool,
) -> Vec<Result<Vec<u8>, String>> {
    let ledger = Ledger::memory(Clock::Manual(test_config::clock()));
    let daemon = test_config::daemon(ledger, GUARDS);
    let mut replies = Vec::new();
    for message in messages {
        let asker = Asker {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            caller: (!is_operator).then(|| {
                let token = tollgate_config::Secret::new("fuzz".to_owned());
                ("app".to_owned(), token)
            }),
        };
        let reply = should_rate_limit(daemon.decisions(), asker, message).await;
        replies.push(reply.map_err(|error| {
            let message = error.trailers().remove("grpc-message");
            String::from_utf8_lossy(message.as_ref().map_or(b"", |text| text.as_bytes()))
                .into_owned()
        }));
    }
    replies
}

/// A request as it is read, or the sentence of its error.
pub fn read_request(message: &[u8]) -> Result<String, String> {
    let request = RateLimitRequest::read(message);
    let request = request.map(|request| format!("{request:?}"));
    request.map_err(|error| format!("{error:?}"))
}

/// The service that a health check names, if the message is one.
#[must_use]
pub fn checked_service(message: &[u8]) -> Option<String> {
    health_service(message).ok().map(str::to_owned)
}
