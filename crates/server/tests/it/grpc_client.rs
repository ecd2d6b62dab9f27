//! A gRPC client: HTTP/2, and messages that another implementation of protobuf writes and reads.

use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;

use crate::client::within_timeout;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
    /// A field that no version has: it is ignored.
    #[prost(string, tag = "99")]
    pub(crate) unknown: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Entry>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// Both messages of the health service: a text to ask, a number to respond.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}

pub(crate) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A status with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) code: u16,
    pub(crate) message: String,
}

/// One connection.
pub(crate) struct GrpcClient {
    sender: SendRequest<Full<Bytes>>,
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl GrpcClient {
    pub(crate) async fn connect(to: SocketAddr) -> GrpcClient {
        let stream = within_timeout(TcpStream::connect(to)).await.unwrap();
        let io = TokioIo::new(stream);
        let handshake = http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = within_timeout(handshake).await.unwrap();
        tokio::spawn(connection);
        GrpcClient {
            sender,
            headers: vec![
                ("content-type", "application/grpc".to_owned()),
                ("te", "trailers".to_owned()),
            ],
        }
    }

    /// Sends these bytes as the body.
    pub(crate) async fn send(&mut self, path: &str, body: Bytes) -> Response<Incoming> {
        let mut request = Request::post(format!("http://localhost{path}"));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).unwrap();
        within_timeout(self.sender.send_request(request))
            .await
            .unwrap()
    }

    /// A unary call.
    pub(crate) async fn call<M: Message + Default>(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<M, Failed> {
        let response = self.send(path, frame(&message.encode_to_vec())).await;
        let (head, body) = response.into_parts();
        assert_eq!(head.status, 200);
        let collected = within_timeout(body.collect()).await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or(head.headers);
        failed(&trailers)?;
        let mut bytes = collected.to_bytes();
        assert_eq!(bytes.get_u8(), 0, "not compressed");
        assert_eq!(bytes.get_u32() as usize, bytes.len());
        Ok(M::decode(bytes).unwrap())
    }

    pub(crate) async fn ask(
        &mut self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Failed> {
        self.call(SHOULD_RATE_LIMIT, request).await
    }
}

/// The error of trailers, or of a head without a body.
pub(crate) fn failed(trailers: &HeaderMap) -> Result<(), Failed> {
    let text = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap());
    let code = text("grpc-status").expect("a status").parse().unwrap();
    match code {
        0 => Ok(()),
        code => Err(Failed {
            code,
            message: text("grpc-message").unwrap_or_default().to_owned(),
        }),
    }
}

/// A message behind its flag and its length.
pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.extend_from_slice(message);
    frame.freeze()
}

/// One descriptor.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// A request of these descriptors.
pub(crate) fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        unknown: "ignored".to_owned(),
        ..RateLimitRequest::default()
    }
}

impl RateLimitResponse {
    /// A grant had no reset: a caller that paces itself did not know until when.
    pub(crate) fn assert_reset(&self) {
        let reset = self.statuses[0].duration_until_reset.as_ref();
        let reset = reset.expect("a reset");
        assert!((10..=60).contains(&reset.seconds), "{reset:?}");
        // The wall clock of a frozen ledger.
        let at = 1_772_323_200 + reset.seconds + i64::from(reset.nanos > 0);
        assert_eq!(self.header("x-ratelimit-reset"), at.to_string());
        assert!(self.header("ratelimit").contains(";t="), "{self:?}");
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let mut headers = self.response_headers_to_add.iter();
        let found = headers.find(|header| header.key == name);
        found.map_or("", |header| &header.value)
    }
}
