//! Links between our own pages lead somewhere.

use crate::tree::{Offence, Source, assert_clean, tree};

fn offences(sources: &[Source]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for page in sources
        .iter()
        .filter(|source| source.extension() == Some("md"))
    {
        for (index, text) in page.text.lines().enumerate() {
            for target in text
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                if !leads_somewhere(page, target, sources) {
                    let what = format!("link to `{target}` leads nowhere");
                    offences.push(page.offence(index + 1, what, "correct or remove it"));
                }
            }
        }
    }
    offences
}

fn leads_somewhere(page: &Source, target: &str, sources: &[Source]) -> bool {
    let file = target.split('#').next().unwrap_or(target);
    if target.contains("://") || target.starts_with("mailto:") || file.is_empty() {
        return true;
    }
    let mut segments: Vec<&str> = page.path.split('/').collect();
    segments.pop();
    for segment in file
        .split('/')
        .filter(|segment| !segment.is_empty() && *segment != ".")
    {
        if segment != ".." {
            segments.push(segment);
        } else if segments.pop().is_none() {
            return false;
        }
    }
    let wanted = segments.join("/");
    let folder = format!("{wanted}/");
    sources
        .iter()
        .any(|source| source.path == wanted || source.path.starts_with(&folder))
}

#[test]
fn every_link_between_our_pages_leads_somewhere() {
    assert_clean(&offences(tree()));
}

#[test]
fn a_dead_link_is_found_and_living_ones_are_not() {
    let page = "[a](b.md#x) [c](../README.md) [d](adr/)\n[up](https://example.org) [gone](nope.md)";
    let sources = [
        Source::planted("docs/a.md", page),
        Source::planted("docs/b.md", ""),
        Source::planted("docs/adr/0001.md", ""),
        Source::planted("README.md", ""),
    ];
    let offences: Vec<String> = offences(&sources).iter().map(ToString::to_string).collect();
    assert_eq!(
        offences,
        ["docs/a.md:2: link to `nope.md` leads nowhere; correct or remove it"]
    );
}
