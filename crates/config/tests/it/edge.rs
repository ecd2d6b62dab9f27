//! The edges with real files: modes, folders, and changes that are noticed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tollgate_config::watch::{ReloadReason, Watch};
use tollgate_config::{Config, Environment, PathKind, Sources, disk, reload};

/// A folder of its own for one test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        // Left by a process of this number that was killed.
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0
            .join(name)
            .to_str()
            .expect("a path of text")
            .to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("a file that can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// What is neither a file nor a folder is an error at once: a pipe would be waited for, and a link to
/// nothing would mean that there are no limits.
#[test]
fn pipes_folders_and_broken_links_in_place_of_a_file_are_errors() {
    let folder = Folder::new("kinds");
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let link = folder.path("link");
    std::os::unix::fs::symlink(folder.path("nothing"), &link).expect("a link");
    let environment = disk::environment();
    let read = |path: &str| (environment.read_file)(path).err();
    assert_eq!(read(&pipe).as_deref(), Some("it is not a regular file"));
    assert_eq!(read(&link).as_deref(), Some("no such file"));
    let kind = |path: &str| (environment.path_kind)(path);
    assert_eq!(kind(&link), Err("no such file".to_owned()));
    assert_eq!(kind(&folder.path("nothing")), Ok(PathKind::Nothing));
    let by_name = |kind: fn(&str) -> Result<PathKind, String>| {
        let environment = disk::environment();
        let environment = Environment {
            path_kind: &kind,
            read_file: &|_| Err("it is a folder".to_owned()),
            ..environment
        };
        let loaded = Config::load(&Sources::default(), &environment);
        loaded.err().map(|problems| problems.to_string())
    };
    let found = by_name(|_| Ok(PathKind::Folder(Vec::new())));
    assert!(
        found
            .as_ref()
            .is_some_and(|said| said.contains("it is a folder")),
        "{found:?}"
    );
}

fn mode(path: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode that can be set");
}

/// H3: a file with a key that group or others can read is warned about, whichever bit it is.
#[test]
fn h3_files_with_keys_that_others_can_read_are_warned_about() {
    let folder = Folder::new("modes");
    let key = folder.write("key", "CANARY\n");
    let literal = folder.write("a.yaml", "preset: tmdb\napi_key: CANARY\n");
    let by_file = folder.write("b.yaml", "preset: omdb\napi_key: file:key\n");
    for (bits, warned) in [
        (0o600, false),
        (0o400, false),
        (0o640, true),
        (0o604, true),
        (0o644, true),
    ] {
        for path in [&key, &literal, &by_file] {
            mode(path, bits);
        }
        let sources = Sources {
            only_named: true,
            providers: vec![literal.clone(), by_file.clone()],
            ..Sources::default()
        };
        let loaded = Config::load(&sources, &disk::environment()).expect("both load");
        let problems_text = loaded.problems.to_string();
        assert_eq!(
            problems_text.contains(
                "a key is written out here and others can read this file; run `chmod 600`"
            ),
            warned,
            "{bits:o} {problems_text}"
        );
        assert_eq!(
            problems_text.contains("others can read this key file; run `chmod 600`"),
            warned,
            "{bits:o} {problems_text}"
        );
        assert!(!problems_text.contains("CANARY") && !format!("{loaded:?}").contains("CANARY"));
    }
}

/// A file that is no text, a folder and nothing are told apart.
#[test]
fn the_disk_reports_files_folders_and_read_errors() {
    let folder = Folder::new("disk");
    fs::write(folder.0.join("bytes"), [0xff, 0xfe]).expect("a file that can be written");
    let environment = disk::environment();
    assert_eq!(
        (environment.path_kind)(&folder.path("none")),
        Ok(PathKind::Nothing)
    );
    assert_eq!(
        (environment.path_kind)(&folder.path("bytes")),
        Ok(PathKind::File)
    );
    assert_eq!(
        (environment.path_kind)(&folder.path("")),
        Ok(PathKind::Folder(vec!["bytes".to_owned()]))
    );
    let why = |name: &str| {
        (environment.read_file)(&folder.path(name))
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        (
            why("bytes").as_str(),
            why("none").as_str(),
            why("").as_str()
        ),
        ("it is not text in UTF-8", "no such file", "it is a folder")
    );
}

/// The next change of a file; the signal of the other test reaches the whole process.
async fn next_change(watch: &mut Watch) {
    while watch.next().await != ReloadReason::Files {}
}

/// Four writes in a row to a folder that is watched, and how many changes are reported for them.
async fn changes_of_four_writes(name: &str) -> usize {
    let folder = Folder::new(name);
    let path = folder.write("a.yaml", "domain: a.example.org\nlimit: 1\nperiod: 1s\n");
    let sources = Sources {
        only_named: true,
        provider_dirs: vec![folder.path("")],
        ..Sources::default()
    };
    let loaded = Config::load(&sources, &disk::environment()).expect("it loads");
    // Longer than a machine takes from one write to the next, unless it is very busy.
    let pause = Duration::from_millis(300);
    let mut watch = Watch::start(&loaded.watched, None, pause).expect("files can be watched");
    for round in 2_u32..5 {
        fs::write(
            &path,
            format!("domain: a.example.org\nlimit: {round}\nperiod: 1s\n"),
        )
        .expect("a file that can be written");
    }
    // A new file and one that replaces another are changes too.
    fs::rename(
        folder.write("b.tmp", "domain: b.example.org\nlimits: [1/1s]\n"),
        folder.path("b.yaml"),
    )
    .expect("a file that can be renamed");
    next_change(&mut watch).await;
    let mut changes = 1;
    loop {
        let new = reload(&loaded, &sources, &disk::environment());
        let quiet = tokio::time::timeout(pause * 2, next_change(&mut watch)).await;
        if quiet.is_err() {
            assert_eq!(new.loaded.config.providers.len(), 2);
            assert_eq!(new.loaded.config.providers[0].limits[0].rule.limit(), 4);
            return changes;
        }
        changes += 1;
        assert!(changes <= 8, "the reload's own reading is a change");
    }
}

/// A provider file that changes is noticed, in one event, and reading it is none. On a machine so
/// busy that the writes are far apart they are several events, and the test tries again.
#[tokio::test]
async fn a_changed_file_triggers_one_reload_and_reading_none() {
    for round in 0..5 {
        if changes_of_four_writes(&format!("watch-{round}")).await == 1 {
            return;
        }
    }
    panic!("several events for one change, each time");
}

/// SIGHUP is a reason to look again.
#[tokio::test]
async fn sighup_triggers_a_reload() {
    let mut watch =
        Watch::start(&[], None, Duration::from_millis(20)).expect("signals can be heard");
    let own = std::process::id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-HUP", &own])
        .status();
    assert!(sent.is_ok_and(|status| status.success()));
    assert_eq!(watch.next().await, ReloadReason::Signal);
}
