//! Keys: found where the file says, and never shown.

use tollgate_config::check::FIELDS;
use tollgate_config::provider::AuthStyle;
use tollgate_config::{Environment, FileContent, preset};

use crate::{check, check_in, provider};

const CANARY: &str = "key-CANARY-0123456789";

fn env(name: &str) -> Option<String> {
    (name == "KEY").then(|| CANARY.to_owned())
}

fn key_file(path: &str) -> Result<FileContent, String> {
    match path {
        "/run/key" => Ok(FileContent {
            text: format!("{CANARY}\n"),
            readable_by_others: false,
        }),
        "/tmp/key" => Ok(FileContent {
            text: CANARY.to_owned(),
            readable_by_others: true,
        }),
        _ => Err("no such file".to_owned()),
    }
}

fn environment() -> Environment<'static> {
    Environment {
        env: &env,
        read_file: &key_file,
        ..Environment::empty()
    }
}

/// H3: a key comes from a literal, the environment or a file.
#[test]
fn h3_keys_are_found_where_the_file_says() {
    for source in [CANARY, "${KEY}", "file:/run/key", "file:/tmp/key"] {
        let text = format!("preset: tmdb\napi_key: {source}\n");
        let provider = check_in(&text, &environment()).provider.unwrap();
        assert_eq!(provider.keys[0].expose(), CANARY, "{source}");
    }
    let pool = check_in(
        "preset: tmdb\napi_keys: [ \"${KEY}\", b ]\n",
        &environment(),
    )
    .provider
    .unwrap();
    assert_eq!(pool.keys.len(), 2);
}

/// H3: a key file that others can read is warned about.
#[test]
fn h3_an_open_key_file_is_warned_about() {
    let checked = check_in("preset: tmdb\napi_key: file:/tmp/key\n", &environment());
    assert_eq!(
        checked.problems.to_string(),
        "test.yaml:2:10: warning: api_key: others can read this key file; run `chmod 600` on it"
    );
}

/// A key of digits is a text, not a number: nothing is rounded or rewritten.
#[test]
fn a_key_that_looks_like_a_number_stays_as_it_is_written() {
    for key in [
        "0012",
        "12e45678",
        "0x1f",
        "1_000",
        "true",
        "99999999999999999999999",
        "1.10",
    ] {
        assert_eq!(
            provider(&format!("preset: omdb\napi_key: {key}\n")).keys[0].expose(),
            key
        );
    }
}

/// An alias brings the text of its anchor, also if that looks like a number.
#[test]
fn an_alias_keeps_the_text_of_its_anchor() {
    let is = provider("preset: omdb\nheaders: { x-a: &key 0012 }\napi_key: *key\n");
    assert_eq!(is.keys[0].expose(), "0012");
}

/// `${NAME}` may stand without quotes between braces, as the documentation shows it.
#[test]
fn variables_need_no_quotes_between_braces() {
    let text = "preset: fanart\nauth: { also: { client_key: ${KEY} } }\nheaders: { x-token: Bot ${KEY} }\n";
    let provider = check_in(text, &environment()).provider.unwrap();
    assert_eq!(provider.auth.also[0].1.expose(), CANARY);
    assert_eq!(provider.headers[0].1.expose(), format!("Bot {CANARY}"));
}

/// H3: what cannot be found is told by the name of the variable or the place, not by a value.
#[test]
fn h3_a_missing_key_error_names_its_variable_or_file() {
    let missing = check_in("preset: tmdb\napi_key: ${OTHER}\n", &environment());
    assert_eq!(
        missing.problems.to_string(),
        "test.yaml:2:10: api_key: the environment variable `OTHER` is not set; export it, or put it into the file of --env-file"
    );
    let missing = check_in("preset: tmdb\napi_key: file:/nowhere\n", &environment());
    assert!(
        missing
            .problems
            .to_string()
            .contains("the key file cannot be read (no such file)")
    );
}

/// Blocks, and names inside them, into which a key may slip.
const BLOCKS: [&str; 14] = [
    "auth",
    "headers",
    "health",
    "limits",
    "entities",
    "cache",
    "queue",
    "retry",
    "timeout",
    "cost",
    "off_peak",
    "alerts",
    "concurrency",
    "tier",
];
const INNER: [&str; 16] = [
    "query",
    "header",
    "bearer",
    "also",
    "login",
    "oauth2",
    "url",
    "mode",
    "limit",
    "period",
    "ttl",
    "from",
    "order",
    "name",
    "client_secret",
    "body",
];

/// Beginnings of lines that are not even YAML.
const BROKEN: [&str; 10] = [
    "api_key: '",
    "api_key: [",
    "api_key: @",
    "api_key: %",
    "api_key: *",
    "x: y: ",
    "api_kye: ",
    "api_key:",
    "? [a]\n: ",
    "upstream: https://user:",
];

