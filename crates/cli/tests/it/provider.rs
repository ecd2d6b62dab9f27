//! `tollgate provider list` and `show`.

use insta::assert_snapshot;

use crate::folder::Folder;
use crate::running_daemon::{RunningDaemon, X};

/// M5: the list prints the document's presets with their batching advice.
#[test]
fn m5_the_list_prints_presets_with_their_advice() {
    let output = Folder::new("list").run(&["provider", "list"]);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    for line in [
        "tmdb              TMDB: 35/1s token-bucket burst 35, 4 at a time\n",
        "fewer calls: append_to_response: up to 20 sub-requests in one call\n",
        "tmdb-legacy       TMDB, the limit of before 2019: 40/10s\n",
        "tvdb              TheTVDB v4: 50/10s reserve 40\n",
        "fanart            FanArt.tv: 5/1s reserve 4\n",
        "fanart-personal   FanArt.tv with a personal key: 10/1s reserve 8\n",
        "musicbrainz       MusicBrainz WS/2: 1/1s, 1 at a time\n",
        "omdb              OMDb: 1000/1d calendar per api_key\n",
        "omdb-paid         OMDb, paid plan: 100000/1d calendar per api_key\n",
        "local             Local work under a limit: 10000/1s reserve 9000\n",
    ] {
        assert!(output.out.contains(line), "{}\nwanted {line}", output.out);
    }
    assert_eq!(
        output
            .out
            .lines()
            .filter(|line| !line.starts_with(' '))
            .count(),
        64
    );
}

/// M5: one preset with its plans, lifetimes and advice.
#[test]
fn m5_show_prints_a_preset() {
    assert_snapshot!(
        Folder::new("show")
            .run(&["provider", "show", "omdb"])
            .to_snapshot()
    );
}

/// A14, H3: a provider file with every setting, the source of each, and no key.
#[test]
fn a14_show_prints_each_setting_with_its_source_and_no_key() {
    let folder = Folder::new("who")
        .file("mine.yaml", "preset: tmdb\napi_key: ${CANARY_KEY}\nheaders: { x-pin: CANARY }\nhealth: { p_throttle: 0.3 }\n")
        .file("my.env", "CANARY_KEY=CANARY-1\n")
        .env("TOLLGATE_N_THROTTLE", "4")
        .env("TOLLGATE_MINE_SLEEP_MAX", "90");
    let args = [
        "provider",
        "show",
        "mine",
        "--provider",
        "mine.yaml",
        "--env-file",
        "my.env",
        "--set",
        "mine.queue.max=50",
    ];
    assert_snapshot!(folder.run(&args).to_snapshot());
    let list = folder.run(&[
        "provider",
        "list",
        "--provider",
        "mine.yaml",
        "--env-file",
        "my.env",
    ]);
    assert!(
        list.out.starts_with(
            "mine              mine.yaml: 35/1s token-bucket burst 35, 4 at a time\n\nbuilt in:\n"
        ),
        "{}",
        list.out
    );
}

#[test]
fn an_unknown_provider_is_reported_with_the_nearest_name() {
    let output = Folder::new("unknown").run(&["provider", "show", "tmbd"]);
    assert_eq!(
        (output.code, output.err.as_str()),
        (
            Some(1),
            "error: there is no provider `tmbd`; did you mean `tmdb`?\n"
        )
    );
}

/// In a second terminal the variables of keys are often not set; nothing is sent from there.
#[test]
fn providers_are_shown_although_their_keys_are_not_set_here() {
    let folder = Folder::new("no-keys").file(
        "mine.yaml",
        "preset: tmdb\napi_key: ${NO_SUCH_KEY}\nheaders: { x-pin: \"file:/no/such/file\" }\n",
    );
    for command in [
        ["provider", "list"].as_slice(),
        &["provider", "show", "mine"],
    ] {
        let output = folder.run(&[command, &["--provider", "mine.yaml"]].concat());
        assert_eq!(
            (output.code, output.err.as_str()),
            (Some(0), ""),
            "{command:?}"
        );
        assert!(output.out.contains("mine"), "{}", output.out);
        assert!(!output.out.contains("not set here"), "{}", output.out);
    }
    let output = folder.run(&["check", "--provider", "mine.yaml"]);
    let text = output.out + &output.err;
    assert!(text.contains("NO_SUCH_KEY"), "{text}");
}

/// `provider show` asked the daemon for a preset by its name, which starts it: `status` and `top` then listed a
/// provider that nobody had configured or called.
#[test]
fn showing_a_preset_does_not_make_a_running_daemon_list_it() {
    let folder = Folder::new("show-beside-daemon").file("x.yaml", X);
    let daemon = RunningDaemon::start(folder, &[]);
    for name in ["omdb", "x"] {
        let args = ["provider", "show", name, "--provider", "x.yaml"];
        let shown = daemon.tollgate(&args);
        assert_eq!(shown.code, Some(0), "{}", shown.err);
    }
    for command in ["status", "top"] {
        let listed = daemon.tollgate(&[command]);
        assert_eq!(listed.code, Some(0), "{}", listed.err);
        assert!(!listed.out.contains("omdb"), "{}", listed.out);
    }
    let listed = daemon.tollgate(&["status"]);
    assert!(listed.out.contains('x'), "{}", listed.out);
}
