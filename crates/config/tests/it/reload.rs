//! Reload: valid files take effect, an invalid file is rejected and its old version stays (R-A13).

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate_config::{Change, Loaded, Sources};
use tollgate_core::time::Span;

use crate::test_host::{TestHost, files};

fn machine() -> TestHost {
    TestHost::new()
        .file(
            "tollgate.yaml",
            "providers: dir\npresets: off\nunknown_domain: refuse\n",
        )
        .file(
            "dir/a.yaml",
            "domain: a.example.org\nlimit: 10\nperiod: 1s\n",
        )
        .file(
            "dir/b.yaml",
            "domain: b.example.org\nlimit: 20\nperiod: 1s\n",
        )
}

fn limit(loaded: &Loaded, name: &str) -> Option<u64> {
    Some(loaded.config.provider(name)?.limits[0].rule.limit())
}

/// R-A13: an unchanged environment changes nothing, and providers are the very same.
#[test]
fn reloading_unchanged_files_changes_nothing() {
    let old = machine().loaded(&Sources::default());
    let new = machine().reload(&old, &Sources::default());
    assert_eq!(new.changed, []);
    assert!(new.rejected.is_empty());
    let pairs = old
        .config
        .providers
        .iter()
        .zip(&new.loaded.config.providers);
    assert!(pairs.clone().count() == 2 && { pairs }.all(|(a, b)| Arc::ptr_eq(a, b)));
}

/// R-A13: an invalid file is rejected, the old version of that provider stays, others change, and the
/// error is shown until the file is fixed.
#[test]
fn an_invalid_file_is_rejected_and_its_old_version_stays() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    machine.write(
        "dir/a.yaml",
        "domain: a.example.org\nlimit: 99\nperiod: 1\n",
    );
    machine.write(
        "dir/b.yaml",
        "domain: b.example.org\nlimit: 21\nperiod: 1s\n",
    );
    let new = machine.reload(&old, &Sources::default());
    assert_eq!(
        (limit(&new.loaded, "a"), limit(&new.loaded, "b")),
        (Some(10), Some(21))
    );
    let fields = vec!["limit".to_owned()];
    assert_eq!(
        new.changed,
        [Change::Changed {
            provider: "b".to_owned(),
            fields
        }]
    );
    assert!(
        new.rejected
            .to_string()
            .starts_with("dir/a.yaml:3:9: period: is not a duration")
    );
    assert!(new.loaded.problems.has_errors());
    assert!(new.loaded.provider("a").unwrap().problems.has_errors());
    let still = machine.reload(&new.loaded, &Sources::default());
    assert!(still.changed.is_empty() && still.loaded.problems.has_errors());
    machine.write(
        "dir/a.yaml",
        "domain: a.example.org\nlimit: 99\nperiod: 1s\n",
    );
    let fixed = machine.reload(&still.loaded, &Sources::default());
    assert_eq!(limit(&fixed.loaded, "a"), Some(99));
    assert!(!fixed.loaded.problems.has_errors());
}

/// R-A13: a file that an editor is writing is empty or cut off; it is not a provider without limits.
#[test]
fn a_half_written_file_does_not_remove_the_limits() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    for half in [
        "",
        "# comment\n",
        "domain: a.exam",
        "domain: a.example.org\nlimit:",
        "\u{0}",
    ] {
        machine.write("dir/a.yaml", half);
        let new = machine.reload(&old, &Sources::default());
        let is = new.loaded.config.provider("a").unwrap();
        // A cut-off that is a file of its own right is told by its warnings; the others are refused.
        assert!(
            !is.limits.is_empty() || !new.loaded.problems.is_empty(),
            "{half}"
        );
        assert!(half.contains("exam") || !new.rejected.is_empty(), "{half}");
    }
}

/// R-A13: an invalid tollgate.yaml is rejected as a whole, also one that is empty or missing for a
/// moment; providers still change.
#[test]
fn an_invalid_tollgate_yaml_keeps_the_old_settings() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    machine.write(
        "dir/b.yaml",
        "domain: b.example.org\nlimit: 21\nperiod: 1s\n",
    );
    for broken in [
        Some("providers: dir\nlimiting: maybe\n"),
        Some("providers: ["),
        Some(""),
        None,
    ] {
        match broken {
            Some(text) => machine.write("tollgate.yaml", text),
            None => machine.remove("tollgate.yaml"),
        }
        let new = machine.reload(&old, &Sources::default());
        assert!(
            new.rejected.to_string().starts_with("tollgate.yaml"),
            "{broken:?}"
        );
        assert_eq!(
            (limit(&new.loaded, "a"), limit(&new.loaded, "b")),
            (Some(10), Some(21))
        );
        assert_eq!(new.loaded.config.unknown_domain.word(), "refuse");
    }
}

/// R-A13: added, removed and renamed providers are reported; a folder that is missing for a moment
/// removes nothing.
#[test]
fn added_removed_and_renamed_providers_are_reported() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    machine.write("dir/c.yaml", "domain: c.example.org\nlimits: [1/1s]\n");
    machine.write(
        "dir/a.yaml",
        "name: z\ndomain: a.example.org\nlimit: 10\nperiod: 1s\n",
    );
    machine.remove("dir/b.yaml");
    let new = machine.reload(&old, &Sources::default());
    let renamed = Change::Renamed {
        from: "a".to_owned(),
        to: "z".to_owned(),
    };
    let added = Change::Added("c".to_owned());
    assert_eq!(
        new.changed,
        [renamed, added, Change::Removed("b".to_owned())]
    );
    machine.remove("dir/a.yaml");
    machine.remove("dir/c.yaml");
    let gone = machine.reload(&old, &Sources::default());
    assert_eq!(
        (gone.changed, gone.loaded.config.providers.len()),
        (vec![], 2)
    );
    assert!(
        gone.rejected
            .to_string()
            .contains("there is no folder of this name")
    );
}

