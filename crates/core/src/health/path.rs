//! The path of a call, as health counts it: ids in it are collapsed, so that `/movie/550` and
//! `/movie/551` are one path.
//!
//! Promises: the tag of a path is the same in every process and every version, because processes
//! find each other's scopes by it. One pass over the path, no allocation.
//!
//! Never: looks at a query or a body.

use crate::ask::{PathTag, ScopeId};

/// FNV-1a, 64 bits: short, and fixed for ever. Two paths with one tag would share their failures,
/// nothing else; among the 64 paths that fail at a time that is one chance in 10¹⁶.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// The longest path that is shown: a line of a terminal.
const SHOWN_MAX: usize = 80;

/// A segment with at least this many digits is an id: versions and names such as `v3`, `oauth2` or
/// `mp3` have fewer, `tt0111161` has more.
const ID_DIGITS: usize = 4;

/// A segment of at least this length with a digit in it is an id: tokens, UUIDs, hashes.
const ID_LENGTH: usize = 16;

/// The shortest hexadecimal id, as in abbreviated hashes.
const HEX_LENGTH: usize = 7;

impl PathTag {
    /// All paths for which there is no place of their own.
    pub const OTHERS: PathTag = PathTag(u64::MAX - 1);

    /// The tag of a path.
    #[must_use]
    pub fn of(path: &str) -> PathTag {
        let mut hash = FNV_START;
        let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        for segment in path.split('/') {
            add(b'/');
            if is_id(segment) {
                add(b'*');
            } else {
                segment.bytes().for_each(&mut add);
            }
        }
        // 0 and the two highest numbers have meanings of their own in a scope.
        PathTag(hash.clamp(1, u64::MAX - 2))
    }

    /// The scope of this path, below the health scope of its provider.
    #[must_use]
    pub fn scope(self, health: ScopeId) -> ScopeId {
        let (high, low) = (mix(self.0), mix(!self.0));
        ScopeId(health.0 ^ (u128::from(high) << 64 | u128::from(low)))
    }
}

/// A path as people read it: ids are `*`, and a long one is cut.
#[must_use]
pub fn shown_path(path: &str) -> String {
    let mut shown = String::new();
    for segment in path.split('/').skip(usize::from(path.starts_with('/'))) {
        shown.push('/');
        shown.push_str(if is_id(segment) { "*" } else { segment });
        if shown.len() > SHOWN_MAX {
            break;
        }
    }
    if let Some((end, _)) = shown.char_indices().nth(SHOWN_MAX) {
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

/// Is this segment the name of one item, and not of a kind of items?
fn is_id(segment: &str) -> bool {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 {
        return false;
    }
    let all = |test: fn(u8) -> bool| segment.bytes().all(test);
    digits >= ID_DIGITS
        || segment.len() >= ID_LENGTH
        || all(|byte| byte.is_ascii_digit() || b"-_.,:;~+".contains(&byte))
        || (segment.len() >= HEX_LENGTH && all(|byte| byte.is_ascii_hexdigit()))
}

/// A fixed permutation of 64 bits (splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_collapsed_and_names_are_not() {
        for (path, shown) in [
            ("/movie/550", "/movie/*"),
            ("/3/movie/550/credits", "/*/movie/*/credits"),
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/title/tt0111161/", "/title/*/"),
            ("/users/0f8fad5b-d9cb-469f-a165-70867728950e", "/users/*"),
            ("/commit/4f9d2ab", "/commit/*"),
            ("/days/2026-11-16", "/days/*"),
            ("/oauth2/token", "/oauth2/token"),
            ("/files/readme", "/files/readme"),
            ("/", "/"),
            ("", "/"),
        ] {
            assert_eq!(shown_path(path), shown);
        }
        assert_eq!(PathTag::of("/movie/550"), PathTag::of("/movie/551"));
        assert_ne!(PathTag::of("/movie/550"), PathTag::of("/tv/550"));
        assert_ne!(PathTag::of("/a/b"), PathTag::of("/ab"));
    }

    /// Other processes and later versions find the same scope.
    #[test]
    fn the_tag_and_the_scope_of_a_path_never_change() {
        let tag = PathTag::of("/movie/550");
        assert_eq!(tag, PathTag(TAG_OF_MOVIE));
        assert_eq!(tag.scope(ScopeId(1)).0, SCOPE_OF_MOVIE);
    }

    const TAG_OF_MOVIE: u64 = 0x299e_20f5_d734_f838;
    const SCOPE_OF_MOVIE: u128 = 0xb979_9091_d058_ad0b_e5ef_f824_ab2d_e5f9;

    #[test]
    fn a_long_path_is_cut_at_a_character() {
        let shown = shown_path(&format!("/{}", "ü".repeat(200)));
        assert_eq!(shown.chars().count(), SHOWN_MAX + 1);
        assert!(shown.ends_with('…'));
    }
}
