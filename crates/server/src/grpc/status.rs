//! gRPC statuses: how a call fails.
//!
//! Promises: the message names the thing and the remedy; the code says whose fault it is.
//!
//! Never: repeats a value of a request; it may be a key.

use http::{HeaderMap, HeaderValue, StatusCode};

use super::protobuf::Malformed;
use crate::decisions::DecisionError;
use crate::guards::GuardError;

/// The codes that this service sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcCode {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) struct GrpcStatus {
    code: GrpcCode,
    message: String,
}

impl GrpcStatus {
    pub(super) fn new(code: GrpcCode, message: impl Into<String>) -> GrpcStatus {
        GrpcStatus {
            code,
            message: message.into(),
        }
    }

    pub(super) fn invalid(message: &str) -> GrpcStatus {
        GrpcStatus::new(GrpcCode::InvalidArgument, message)
    }

    /// The trailers of this status.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = trailers_of(self.code);
        if let Ok(message) = HeaderValue::from_str(&percent_encoded(&self.message)) {
            trailers.insert("grpc-message", message);
        }
        trailers
    }
}

/// The trailers of success.
pub(super) fn ok_trailers() -> HeaderMap {
    trailers_of(GrpcCode::Ok)
}

fn trailers_of(code: GrpcCode) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert("grpc-status", HeaderValue::from(code as u16));
    trailers
}

/// Printable ASCII but `%` as it is, all other bytes as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

impl From<Malformed> for GrpcStatus {
    fn from(malformed: Malformed) -> GrpcStatus {
        let message = format!("{malformed}; send a message of envoy.service.ratelimit.v3");
        GrpcStatus::new(GrpcCode::InvalidArgument, message)
    }
}

impl From<DecisionError> for GrpcStatus {
    fn from(error: DecisionError) -> GrpcStatus {
        let code = match &error {
            DecisionError::Call(call) => match call.status() {
                StatusCode::NOT_FOUND => GrpcCode::NotFound,
                StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => GrpcCode::PermissionDenied,
                status if status.is_client_error() => GrpcCode::InvalidArgument,
                _ => GrpcCode::Unavailable,
            },
            DecisionError::Guard(GuardError::Unknown { .. }) => GrpcCode::NotFound,
            DecisionError::GuardNotAllowed { .. } => GrpcCode::PermissionDenied,
            DecisionError::Guard(GuardError::Limit(_)) => GrpcCode::ResourceExhausted,
            DecisionError::Guard(GuardError::NoIdentifier(_) | GuardError::TooMany(_))
            | DecisionError::UnknownPermit
            | DecisionError::AlreadyReleased
            | DecisionError::AlreadyReported => GrpcCode::InvalidArgument,
        };
        GrpcStatus::new(code, format!("{error}; {}", error.hint()))
    }
}

impl From<GuardError> for GrpcStatus {
    fn from(error: GuardError) -> GrpcStatus {
        DecisionError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_header_whatever_it_says() {
        let status = GrpcStatus::invalid("50 % größer\n");
        let trailers = status.trailers();
        assert_eq!(trailers["grpc-status"], "3");
        assert_eq!(trailers["grpc-message"], "50 %25 gr%C3%B6%C3%9Fer%0A");
    }
}
