//! `tollgate init`: what is written, what is found, what is never overwritten.

use insta::assert_snapshot;

use crate::folder::Folder;

/// Keys are found by their usual names; their names are written, never their values (H3).
#[test]
fn h3_init_writes_names_of_variables_and_no_keys() {
    let folder = Folder::new("init")
        .env("TMDB_API_KEY", "CANARY")
        .env("GITHUB_TOKEN", "CANARY");
    let said = folder.run(&["init", "tmdb", "omdb", "github", "musicbrainz", "tmdb"]);
    assert_snapshot!(format!(
        "{}\n--- tollgate.yaml\n{}",
        said.to_snapshot(),
        folder.read("tollgate.yaml")
    ));
    assert_eq!(
        folder.run(&["check"]).code,
        Some(0),
        "what init writes is right"
    );
}

/// Without a name: those whose keys are there, or none.
#[test]
fn init_without_a_name_uses_presets_whose_keys_are_set() {
    let found = Folder::new("found").env("OPENAI_API_KEY", "x");
    assert_eq!(found.run(&["init"]).code, Some(0));
    assert!(
        found.read("tollgate.yaml").ends_with(
            "providers:\n  openai:\n    preset: openai\n    api_key: ${OPENAI_API_KEY}\n"
        )
    );
    let none = Folder::new("none");
    assert_snapshot!(none.run(&["init"]).to_snapshot());
    assert_eq!(none.run(&["check"]).code, Some(0));
}

#[test]
fn init_overwrites_only_with_force() {
    let folder = Folder::new("force").file("tollgate.yaml", "mine\n");
    let said = folder.run(&["init", "tmdb"]);
    assert_eq!(
        (said.code, said.err.as_str()),
        (
            Some(1),
            "error: tollgate.yaml is there already; use --force to overwrite it\n"
        )
    );
    assert_eq!(folder.read("tollgate.yaml"), "mine\n");
    assert_eq!(folder.run(&["init", "tmdb", "--force"]).code, Some(0));
    assert!(folder.read("tollgate.yaml").contains("preset: tmdb"));
    assert_eq!(folder.run(&["init", "tmbd"]).code, Some(2));
}
