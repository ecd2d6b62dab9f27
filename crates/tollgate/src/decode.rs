//! Decompresses responses, only to read what they report about limits and costs.
//!
//! Promises: the bytes for the caller are never changed. Three bounds: decoded bytes, the ratio of
//! decoded to encoded bytes, and the memory that a stream may ask for. A body beyond a bound
//! decodes to nothing, and its headers must suffice.
//!
//! Never: fails. A truncated stream yields its decoded beginning.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// The most decoded bytes per encoded byte. Highly repetitive JSON reaches some 50; decompression
/// bombs a thousand and more.
const RATIO_MAX: usize = 200;

/// The largest window of a zstd stream, which RFC 9659 demands of senders.
const WINDOW_MAX: u64 = 8 * 1024 * 1024;

/// The read buffer of a brotli stream.
const BROTLI_BUFFER: usize = 4 * 1024;

/// The decoded bytes of a stream, and whether they are complete.
struct Decoded {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// The decoded body, of at most `most` bytes. Empty where it cannot be decoded.
pub(crate) fn decoded<'a>(headers: &HeaderMap, body: &'a [u8], most: usize) -> Cow<'a, [u8]> {
    if is_plain(headers) {
        return Cow::Borrowed(body);
    }
    let out = decode(headers, body, most);
    out.map_or(Cow::Borrowed(&[]), |out| Cow::Owned(out.bytes))
}

/// The decoded body, complete or `None`.
pub(crate) fn decoded_whole<'a>(
    headers: &HeaderMap,
    body: &'a [u8],
    most: usize,
) -> Option<Cow<'a, [u8]>> {
    if is_plain(headers) {
        return Some(Cow::Borrowed(body));
    }
    let out = decode(headers, body, most).filter(|out| out.is_whole)?;
    Some(Cow::Owned(out.bytes))
}

fn is_plain(headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(CONTENT_ENCODING).iter();
    match (all.next(), all.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"identity"),
        (Some(_), Some(_)) => false,
    }
}

fn decode(headers: &HeaderMap, body: &[u8], most: usize) -> Option<Decoded> {
    let mut all = headers.get_all(CONTENT_ENCODING).iter();
    let (Some(coding), None) = (all.next(), all.next()) else {
        return None;
    };
    let most = most.min(body.len().saturating_mul(RATIO_MAX));
    let coding = coding.to_str().unwrap_or_default().trim();
    match coding.to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => bounded(MultiGzDecoder::new(body), most),
        // Two formats are in use; the first bits distinguish them.
        "deflate" if is_zlib(body) => bounded(ZlibDecoder::new(body), most),
        "deflate" => bounded(DeflateDecoder::new(body), most),
        "br" => bounded(
            brotli_decompressor::Decompressor::new(body, BROTLI_BUFFER),
            most,
        ),
        "zstd" => zstd(body, most),
        _other => None,
    }
}

/// The decoded bytes, unless they are more than `most`.
fn bounded(stream: impl Read, most: usize) -> Option<Decoded> {
    let mut bytes = Vec::new();
    let past = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    // After an error the bytes before it remain.
    let is_whole = stream.take(past).read_to_end(&mut bytes).is_ok();
    (bytes.len() <= most).then_some(Decoded { bytes, is_whole })
}

fn is_zlib(body: &[u8]) -> bool {
    let [first, second, ..] = body else {
        return false;
    };
    first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
}

fn zstd(mut body: &[u8], most: usize) -> Option<Decoded> {
    window(body).filter(|window| *window <= WINDOW_MAX)?;
    let stream = ruzstd::decoding::StreamingDecoder::new(&mut body).ok()?;
    let out = bounded(stream, most)?;
    // The decoder reads one frame, and there may be more.
    Some(Decoded {
        is_whole: out.is_whole && body.is_empty(),
        ..out
    })
}

