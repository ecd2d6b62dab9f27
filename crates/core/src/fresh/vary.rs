//! Which request headers select the variant of a response.
//!
//! Promises: covers the response's `Vary`, the configured headers, and headers that responses
//! often forget to list. Equivalent spellings of a value give one variant.
//!
//! Never: reads the credential. It is part of every key anyway.

use super::fields::{Headers, has, single_value};

/// Header names that one response may vary on. With more, a mistake or an attack, it is not stored.
const VARY_MAX: usize = 32;

/// What a response varies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Varies {
    /// On these headers of the request: sorted, in lower case, none twice.
    On(Vec<String>),
    /// On more than headers, or on too many.
    OnAnything,
}

/// What a response varies on, including the configured headers.
#[must_use]
pub fn varies(response: &impl Headers, configured: &[String]) -> Varies {
    let mut names: Vec<String> = configured.to_vec();
    let mut is_star = false;
    response.each("vary", &mut |line| {
        for name in line.split(|byte| *byte == b',') {
            let name = name.trim_ascii().to_ascii_lowercase();
            is_star |= name == b"*";
            if !name.is_empty() && names.len() <= VARY_MAX {
                names.push(String::from_utf8_lossy(&name).into_owned());
            }
        }
    });
    // An encoded body is only for clients that can decode it, even without `Vary`.
    if has(response, "content-encoding") {
        names.push("accept-encoding".to_owned());
    }
    // A browser accepts the response for this origin only.
    let for_origin = single_value(response, "access-control-allow-origin");
    if for_origin.is_some_and(|origin| origin.trim_ascii() != b"*") {
        names.push("origin".to_owned());
    }
    names.sort_unstable();
    names.dedup();
    if is_star || names.len() > VARY_MAX {
        Varies::OnAnything
    } else {
        Varies::On(names)
    }
}

/// A request header in its normalized form: lines joined, no spaces around commas. Lists whose
/// order has no meaning, because each entry has a weight, are sorted and in lower case. Absent is
/// not the same as empty.
pub fn variant_text(name: &str, request: &impl Headers, into: &mut Vec<u8>) {
    if !has(request, name) {
        into.push(0);
        return;
    }
    into.push(1);
    let mut parts: Vec<Vec<u8>> = Vec::new();
    request.each(name, &mut |line| {
        let words = line.split(|byte| *byte == b',');
        parts.extend(words.map(|word| word.trim_ascii().to_vec()));
    });
    if matches!(name, "accept-language" | "accept-encoding") {
        for part in &mut parts {
            part.retain(|byte| *byte != b' ');
            part.make_ascii_lowercase();
        }
        parts.sort_unstable();
    }
    into.extend(parts.join(&b","[..]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, lines: &[&str]) -> Vec<u8> {
        let lines: Vec<(&str, &[u8])> = lines.iter().map(|line| (name, line.as_bytes())).collect();
        let mut into = Vec::new();
        variant_text(name, &lines.as_slice(), &mut into);
        into
    }

    fn of(lines: &[(&str, &str)], configured: &[&str]) -> Varies {
        let lines: Vec<(&str, &[u8])> = lines
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        let configured: Vec<String> = configured.iter().map(ToString::to_string).collect();
        varies(&lines.as_slice(), &configured)
    }

    #[test]
    fn equivalent_spellings_give_one_variant() {
        assert_eq!(text("foo", &["a, b"]), text("foo", &["a ,b"]));
        assert_eq!(text("foo", &["a, b"]), text("foo", &["a", "b"]));
        assert_ne!(text("foo", &["a, b"]), text("foo", &["b, a"]));
        assert_ne!(text("foo", &["A"]), text("foo", &["a"]));
        assert_ne!(text("foo", &[""]), text("foo", &[]));
        let languages = |line| text("accept-language", &[line]);
        assert_eq!(languages("en, de;q=0.5"), languages("DE; q=0.5,EN"));
    }

    #[test]
    fn a_star_in_vary_means_varies_on_anything() {
        for line in ["*", "*, *", ", *", "foo, *", "*, foo"] {
            assert_eq!(of(&[("Vary", line)], &[]), Varies::OnAnything, "{line}");
        }
        assert_eq!(
            of(&[("Vary", "Foo"), ("Vary", "*")], &[]),
            Varies::OnAnything
        );
    }

    #[test]
    fn vary_names_include_configured_and_implied_headers() {
        assert_eq!(
            of(
                &[("vary", "B, a"), ("content-encoding", "gzip")],
                &["accept-language", "b"]
            ),
            Varies::On(
                ["a", "accept-encoding", "accept-language", "b"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        let origin = |value| of(&[("access-control-allow-origin", value)], &[]);
        assert_eq!(origin("*"), Varies::On(vec![]));
        assert_eq!(
            origin("https://a.example"),
            Varies::On(vec!["origin".to_owned()])
        );
    }

    #[test]
    fn too_many_vary_names_count_as_a_star() {
        let many: Vec<String> = (0..=VARY_MAX).map(|n| format!("x{n}")).collect();
        assert_eq!(of(&[("vary", &many.join(","))], &[]), Varies::OnAnything);
        assert!(matches!(
            of(&[("vary", &many[1..].join(","))], &[]),
            Varies::On(_)
        ));
    }
}
