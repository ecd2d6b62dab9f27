//! The floor of gRPC: tonic's server with Envoy's messages, which always grants.
//!
//! Promises: it reads the whole request as messages and writes a whole response, as every gRPC service
//! must; it decides nothing. What tonic's code generator would write stands here by hand.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Limit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

/// `OK` of Envoy's response codes, and `MINUTE` of its units.
const OK: i32 = 1;
const MINUTE: i32 = 2;

#[derive(Clone)]
struct AlwaysGrants;

impl UnaryService<RateLimitRequest> for AlwaysGrants {
    type Response = RateLimitResponse;
    type Future = Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let limit = |_| DescriptorStatus {
            code: OK,
            current_limit: Some(Limit {
                requests_per_unit: 4_000_000_000,
                unit: MINUTE,
                name: "api".to_owned(),
            }),
            limit_remaining: 3_999_999_999,
        };
        ready(Ok(Response::new(RateLimitResponse {
            overall_code: OK,
            statuses: request.get_ref().descriptors.iter().map(limit).collect(),
        })))
    }
}

impl NamedService for AlwaysGrants {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<Body>> for AlwaysGrants {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            Ok(Grpc::new(codec).unary(AlwaysGrants, request).await)
        })
    }
}

pub async fn serve(port: u16) -> anyhow::Result<()> {
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(AlwaysGrants)
        .serve(([127, 0, 0, 1], port).into())
        .await?;
    Ok(())
}
