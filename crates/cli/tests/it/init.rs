//! `tollgate init`: which file it writes, which keys it finds, and that it never overwrites.

use insta::assert_snapshot;

use crate::folder::Folder;

/// Keys are found by their usual variable names; `init` writes the names, never the values (H3).
#[test]
fn h3_init_writes_names_of_variables_and_no_keys() {
    let folder = Folder::new("init")
        .env("TMDB_API_KEY", "CANARY")
        .env("GITHUB_TOKEN", "CANARY");
    let output = folder.run(&["init", "tmdb", "omdb", "github", "musicbrainz", "tmdb"]);
    assert_snapshot!(format!(
        "{}\n--- tollgate.yaml\n{}",
        output.to_snapshot(),
        folder.read("tollgate.yaml")
    ));
    assert_eq!(
        folder.run(&["check"]).code,
        Some(0),
        "the file that init writes is valid"
    );
}

/// Without a name: the presets whose keys are set, or none.
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
    let output = folder.run(&["init", "tmdb"]);
    assert_eq!(
        (output.code, output.err.as_str()),
        (
            Some(1),
            "error: tollgate.yaml already exists; use --force to overwrite it\n"
        )
    );
    assert_eq!(folder.read("tollgate.yaml"), "mine\n");
    assert_eq!(folder.run(&["init", "tmdb", "--force"]).code, Some(0));
    assert!(folder.read("tollgate.yaml").contains("preset: tmdb"));
    assert_eq!(folder.run(&["init", "tmbd"]).code, Some(2));
}
