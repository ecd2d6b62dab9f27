//! The messages of Envoy's rate limit service and of the health service.
//!
//! Field numbers: `envoy/service/ratelimit/v3/rls.proto`,
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto`, `grpc/health/v1/health.proto`.
//!
//! Promises: a request has at most [`DESCRIPTORS_MAX`] descriptors with at most [`ENTRIES_MAX`]
//! entries, and its texts are read in place. Fields that are not listed here are ignored.
//!
//! Never: decides.

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate_core::time::Span;

use super::protobuf::{FieldReader, FieldWriter, Malformed};
use super::status::{GrpcCode, GrpcStatus};

/// The most descriptors of a request: a route of Envoy has a few.
pub(super) const DESCRIPTORS_MAX: usize = 32;

/// The most entries of a descriptor; each is an action in a route of Envoy.
pub(super) const ENTRIES_MAX: usize = 16;

/// `RateLimitRequest`.
#[derive(Debug, Default)]
pub(super) struct RateLimitRequest<'a> {
    pub(super) domain: &'a str,
    pub(super) descriptors: SmallVec<[WireDescriptor<'a>; 2]>,
    /// Unset is 0, and 0 counts 1.
    hits_addend: u32,
}

/// `RateLimitDescriptor`.
#[derive(Debug, Default)]
pub(super) struct WireDescriptor<'a> {
    pub(super) entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// Requests and their unit.
    pub(super) limit: Option<(u32, u64)>,
    hits_addend: Option<u64>,
    pub(super) is_negative_hits: bool,
}

/// `RateLimitResponse`.
#[derive(Debug, Default)]
pub(super) struct RateLimitReply {
    pub(super) is_over_limit: bool,
    pub(super) statuses: SmallVec<[DescriptorStatus; 2]>,
    /// For the caller of Envoy.
    pub(super) headers: HeaderMap,
    /// The same, if the request is rejected.
    pub(super) body: Vec<u8>,
}

/// `DescriptorStatus`.
#[derive(Debug, Default)]
pub(super) struct DescriptorStatus {
    pub(super) is_over_limit: bool,
    pub(super) limit: Option<CurrentLimit>,
    pub(super) remaining: u64,
    pub(super) reset_in: Option<Span>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Debug)]
pub(super) struct CurrentLimit {
    pub(super) name: String,
    pub(super) limit: u64,
    pub(super) period: Option<Span>,
}

const DAY: u64 = 86_400;

/// `RateLimitUnit` and its length in seconds. A month has 30 days, a year 365, as in the reference
/// service.
const UNITS: [(u64, u64); 6] = [
    (1, 1),
    (2, 60),
    (3, 3_600),
    (4, DAY),
    (5, 30 * DAY),
    (6, 365 * DAY),
];

/// The length of a unit.
pub(super) fn unit_period(unit: u64) -> Option<Span> {
    let (_, seconds) = UNITS.iter().find(|(number, _)| *number == unit)?;
    Some(Span::from_secs(*seconds))
}

/// The unit of this length; 0 (unknown) for all others.
fn unit_of(period: Option<Span>) -> u64 {
    let is_it = |(_, seconds): &&(u64, u64)| Some(Span::from_secs(*seconds)) == period;
    UNITS.iter().find(is_it).map_or(0, |(number, _)| *number)
}

impl<'a> RateLimitRequest<'a> {
    pub(super) fn read(message: &'a [u8]) -> Result<RateLimitRequest<'a>, GrpcStatus> {
        let mut request = RateLimitRequest::default();
        for field in FieldReader::new(message) {
            let (number, value) = field?;
            match number {
                1 => request.domain = value.text()?,
                2 => {
                    let descriptor = WireDescriptor::read(value.message()?)?;
                    request.descriptors.push(descriptor);
                }
                3 => request.hits_addend = value.small_number()?,
                _ => {}
            }
            if request.descriptors.len() > DESCRIPTORS_MAX {
                return Err(too_many("descriptors", DESCRIPTORS_MAX));
            }
        }
        Ok(request)
    }

    /// What a descriptor costs: 0 only peeks, a negative number puts back.
    pub(super) fn cost(&self, descriptor: &WireDescriptor<'_>) -> i64 {
        let hits = match descriptor.hits_addend {
            Some(hits) => hits,
            // Envoy leaves the field out or sets it to 0 if nobody configured it.
            None => u64::from(self.hits_addend.max(1)),
        };
        let cost = i64::try_from(hits).unwrap_or(i64::MAX);
        if descriptor.is_negative_hits {
            -cost
        } else {
            cost
        }
    }
}

impl<'a> WireDescriptor<'a> {
    fn read(fields: FieldReader<'a>) -> Result<WireDescriptor<'a>, GrpcStatus> {
        let mut descriptor = WireDescriptor::default();
        for field in fields {
            let (number, value) = field?;
            match number {
                1 => descriptor.entries.push(entry(value.message()?)?),
                2 => descriptor.limit = Some(limit(value.message()?)?),
                // A `UInt64Value`: there, even if it is 0.
                3 => descriptor.hits_addend = Some(only_number(value.message()?)?),
                4 => descriptor.is_negative_hits = value.number()? != 0,
                _ => {}
            }
            if descriptor.entries.len() > ENTRIES_MAX {
                return Err(too_many("entries in a descriptor", ENTRIES_MAX));
            }
        }
        Ok(descriptor)
    }
}

fn entry(fields: FieldReader<'_>) -> Result<(&str, &str), Malformed> {
    let (mut key, mut text) = ("", "");
    for field in fields {
        match field? {
            (1, value) => key = value.text()?,
            (2, value) => text = value.text()?,
            _ => {}
        }
    }
    Ok((key, text))
}

fn limit(fields: FieldReader<'_>) -> Result<(u32, u64), Malformed> {
    let (mut requests, mut unit) = (0, 0);
    for field in fields {
        match field? {
            (1, value) => requests = value.small_number()?,
            (2, value) => unit = value.number()?,
            _ => {}
        }
    }
    Ok((requests, unit))
}

fn only_number(fields: FieldReader<'_>) -> Result<u64, Malformed> {
    let mut number = 0;
    for field in fields {
        if let (1, value) = field? {
            number = value.number()?;
        }
    }
    Ok(number)
}

fn too_many(what: &str, most: usize) -> GrpcStatus {
    let message = format!("more than {most} {what}; send fewer in one request");
    GrpcStatus::new(GrpcCode::InvalidArgument, message)
}

/// `Code`: 1 is OK, 2 is OVER_LIMIT.
fn code(is_over_limit: bool) -> u64 {
    if is_over_limit { 2 } else { 1 }
}

impl RateLimitReply {
    pub(super) fn into_frame(self) -> Vec<u8> {
        let mut writer = FieldWriter::frame();
        writer.number(1, code(self.is_over_limit));
        for status in &self.statuses {
            writer.message(2, |writer| status.write(writer));
        }
        for (name, value) in &self.headers {
            writer.message(3, |writer| {
                writer.bytes(1, name.as_str().as_bytes());
                writer.bytes(2, value.as_bytes());
            });
        }
        writer.bytes(5, &self.body);
        writer.into_frame()
    }
}

impl DescriptorStatus {
    fn write(&self, writer: &mut FieldWriter) {
        let most = u64::from(u32::MAX);
        writer.number(1, code(self.is_over_limit));
        if let Some(limit) = &self.limit {
            writer.message(2, |writer| {
                writer.number(1, limit.limit.min(most));
                writer.number(2, unit_of(limit.period));
                writer.bytes(3, limit.name.as_bytes());
            });
        }
        writer.number(3, self.remaining.min(most));
        if let Some(reset) = self.reset_in {
            writer.message(4, |writer| {
                writer.number(1, reset.0 / 1_000_000);
                writer.number(2, reset.0 % 1_000_000 * 1_000);
            });
        }
    }
}

/// `HealthCheckResponse.ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServingStatus {
    Serving = 1,
    NotServing = 2,
    Unknown = 3,
}

impl ServingStatus {
    pub(super) fn into_frame(self) -> Vec<u8> {
        let mut writer = FieldWriter::frame();
        writer.number(1, self as u64);
        writer.into_frame()
    }
}

/// The service of a `HealthCheckRequest`; empty = the server itself.
pub(super) fn health_service(message: &[u8]) -> Result<&str, Malformed> {
    let mut service = "";
    for field in FieldReader::new(message) {
        if let (1, value) = field? {
            service = value.text()?;
        }
    }
    Ok(service)
}
