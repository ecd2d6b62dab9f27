//! Models of servers that read paths differently, tested with random spellings: however a server
//! reads the sent path, it serves the entity that was counted.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::tests::{by_path, sports};
use super::*;

/// How one kind of server reads a path.
#[derive(Clone, Copy, Debug)]
struct Server {
    split_first: bool,
    decodes: usize,
    backslash: bool,
    merges: bool,
    cuts_parameters: bool,
    folds_case: bool,
    trims: bool,
    cuts_format: bool,
}

impl Server {
    fn all() -> impl Iterator<Item = Server> {
        (0..256_usize).flat_map(|bits| {
            let on = move |bit: usize| bits >> bit & 1 == 1;
            (1..=2).map(move |decodes| Server {
                split_first: on(0),
                decodes,
                backslash: on(1),
                merges: on(2),
                cuts_parameters: on(3),
                folds_case: on(4),
                trims: on(5),
                cuts_format: on(6),
            })
        })
    }

    fn decoded(self, bytes: &[u8]) -> String {
        let mut bytes = bytes.to_vec();
        for _ in 0..self.decodes {
            bytes = path::decode(&bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn split(self, text: &str) -> Vec<String> {
        let is_slash = |letter| letter == '/' || (self.backslash && letter == '\\');
        text.split(is_slash).skip(1).map(str::to_owned).collect()
    }

    /// The entity that this server serves under `/v3/football`, if it knows one.
    fn serves(self, sent: &str) -> Option<String> {
        let parts = if self.split_first {
            sent.split('/')
                .skip(1)
                .map(|part| self.decoded(part.as_bytes()))
                .collect()
        } else {
            self.split(&self.decoded(sent.as_bytes()))
        };
        let mut segments: Vec<String> = Vec::new();
        for part in parts {
            let part = self.segment(&part);
            match part.as_str() {
                "." => {}
                ".." => drop(segments.pop()),
                "" if self.merges => {}
                _ => segments.push(part),
            }
        }
        match segments
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice()
        {
            ["v3", "football", entity, ..] if ["odds", "teams"].contains(entity) => {
                Some((*entity).to_owned())
            }
            _ => None,
        }
    }

    fn segment(self, part: &str) -> String {
        let mut part = part.to_owned();
        if self.cuts_parameters {
            part.truncate(part.find(';').unwrap_or(part.len()));
        }
        if self.folds_case {
            part = part.to_lowercase();
        }
        if self.trims && !part.chars().all(|letter| letter == '.') {
            part = part
                .trim_start_matches(' ')
                .trim_end_matches(['.', ' '])
                .to_owned();
        }
        if self.cuts_format {
            part = part.strip_suffix(".json").unwrap_or(&part).to_owned();
        }
        part
    }
}

/// Ways to write a slash, most of them wrong somewhere.
const JOINTS: [&str; 20] = [
    "/",
    "/",
    "/",
    "/",
    "/",
    "/",
    "//",
    "/./",
    "/%2e/",
    "/a/../",
    "/..;/",
    "/..%3b/",
    "%2f",
    "%2F..%2f",
    "%5c",
    "%252f",
    "/%252e%252e/",
    ";x=1/",
    "/;/",
    "/.../",
];

/// Ways to write a segment.
fn segment_spelling() -> impl Strategy<Value = String> {
    let name = prop::sample::select(&["v3", "football", "odds", "teams", "", "7"][..]);
    (name, 0..16_usize).prop_map(|(name, way)| match way {
        0 => name.to_uppercase(),
        1 => name.replacen('o', "%6f", 1),
        2 => name.replacen('o', "%6F", 1),
        3 => name.replacen('o', "%256f", 1),
        4 => format!("{name}."),
        5 => format!("{name}%20"),
        6 => format!("{name};x=1"),
        7 => format!("{name}%3bx"),
        8 => format!("{name}%253bx"),
        9 => format!("{name}.json"),
        10 => name.replacen('o', "%ef%bd%8f", 1),
        _ => name.to_owned(),
    })
}

fn spelling() -> impl Strategy<Value = String> {
    let step = || (prop::sample::select(&JOINTS[..]), segment_spelling());
    let steps = prop::collection::vec(step(), 0..5);
    let open = prop::sample::select(
        &[
            "/v3/football",
            "/v3/football",
            "//V3%2ffootball",
            "/%763/football;a",
            "",
        ][..],
    );
    (open, steps).prop_map(|(open, steps)| {
        let rest: String = steps
            .into_iter()
            .flat_map(|(joint, name)| [joint.to_owned(), name])
            .collect();
        format!("{open}{rest}")
    })
}

fn config(seed: u64) -> ProptestConfig {
    ProptestConfig {
        cases: 256,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(31))]

    /// S1, R-E3: however a server reads the sent path, it serves the entity that was counted.
    #[test]
    fn s1_no_spelling_reaches_an_entity_that_was_not_counted(paths in prop::collection::vec(spelling(), 8)) {
        for path in paths {
            let Ok(routed) = by_path(&sports(), &path) else { continue };
            let counted = routed.entity.map(|entity| entity.to_string());
            for server in Server::all() {
                if let Some(served) = server.serves(&routed.path) {
                    prop_assert_eq!(&counted, &Some(served), "{} sent as {} to {:?}", path, routed.path, server);
                }
            }
        }
    }

    /// Routing the sent path again gives the same path, so a second gateway changes nothing.
    #[test]
    fn routing_the_sent_path_changes_nothing(path in spelling()) {
        if let Ok(routed) = by_path(&sports(), &path) {
            prop_assert_eq!(by_path(&sports(), &routed.path), Ok(routed));
        }
    }

    /// Nothing that comes over the wire panics.
    #[test]
    fn any_text_is_routed_or_rejected(path in ".{0,40}", query in ".{0,40}", body in prop::collection::vec(any::<u8>(), 0..60)) {
        for source in [EntitySource::Path, EntitySource::Query("a".into()), EntitySource::Body(vec!["a".into()])] {
            let entities = Entities { source, ..Entities::default() };
            let slashed = format!("/{path}");
            let request = EntityRequest { path: &slashed, query: &query, body: &body, ..EntityRequest::default() };
            drop(entities.route(&request));
        }
        drop(Glob::parse(&path));
        drop(crate::domain::Domain::parse(&path));
    }
}