/// Files with the canary in every place.
fn planted() -> Vec<String> {
    let mut texts = Vec::new();
    for field in FIELDS {
        texts.push(format!("{field}: {CANARY}\n"));
        texts.push(format!(
            "preset: tvdb\n{field}: [{CANARY}, {{ x: {CANARY} }}]\n"
        ));
    }
    for block in BLOCKS {
        for name in INNER {
            texts.push(format!("{block}: {{ {name}: {CANARY} }}\n"));
            texts.push(format!("{block}: {{ {name}: {{ {name}: {CANARY} }} }}\n"));
            texts.push(format!("{block}: [{{ {name}: {CANARY} }}]\n"));
        }
    }
    for broken in BROKEN {
        texts.push(format!("{broken}{CANARY}\n"));
        texts.push(format!("limit: x\n{broken}{CANARY}\nperiod: y"));
    }
    texts
}

/// H3: whatever field a key is put into, no problem shows it.
#[test]
fn h3_no_problem_repeats_a_value_of_the_file() {
    for text in planted() {
        let shown = check_in(&text, &environment()).problems.to_string();
        assert!(!shown.contains("CANARY"), "{text}\n{shown}");
    }
}

/// H3: what is obeyed does not show what was put into secret fields.
#[test]
fn h3_a_checked_provider_does_not_show_its_keys() {
    let text = format!(
        "preset: tmdb\napi_key: {CANARY}\nheaders: {{ x-a: {CANARY} }}\nauth: {{ also: {{ b: {CANARY} }} }}\n"
    );
    let draft = tollgate_config::ProviderFile::read("a.yaml", &text).unwrap();
    let provider = draft.check(&environment()).provider.unwrap();
    assert!(!format!("{draft:?} {provider:#?}").contains("CANARY"));
}

/// H3: `provider show` counts keys and shows none.
#[test]
fn h3_describing_a_provider_shows_no_key() {
    let text = "preset: tvdb\napi_keys: [${KEY}, ${KEY}]\nheaders: { x-token: ${KEY} }\nauth: { also: { pin: ${KEY} } }\n";
    let provider = check_in(text, &environment()).provider.unwrap();
    let shown = preset::describe(&provider);
    assert!(
        shown.contains("2 keys set") && !shown.contains("CANARY"),
        "{shown}"
    );
    assert!(!format!("{provider:?}").contains("CANARY"));
}

/// M6: a login posts JSON in which the key is filled in later and variables now.
#[test]
fn m6_a_login_body_is_json_and_secret() {
    let text = "auth: { login: { url: https://a.example.org/login, body: { apikey: \"{api_key}\", pin: ${KEY}, n: 7 }, token: data.token } }\ndomain: a.example.org\nlimits: [1/1s]";
    let checked = check_in(text, &environment());
    let AuthStyle::Login(login) = checked.provider.unwrap().auth.style else {
        panic!("a login")
    };
    assert_eq!(
        login.body.expose(),
        format!(r#"{{"apikey":"{{api_key}}","pin":"{CANARY}","n":"7"}}"#)
    );
    assert_eq!((login.url.base.as_str(), login.url.port), ("/login", 443));
}

/// M6: what a variable holds stays one value of the body, whatever letters it has.
#[test]
fn m6_a_variable_cannot_add_fields_to_a_login_body() {
    let environment = Environment {
        env: &|_| Some("a\",\"admin\":\"b&c".to_owned()),
        ..Environment::empty()
    };
    let escaped = r#"a\",\"admin\":\"b&c"#;
    for (body, expected) in [
        ("{ pin: ${KEY} }", format!("{{\"pin\":\"{escaped}\"}}")),
        (
            "'{\"pin\": \"${KEY}\"}'",
            format!("{{\"pin\": \"{escaped}\"}}"),
        ),
        ("pin=${KEY}", "pin=a%22%2C%22admin%22%3A%22b%26c".to_owned()),
    ] {
        let text = format!(
            "auth: {{ login: {{ url: https://a.example.org/login, body: {body}, token: t }} }}\ndomain: a.example.org\nlimits: [1/1s]"
        );
        let provider = check_in(&text, &environment).provider.unwrap();
        let AuthStyle::Login(login) = provider.auth.style else {
            panic!("a login")
        };
        assert_eq!(login.body.expose(), expected);
    }
}

/// Credentials in the clear are told, unless they stay on this machine.
#[test]
fn a_login_without_tls_is_warned_about() {
    for (url, warned) in [
        ("https://a.example.org/t", false),
        ("http://a.example.org/t", true),
        ("http://127.0.0.1:8080/t", false),
        ("http://localhost/t", false),
        ("http://10.0.0.1/t", true),
    ] {
        let text = format!(
            "auth: {{ oauth2: {{ token_url: {url}, client_id: a, client_secret: b }} }}\ndomain: a.example.org\nlimits: [1/1s]"
        );
        let problems_text = check_in(&text, &Environment::empty()).problems.to_string();
        assert_eq!(
            problems_text.contains("are sent without TLS"),
            warned,
            "{url} {problems_text}"
        );
    }
}

#[test]
fn a_key_with_a_line_break_is_rejected() {
    let checked = check("preset: tmdb\napi_key: \"a\\r\\nX-Evil: 1\"\n");
    assert!(
        checked
            .problems
            .to_string()
            .contains("has a control character")
    );
}
