//! Loop detection: finds calls that come back to the gateway that sent them.
//!
//! Promises: a gateway recognises its own name in `Via` (RFC 9110, 7.6.3) among others. The name is
//! new for each run and reveals nothing about the host.
//!
//! Never: sent to an upstream over TLS. Other gateways are called without TLS, public providers
//! with it, and some servers respond differently to a `Via`, for instance uncompressed.

use std::hash::{BuildHasher, RandomState};

use http::header::{HeaderMap, HeaderValue, VIA};

/// The name of this run in `Via`.
#[derive(Clone, Debug)]
pub(crate) struct Via {
    /// As it is sent: `1.1 tollgate-0123456789abcdef`.
    value: HeaderValue,
}

impl Default for Via {
    /// The standard library seeds its hash keys from the system's random source.
    fn default() -> Via {
        Via::new(RandomState::new().hash_one(0))
    }
}

impl Via {
    fn new(number: u64) -> Via {
        let value = HeaderValue::try_from(format!("1.1 tollgate-{number:016x}"));
        Via {
            value: value.expect("hexadecimal digits"),
        }
    }

    /// The header value that is added to calls.
    pub(crate) fn header_value(&self) -> &HeaderValue {
        &self.value
    }

    /// Did this process send the call?
    pub(crate) fn has_passed(&self, headers: &HeaderMap) -> bool {
        let own = self.value.as_bytes();
        let name = own.rsplit(|byte| *byte == b' ').next().unwrap_or(own);
        let is_own = |part: &[u8]| {
            let mut words = part.split(|byte| byte.is_ascii_whitespace());
            words.any(|word| word.eq_ignore_ascii_case(name))
        };
        let mut values = headers.get_all(VIA).iter();
        values.any(|value| value.as_bytes().split(|byte| *byte == b',').any(is_own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_via_entry_is_found_and_others_are_not() {
        let via = Via::new(7);
        let is_in = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(VIA, HeaderValue::from_static(value));
            }
            via.has_passed(&headers)
        };
        assert!(is_in(&["1.1 tollgate-0000000000000007"]));
        assert!(is_in(&[
            "1.0 fred, 1.1 p.example.net (x)",
            "1.1 other,1.1  Tollgate-0000000000000007 (y)"
        ]));
        assert!(!is_in(&[]));
        assert!(!is_in(&["1.1 tollgate-0000000000000008"]));
        assert!(!is_in(&["1.1 tollgate-00000000000000071"]));
    }
}
