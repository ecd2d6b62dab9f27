//! Keys and responses as the script of the cache takes and returns them.
//!
//! Promises: reading never panics; what cannot be read is no response.
//!
//! Never: sends.

use std::fmt::Write;

use tollgate_core::time::Wall;

use super::key::{UrlHash, Variant};
use super::object::WireForm;
use super::{CachedResponse, stored_form};

/// Variant, time, URL, owner and the response itself, as the script returns them.
pub(super) fn read_response(parts: &[Vec<u8>]) -> Option<CachedResponse> {
    let [variant, stored, url, owner, response] = parts else {
        return None;
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let ((status, freshness, vary_names, headers), body) = stored_form::decode(response)?;
    let owner = text(owner)?;
    let (provider, entity) = owner.split_once('\n')?;
    Some(CachedResponse {
        url: UrlHash(unhex(&text(url)?)?),
        stored: Wall(text(stored)?.parse().ok()?),
        vary_names,
        variant: Variant(unhex(&text(variant)?)?),
        freshness,
        status,
        headers,
        body,
        provider: provider.to_owned(),
        entity: (!entity.is_empty()).then(|| entity.to_owned()),
        wire_form: WireForm::default(),
    })
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _never_fails = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes of hexadecimal digits, if there are so many.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != N * 2 {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}
