//! Costs in responses: JSON and event streams, compressed or not.
//!
//! The first byte of an input chooses format and encoding, the second how the body is cut.
//!
//! Promises: the costs do not depend on how the body is cut, are within bounds, and only for terms
//! that were asked for.
//!
//! Never: judges a real response; the tests of `tollgate` do.

use tollgate_core::feedback::COUNT_MAX;

const ENCODINGS: [Option<&str>; 5] = [
    None,
    Some("gzip"),
    Some("deflate"),
    Some("br"),
    Some("zstd"),
];

/// Reads the costs.
pub fn run(input: &[u8]) {
    let [format, cut, body @ ..] = input else {
        return;
    };
    let encoding = ENCODINGS.get(usize::from(format >> 1) % ENCODINGS.len());
    let encoding = encoding.copied().flatten();
    let is_stream = format % 2 == 1;
    let wanted = [
        (0, "usage.total_tokens".to_owned()),
        (2, "usage.input_tokens".to_owned()),
        (5, "cost".to_owned()),
    ];
    let whole = tollgate::fuzzing::costs(is_stream, encoding, &wanted, std::iter::once(body));
    let pieces = body.chunks(usize::from(*cut % 31) + 1);
    let cut = tollgate::fuzzing::costs(is_stream, encoding, &wanted, pieces);
    assert_eq!(whole, cut, "the costs do not depend on the cuts");
    for (term, cost) in whole {
        assert!((1..=COUNT_MAX).contains(&cost), "{cost}");
        assert!(wanted.iter().any(|(wanted, _)| *wanted == term));
    }
}
