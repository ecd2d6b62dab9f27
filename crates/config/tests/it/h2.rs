//! H2: provider files, folders and tollgate.yaml, mixed freely; H4: whose domain it is.

use tollgate_config::Sources;
use tollgate_core::domain::Host;

use crate::test_host::{TestHost, files};

fn three() -> TestHost {
    TestHost::new()
        .file("a.yaml", "domain: a.example.org\nlimit: 1\nperiod: 1s\n")
        .file("dir/b.yml", "domain: b.example.org\nlimit: 2\nperiod: 1s\n")
        .file(
            "dir/c.yaml",
            "domain: c.example.org\nlimit: 3\nperiod: 1s\n",
        )
        .file("dir/notes.txt", "not a provider")
        .file("dir/.hidden.yaml", "not: [a provider")
}

fn names(machine: &TestHost, sources: &Sources) -> Vec<String> {
    let loaded = machine.loaded(sources);
    let names = loaded.config.providers.iter();
    names.map(|provider| provider.name.clone()).collect()
}

/// H2: `--provider` and `--provider-dir`, mixed; other files of a folder do not count.
#[test]
fn h2_files_and_folders_are_mixed_freely() {
    let sources = Sources {
        provider_dirs: vec!["dir/".to_owned()],
        ..files(&["a.yaml", "dir/c.yaml"])
    };
    assert_eq!(names(&three(), &sources), ["b", "c", "a"]);
}

/// H2: tollgate.yaml names a folder, files, or holds the providers; its paths count from it.
#[test]
fn h2_tollgate_yaml_names_a_folder_or_files_or_holds_providers() {
    let config = Sources {
        config: Some("etc/tollgate.yaml".to_owned()),
        ..Sources::default()
    };
    for (text, expected) in [
        ("providers: dir\n", vec!["b", "c"]),
        ("providers: [../a.yaml, dir/b.yml]\n", vec!["a", "b"]),
        (
            "providers: { x: { preset: tmdb }, y: { domain: y.example.org, limit: 1, period: 1s } }\n",
            vec!["x", "y"],
        ),
        ("# nothing\n", vec![]),
    ] {
        let machine = TestHost::new()
            .file("etc/tollgate.yaml", text)
            .file("etc/../a.yaml", "domain: a.example.org\nlimits: [1/1s]\n")
            .file("etc/dir/b.yml", "domain: b.example.org\nlimits: [1/1s]\n")
            .file("etc/dir/c.yaml", "domain: c.example.org\nlimits: [1/1s]\n");
        assert_eq!(names(&machine, &config), expected, "{text}");
    }
}

/// H2: without `--config` it is TOLLGATE_CONFIG, then tollgate.yaml here, then nothing at all.
#[test]
fn h2_the_configuration_is_found() {
    let here = three().file("tollgate.yaml", "providers: [a.yaml]\n");
    assert_eq!(names(&here, &Sources::default()), ["a"]);
    let named = here
        .file("other.yaml", "providers: dir\n")
        .env("TOLLGATE_CONFIG", "other.yaml");
    assert_eq!(names(&named, &Sources::default()), ["b", "c"]);
    assert!(names(&three(), &Sources::default()).is_empty());
    let missing = TestHost::new().env("TOLLGATE_CONFIG", "gone.yaml");
    assert_eq!(
        missing.load_errors(&Sources::default()),
        "gone.yaml: the file cannot be read (no such file); check the path and who may read it"
    );
}

/// Two providers of one name or domain are reported with both places.
#[test]
fn conflicting_providers_are_reported_with_both_places() {
    let machine = TestHost::new()
        .file(
            "a.yaml",
            "name: my-api\ndomain: a.example.org\nlimits: [1/1s]\nlisten: 127.0.0.1:5000\n",
        )
        .file(
            "b.yaml",
            "name: my_api\ndomain: b.example.org\nlimits: [1/1s]\n",
        )
        .file(
            "c.yaml",
            "limits: [1/1s]\ndomains: [x.example.org, A.example.org]\n",
        )
        .file(
            "d.yaml",
            "domain: d.example.org\nlimits: [1/1s]\nlisten: 127.0.0.1:5000\n",
        )
        .file(
            "e.yaml",
            "domain: e.example.org\nlimits: [1/1s]\nlisten: 127.0.0.1:4290\n",
        );
    assert_eq!(
        machine.load_errors(&files(&["a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"])),
        "b.yaml:1:7: the provider at a.yaml:1:7 has this name too; choose another with `name:`; `-` and `_` are the same in variables\n\
         c.yaml:2:26: the domain a.example.org belongs to the provider at a.yaml:2:9 too; write all its limits into one file, or name a narrower domain\n\
         d.yaml:3:9: the provider at a.yaml:4:9 listens here too; give one of them another port\n\
         e.yaml:3:9: the gateway or the admin address listens here too; give the provider another port"
    );
}