/// The memory that a zstd frame asks for (RFC 8878, 3.1.1.1): its window, or all of its content.
fn window(frame: &[u8]) -> Option<u64> {
    let header = frame.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (descriptor, rest) = header.split_first()?;
    if descriptor & 0x20 == 0 {
        let window = u64::from(*rest.first()?);
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * (window & 7));
    }
    let id = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let width = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let mut size = [0; 8];
    size.get_mut(..width)?
        .copy_from_slice(rest.get(id..id + width)?);
    Some(u64::from_le_bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    const TEXT: &[u8] = b"{\"rate_limit\": {\"remaining\": 7}}";

    fn coded(coding: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(coding))])
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// One uncompressed block, and the end (RFC 7932, 9.2).
    fn brotli(text: &[u8]) -> Vec<u8> {
        let head = ((u32::try_from(text.len()).unwrap() - 1) << 4) | (1 << 20);
        let mut stream = head.to_le_bytes()[..3].to_vec();
        stream.extend(text);
        stream.push(3);
        stream
    }

    #[test]
    fn every_common_coding_is_decoded() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(TEXT).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(TEXT).unwrap();
        for (coding, body) in [
            ("gzip", gzip(TEXT)),
            ("X-GZIP", gzip(TEXT)),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
            ("br", brotli(TEXT)),
            ("zstd", compress_to_vec(TEXT, CompressionLevel::Fastest)),
            ("identity", TEXT.to_vec()),
        ] {
            assert_eq!(&*decoded(&coded(coding), &body, 1_000), TEXT, "{coding}");
        }
        assert_eq!(&*decoded(&HeaderMap::new(), TEXT, 1_000), TEXT);
    }

    #[test]
    fn an_unknown_coding_yields_an_empty_body() {
        for coding in ["gzip, br", "compress", "\u{7f}", ""] {
            let headers = coded("gzip");
            let mut headers = headers.clone();
            if let Ok(value) = HeaderValue::from_str(coding) {
                headers.insert(CONTENT_ENCODING, value);
                assert!(decoded(&headers, &gzip(TEXT), 1_000).is_empty(), "{coding}");
            }
            headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            assert!(decoded(&headers, &gzip(TEXT), 1_000).is_empty());
        }
    }

    /// Complete or `None`: a second frame, a truncated stream and an unknown coding are incomplete.
    #[test]
    fn an_incomplete_body_is_not_whole() {
        let all = |coding, body: &[u8]| decoded_whole(&coded(coding), body, 1_000).is_some();
        let frame = compress_to_vec(TEXT, CompressionLevel::Fastest);
        assert!(all("zstd", &frame) && all("gzip", &gzip(TEXT)) && all("identity", TEXT));
        assert!(all("br", &brotli(TEXT)));
        assert!(!all("zstd", &frame.repeat(2)), "another frame");
        assert!(!all("gzip", &gzip(TEXT)[..20]), "truncated");
        assert!(!all("gzip, gzip", &gzip(&gzip(TEXT))));
        assert!(
            !all("gzip", &gzip(&TEXT.repeat(40))),
            "more than a thousand"
        );
        assert!(
            all("gzip", &[gzip(TEXT), gzip(TEXT)].concat()),
            "two members"
        );
    }

    #[test]
    fn a_truncated_stream_yields_its_beginning() {
        let whole = gzip(&[b'a'; 3_000].map(|byte| byte).repeat(2));
        let cut = &whole[..whole.len() - 6];
        let out = decoded(&coded("gzip"), cut, 100_000);
        assert!(!out.is_empty() && out.iter().all(|byte| *byte == b'a'));
        assert!(decoded(&coded("gzip"), b"no gzip at all", 1_000).is_empty());
        assert!(decoded(&coded("br"), b"\xff\xff\xff", 1_000).is_empty());
        assert!(decoded(&coded("zstd"), b"\x28\xb5\x2f\xfd", 1_000).is_empty());
    }

    /// R-D3: a decompression bomb decodes to nothing and costs no more than its bound.
    #[test]
    fn r_d3_a_decompression_bomb_is_not_decoded() {
        let zeros = vec![0; 64 * 1024 * 1024];
        let bomb = gzip(&zeros);
        assert!(bomb.len() < 1_024 * 1_024);
        assert!(decoded(&coded("gzip"), &bomb, 4 * 1_024 * 1_024).is_empty());
        let small = gzip(&zeros[..100_000]);
        assert!(
            decoded(&coded("gzip"), &small, 4 * 1_024 * 1_024).is_empty(),
            "by its ratio"
        );
    }

    /// R-D3: no broken stream does more than decode to nothing.
    #[test]
    fn r_d3_broken_streams_are_harmless() {
        let mut dice = fastrand::Rng::with_seed(7);
        let text = TEXT.repeat(40);
        let streams = [
            ("gzip", gzip(&text)),
            ("br", brotli(&text)),
            ("zstd", compress_to_vec(&*text, CompressionLevel::Fastest)),
        ];
        for round in 0..600 {
            let (coding, mut body) = streams[round % 3].clone();
            for _ in 0..dice.usize(1..6) {
                let at = dice.usize(..body.len());
                body[at] = dice.u8(..);
            }
            body.truncate(dice.usize(body.len() / 2..=body.len()));
            assert!(decoded(&coded(coding), &body, 10_000).len() <= 10_000);
        }
    }

    /// R-D3: a head that asks for too much memory is rejected.
    #[test]
    fn r_d3_a_large_window_is_rejected() {
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x00\x58"), Some(2 << 20));
        assert_eq!(
            window(b"\x28\xb5\x2f\xfd\x00\xff"),
            Some((1 << 41) + 7 * (1 << 38))
        );
        assert_eq!(
            window(b"\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x01\x00\x00\x00"),
            Some(1 << 32)
        );
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x20\x07"), Some(7));
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x00"), None);
        let asks = b"\x28\xb5\x2f\xfd\x00\xff\x01\x00\x00";
        assert!(decoded(&coded("zstd"), asks, 1_000).is_empty());
    }
}
