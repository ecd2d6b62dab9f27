//! A cached response as bytes: the same in `cache.db` and in Redis.
//!
//! Promises: reading never panics; what is cut off or changed is no response, or another one, and never more
//! than it was.
//!
//! Never: holds a key or an owner.

#[cfg(any(feature = "redis", test))]
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate_core::fresh::Freshness;
use tollgate_core::time::{Span, Wall};

use super::CachedResponse;

/// Everything of a response except its body, key and owner.
pub(super) fn encode_head(object: &CachedResponse) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend(object.status.as_u16().to_le_bytes());
    let freshness = &object.freshness;
    for at in [
        freshness.generated_at.0,
        freshness.fresh_until.0,
        freshness.revalidate_until.0,
        freshness.stale_until.0,
        freshness.lifetime.0,
    ] {
        out.extend(at.to_le_bytes());
    }
    out.push(u8::from(freshness.always_revalidate) | (u8::from(freshness.must_revalidate) << 1));
    let mut text = |bytes: &[u8]| {
        // Heads are below 64 KiB in all, so every length fits.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        out.extend(length.to_le_bytes());
        out.extend(bytes);
    };
    text(object.vary_names.join(",").as_bytes());
    for (name, value) in &object.headers {
        text(name.as_str().as_bytes());
        text(value.as_bytes());
    }
    out
}

/// Head and body of a response as one text.
#[cfg(feature = "redis")]
pub(super) fn encode(object: &CachedResponse) -> Vec<u8> {
    let head = encode_head(object);
    let mut out = Vec::with_capacity(4 + head.len() + object.body.len());
    // Heads are below 64 KiB.
    out.extend(u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(head);
    out.extend(&object.body[..]);
    out
}

/// The head and the body of [`encode`].
#[cfg(feature = "redis")]
pub(super) fn decode(mut bytes: &[u8]) -> Option<(DecodedHead, Bytes)> {
    let head = decode_head(take_text(&mut bytes)?)?;
    Some((head, Bytes::copy_from_slice(bytes)))
}

/// Status, freshness, the names that it varies on, headers.
pub(super) type DecodedHead = (StatusCode, Freshness, Vec<String>, HeaderMap);

/// The head of [`encode_head`].
pub(super) fn decode_head(mut head: &[u8]) -> Option<DecodedHead> {
    let head = &mut head;
    let status = StatusCode::from_u16(u16::from_le_bytes(take(head)?)).ok()?;
    let mut number = || Some(u64::from_le_bytes(take(head)?));
    let mut freshness = Freshness {
        generated_at: Wall(number()?),
        fresh_until: Wall(number()?),
        revalidate_until: Wall(number()?),
        stale_until: Wall(number()?),
        lifetime: Span(number()?),
        ..Freshness::default()
    };
    let [flags] = take(head)?;
    freshness.always_revalidate = flags & 1 != 0;
    freshness.must_revalidate = flags & 2 != 0;
    let names = String::from_utf8(take_text(head)?.to_vec()).ok()?;
    let names = names.split(',').filter(|name| !name.is_empty());
    let names = names.map(str::to_owned).collect();
    let mut headers = HeaderMap::new();
    while !head.is_empty() {
        let name = HeaderName::from_bytes(take_text(head)?).ok()?;
        headers.append(name, HeaderValue::from_bytes(take_text(head)?).ok()?);
    }
    Some((status, freshness, names, headers))
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*taken)
}

fn take_text<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(u32::from_le_bytes(take(from)?)).ok()?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::key::{UrlHash, Variant};
    use super::super::object::WireForm;
    use super::*;

    fn example() -> CachedResponse {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        CachedResponse {
            url: UrlHash([9; 16]),
            stored: Wall(6),
            vary_names: vec!["accept-language".to_owned()],
            variant: Variant([3; 16]),
            freshness: Freshness {
                generated_at: Wall(1),
                fresh_until: Wall(2),
                revalidate_until: Wall(3),
                stale_until: Wall(4),
                always_revalidate: false,
                must_revalidate: true,
                lifetime: Span(5),
            },
            status: StatusCode::NOT_FOUND,
            headers,
            body: Bytes::from_static(b"body"),
            provider: "x".to_owned(),
            entity: None,
            wire_form: WireForm::default(),
        }
    }

    #[test]
    fn an_encoded_head_decodes_to_the_same_head() {
        let object = example();
        let (status, freshness, names, headers) = decode_head(&encode_head(&object)).unwrap();
        assert_eq!((status, freshness), (object.status, object.freshness));
        assert_eq!((names, headers), (object.vary_names, object.headers));
    }

    #[test]
    fn decoding_a_damaged_head_never_panics() {
        let whole = encode_head(&example());
        for cut in 0..whole.len() {
            let read = decode_head(&whole[..cut]);
            assert!(read.is_none_or(|(_, _, _, headers)| headers.len() < 2));
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            let _read = decode_head(&changed);
        }
    }
}