/// Two files of one preset: the error named the place of the domain in the preset twice, and neither file.
#[test]
fn two_files_of_one_preset_are_both_named() {
    let machine = TestHost::new()
        .file("a.yaml", "preset: omdb\napi_key: ${X}\n")
        .file("b.yaml", "preset: omdb\napi_key: ${X}\n")
        .env("X", "key");
    let problems = machine.load_errors(&files(&["a.yaml", "b.yaml"]));
    let expected = "b.yaml: the domain omdbapi.com belongs to the provider at a.yaml too; ";
    assert!(problems.starts_with(expected), "{problems}");
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

/// Every problem of every file is reported at once.
#[test]
fn problems_of_all_files_are_reported_at_once() {
    let machine = TestHost::new()
        .file(
            "tollgate.yaml",
            "lisen: 1\nproviders: nowhere\nstore: redis-cluster://h\n",
        )
        .file("a.yaml", "limit: x\nperiod: 1s\n")
        .file("b.yaml", "limt: 1\n")
        .file("c.yaml", "# only a comment\n");
    let problems_text = machine.load_errors(&files(&["a.yaml", "b.yaml", "c.yaml", "d.yaml"]));
    for line in [
        "tollgate.yaml:1:1: `lisen` is not a field; did you mean `listen`?",
        "tollgate.yaml:2:12: there is no folder of this name; give a folder with provider files",
        "tollgate.yaml:3:8: store: is not supported yet; use `redis://HOST` (one server), `postgres://HOST/DATABASE`, `sqlite:DIR` or `memory:`",
        "a.yaml:1:8: limit: is not a whole number",
        "b.yaml:1:1: `limt` is not a field; did you mean `limit`?",
        "c.yaml: the file has no fields; write `domain:`",
        "d.yaml: the file cannot be read (no such file)",
    ] {
        assert!(
            problems_text.contains(line),
            "{problems_text}\nwanted {line}"
        );
    }
}

/// H4: a known domain gets its preset with no file, a file's domain is the file's, and the most
/// specific domain wins.
#[test]
fn h4_domains_belong_to_files_first_and_then_to_presets() {
    let machine = TestHost::new()
        .file("mine.yaml", "preset: tmdb\n")
        .file("narrow.yaml", "domain: eu.a.example.org\nlimits: [1/1s]\n")
        .file("wide.yaml", "domain: a.example.org\nlimits: [1/1s]\n");
    let sources = files(&["mine.yaml", "narrow.yaml", "wide.yaml"]);
    let loaded = machine.loaded(&sources);
    let table = loaded.config.by_domain();
    let owner = |host: &str| {
        let found = table.find(&Host::parse(host).unwrap());
        found
            .map(|provider| provider.name.clone())
            .unwrap_or_default()
    };
    assert_eq!(owner("api.themoviedb.org"), "mine");
    assert_eq!(owner("www.omdbapi.com"), "omdb");
    assert_eq!(
        (owner("x.eu.a.example.org"), owner("us.a.example.org")),
        ("narrow".to_owned(), "wide".to_owned())
    );
    assert_eq!(owner("unknown.example.net"), "");
    assert!(
        loaded.config.provider("tmdb").is_none(),
        "its only domain is taken"
    );
    let off = machine
        .file("tollgate.yaml", "presets: off\n")
        .loaded(&sources);
    assert!(off.config.built_in.is_empty());
}

/// Names of the gateway and first words of settings are rejected, also inline.
#[test]
fn reserved_names_are_rejected() {
    for (name, problems_text) in [
        ("metrics", "is a name that the gateway uses itself"),
        ("sleep", "is the first word of a setting"),
        ("queue", "is the first word of a setting"),
        ("store", "is the first word of a setting"),
    ] {
        let text = format!("providers: {{ {name}: {{ preset: tmdb }} }}\n");
        let all_problems = TestHost::new()
            .file("tollgate.yaml", &text)
            .load_errors(&Sources::default());
        assert!(
            all_problems.contains(problems_text),
            "{name}: {all_problems}"
        );
    }
}