/// A new provider that claims an existing domain is rejected; the existing provider stays.
#[test]
fn a_new_provider_cannot_claim_an_existing_domain() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    machine.write(
        "dir/0.yaml",
        "domain: b.example.org\nlimit: 9999\nperiod: 1s\n",
    );
    machine.write(
        "dir/a.yaml",
        "domain: b.example.org\nlimit: 11\nperiod: 1s\n",
    );
    let new = machine.reload(&old, &Sources::default());
    assert_eq!(
        (
            limit(&new.loaded, "a"),
            limit(&new.loaded, "b"),
            limit(&new.loaded, "0")
        ),
        (Some(10), Some(20), None)
    );
    assert!(
        new.rejected.to_string().contains(
            "dir/0.yaml:1:9: the domain b.example.org belongs to the provider at dir/b.yaml:1:9 too"
        ),
        "{}",
        new.rejected
    );
    assert_eq!(new.changed, []);
    // Two providers that swap their domains in one step are no conflict.
    let mut machine = self::machine();
    machine.write(
        "dir/a.yaml",
        "domain: b.example.org\nlimit: 1\nperiod: 1s\n",
    );
    machine.write(
        "dir/b.yaml",
        "domain: a.example.org\nlimit: 2\nperiod: 1s\n",
    );
    assert!(
        machine
            .reload(&old, &Sources::default())
            .rejected
            .is_empty()
    );
}

/// A14: a changed env file takes effect; a broken one is rejected and the old one stays.
#[test]
fn a14_a_changed_env_file_takes_effect() {
    let mut sources = files(&["a.yaml"]);
    sources.env_file = Some("my.env".to_owned());
    let text = "domain: a.example.org\nlimits: [1/1s]\napi_key: ${KEY}\nauth: { bearer: true }\n";
    let mut machine = TestHost::new()
        .file("a.yaml", text)
        .file("my.env", "KEY=one\nTOLLGATE_SLEEP_MAX=60\n");
    let old = machine.loaded(&sources);
    machine.write("my.env", "KEY=two\nTOLLGATE_SLEEP_MAX=90\n");
    let new = machine.reload(&old, &sources);
    let is = |loaded: &Loaded| {
        let is = loaded.config.providers[0].clone();
        (is.keys[0].expose().to_owned(), is.health.sleep_max)
    };
    assert_eq!(is(&new.loaded), ("two".to_owned(), Span::from_secs(90)));
    machine.write("my.env", "KEY=three\nnonsense\n");
    let broken = machine.reload(&new.loaded, &sources);
    assert_eq!(is(&broken.loaded), ("two".to_owned(), Span::from_secs(90)));
    assert!(
        broken
            .rejected
            .to_string()
            .starts_with("my.env:2:1: this is not a variable")
    );
    // A key that is gone: the provider stays as it was.
    machine.write("my.env", "OTHER=1\n");
    let gone = machine.reload(&new.loaded, &sources);
    assert_eq!(is(&gone.loaded).0, "two");
    assert!(
        gone.rejected
            .to_string()
            .contains("the environment variable `KEY` is not set")
    );
}

/// Sockets and stores stay until the next restart, and a warning says so.
#[test]
fn settings_that_need_a_restart_stay_until_then() {
    let mut machine = machine();
    let old = machine.loaded(&Sources::default());
    machine.write(
        "tollgate.yaml",
        "providers: dir\npresets: off\nlisten: 127.0.0.1:9\nunknown_domain: allow\n",
    );
    let new = machine.reload(&old, &Sources::default()).loaded;
    assert_eq!(
        (new.config.listen.port(), new.config.unknown_domain.word()),
        (4290, "allow")
    );
    let problems_text = new.problems.to_string();
    assert!(
        problems_text.contains("listen: has changed, but takes effect only after a restart"),
        "{problems_text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, rng_seed: RngSeed::Fixed(11), failure_persistence: None, ..ProptestConfig::default() })]

    /// R-A13: whatever a file becomes, the provider that was there stays obeyed with its domain and
    /// with limits, or was changed by a file without errors.
    #[test]
    fn mutated_files_never_leave_a_provider_without_rules(cut in 0_usize..60, insert in "[a-z:{}\\[\\] \n0-9]{0,6}") {
        let mut machine = machine();
        let old = machine.loaded(&Sources::default());
        let whole = "domain: a.example.org\nlimit: 33\nperiod: 1s\nconcurrency: 2\n";
        let (head, tail) = whole.split_at(cut.min(whole.len()));
        machine.write("dir/a.yaml", &format!("{head}{insert}{tail}"));
        let new = machine.reload(&old, &Sources::default());
        prop_assert_eq!(limit(&new.loaded, "b"), Some(20));
        if new.rejected.has_errors() {
            prop_assert!(new.loaded.problems.has_errors());
            prop_assert_eq!(limit(&new.loaded, "a"), Some(10));
        }
    }
}
