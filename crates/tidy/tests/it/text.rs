//! No file contains a path of the author's machine, a link out of the repository, or a secret.
//!
//! A test that proves that secrets never leak may contain text that looks like a secret. Such a
//! line has the mark `tidy:canary`.

use crate::tree::{Source, Violation, assert_clean, tree};

/// Folders of the machine that a file was written on.
const MACHINE_PATHS: [&str; 7] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/fa", "rm/"),
    concat!("/Us", "ers/"),
    concat!("/tmp/ba", "sh_jobs"),
    concat!(":\\Us", "ers\\"),
];

/// Hosts that packages are downloaded from. They belong into a tool's own settings.
const REGISTRY_HOSTS: [&str; 7] = [
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("registry.npm", "js.org"),
    concat!("pypi", ".org"),
    concat!("files.python", "hosted.org"),
    concat!("deb.deb", "ian.org"),
    concat!("sparse+", "http"),
];

/// A folder outside of the repository, which a clone does not have.
const OUTSIDE: &str = concat!("../sha", "red");

/// Prefixes of well-known secrets, and how many more letters follow at least.
const SECRETS: [(&str, usize); 10] = [
    (concat!("AK", "IA"), 16),
    (concat!("sk-", "live"), 8),
    (concat!("sk_", "live_"), 8),
    (concat!("sk-", "proj-"), 16),
    (concat!("sk-", "ant-"), 16),
    (concat!("gh", "p_"), 20),
    (concat!("github_", "pat_"), 20),
    (concat!("xox", "b-"), 16),
    (concat!("AI", "za"), 30),
    (concat!("PRIVATE ", "KEY-----"), 0),
];

const CANARY: &str = "tidy:canary";

fn violations(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, text) in source.text.lines().enumerate() {
            let found = [
                machine_path(text),
                registry_host(text),
                outside_path(text),
                secret(text),
            ];
            for (what, remedy) in found.into_iter().flatten() {
                violations.push(source.violation(index + 1, what, remedy));
            }
        }
    }
    violations
}

type Found = Option<(String, &'static str)>;

fn machine_path(text: &str) -> Found {
    let path = MACHINE_PATHS
        .iter()
        .find(|path| starts_a_path(text, path))?;
    Some((
        format!("`{path}` is a path of one machine"),
        "write it relative to the repository",
    ))
}

/// Whether `path` occurs in `text` at the start of a path, not inside the path of a URL.
fn starts_a_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let before = text.get(..at).and_then(|head| head.chars().next_back());
        !before.is_some_and(|letter| letter.is_alphanumeric() || "-_.}*".contains(letter))
    })
}

fn registry_host(text: &str) -> Found {
    let host = REGISTRY_HOSTS.iter().find(|host| text.contains(**host))?;
    Some((
        format!("`{host}` is a registry's host"),
        "name the package, not its host",
    ))
}

fn outside_path(text: &str) -> Found {
    let what = format!("`{OUTSIDE}` lies outside of the repository");
    text.contains(OUTSIDE)
        .then_some((what, "take what is needed into the repository"))
}

fn secret(text: &str) -> Found {
    if text.contains(CANARY) {
        return None;
    }
    let (start, _) = SECRETS.iter().find(|(start, more)| {
        text.match_indices(start).any(|(at, _)| {
            let rest = text.get(at + start.len()..).unwrap_or_default();
            let is_part = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
            rest.chars().take_while(is_part).count() >= *more
        })
    })?;
    let remedy = "remove and revoke it; if a test needs it, mark the line `tidy:canary`";
    Some((format!("`{start}…` looks like a secret"), remedy))
}

#[test]
fn no_file_holds_a_machine_path_a_registry_host_or_a_secret() {
    assert_clean(&violations(tree()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        violations(&[Source::fixture("a.md", text)])
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn machine_paths_are_found_and_paths_of_urls_are_not() {
        for path in MACHINE_PATHS {
            assert_eq!(found(&format!("see {path}x")).len(), 1, "{path}");
            assert_eq!(found(&format!("\"{path}x\"")).len(), 1, "{path}");
        }
        let in_url = format!("https://example.org{}x and $DIR{}", MACHINE_PATHS[2], "/x");
        assert!(found(&in_url).is_empty());
    }

    #[test]
    fn registry_hosts_are_found() {
        for host in REGISTRY_HOSTS {
            assert_eq!(
                found(&format!("url = \"https://{host}/x\"")).len(),
                1,
                "{host}"
            );
        }
    }

    #[test]
    fn a_folder_outside_of_the_repository_is_found() {
        assert!(found(&format!("\nsee {OUTSIDE}/style.md"))[0].starts_with("a.md:2: "));
    }

    #[test]
    fn secrets_are_found_unless_marked_as_canary() {
        for (start, more) in SECRETS {
            let planted = format!("key: {start}{}", "A1b2".repeat(more));
            assert_eq!(found(&planted).len(), 1, "{start}");
            assert!(
                found(&format!("{planted} # {CANARY}")).is_empty(),
                "{start}"
            );
        }
        let (start, _) = SECRETS[0];
        assert!(found(&format!("keys begin with {start}…")).is_empty());
    }

    #[test]
    fn a_violation_does_not_repeat_the_secret() {
        let (start, more) = SECRETS[5];
        let secret = "Z".repeat(more);
        assert!(!found(&format!("{start}{secret}"))[0].contains(&secret));
    }
}
