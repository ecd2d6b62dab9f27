//! H3: no output ever shows a key, whatever the command and the error.

use crate::folder::Folder;

/// Files with a key in every field that takes one, and in some that do not.
fn files_with_keys() -> Vec<String> {
    let files = [
        "preset: tmdb\napi_key: CANARY\n",
        "preset: tmdb\napi_keys: [CANARY, \"${KEY}\"]\nheaders: { x-pin: CANARY }\nauth: { also: { pin: CANARY } }\n",
        "preset: tvdb\napi_key: file:key\n",
        "domain: a.example.org\nlimits: [1/1s]\nauth: { oauth2: { token_url: https://a.example.org/t, client_id: CANARY, client_secret: CANARY, refresh_token: CANARY } }\n",
        "preset: tmdb\napi_key: CANARY\nlimit: CANARY\nperiod: CANARY\ntier: CANARY\nname: CANARY\n",
        "preset: tmdb\napi_key: ${CANARY}\n",
        "api_key CANARY\n",
        "preset: tmdb\napi_key: CANARY\nupstream: https://me:CANARY@h\nhealth: { sleep_max: CANARY }\n",
    ];
    files.map(str::to_owned).to_vec()
}

/// H3: no command shows a key.
#[test]
fn h3_no_command_shows_a_key() {
    let config = "admin: { token: CANARY }\nstore: 'memory:'\ncallers: { a: { token: CANARY } }\nmetrics: { token: CANARY }\nalerts: { webhooks: [{ url: https://h, secret: CANARY }] }\nproviders: { a: { preset: tmdb, api_key: CANARY } }\n";
    for (number, text) in files_with_keys().iter().enumerate() {
        let folder = Folder::new(&format!("canary-{number}"))
            .file("a.yaml", text)
            .file("key", "CANARY\n")
            .file("my.env", "KEY=CANARY\nOTHER=CANARY\n")
            .file("broken.env", "CANARY\n")
            .file("tollgate.yaml", config)
            .env("KEY", "CANARY")
            .env("TMDB_API_KEY", "CANARY")
            .env("TOLLGATE_SLEEP_MAX", "CANARY")
            .env("REDIS_HOST", "h")
            .env("REDIS_PASSWORD", "CANARY");
        for args in [
            &["check"][..],
            &["check", "a.yaml"],
            &["check", ".", "--env-file", "my.env"],
            &["check", "--env-file", "broken.env"],
            &[
                "check",
                "--set",
                "CANARY",
                "--set",
                "a.api_key=CANARY",
                "--token",
                "CANARY",
                "--store",
                "mysql://CANARY",
            ],
            &["check", "--store", "redis://me:CANARY@h"],
            &["provider", "list", "--provider", "a.yaml"],
            &["provider", "show", "a", "--all"],
            &["init", "tmdb", "--force"],
        ] {
            let output = folder.run(args).to_snapshot();
            // Output may name a variable; here its name is `CANARY` too.
            let output = output.replace("environment variable `CANARY`", "");
            assert!(!output.contains("CANARY"), "{args:?}\n{text}\n{output}");
        }
    }
}
