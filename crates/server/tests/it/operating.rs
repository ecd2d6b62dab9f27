//! What an operator sees and does: providers that nobody has called, settings by every name, addresses
//! that cannot be had, cool-downs that are ended.

use serde_json::Value;
use tollgate::shop::Options;
use tollgate_config::Sources;
use tollgate_config::load::Set;
use tollgate_ledger::{Clock, Ledger};

use crate::cache::NO_RETRY;
use crate::client::{Answer, get, get_with, soon};
use crate::desk::{Desk, from_file, write};
use crate::doors::free;
use crate::stand::file;
use crate::upstream::{Upstream, ok, reply};

const FILE: &str = "name: x\nupstream: http://127.0.0.1:9\nlimits: [5/1s]\n";

/// The providers of the list, by name.
async fn listed(desk: &Desk) -> Vec<(String, String, bool)> {
    let all = desk.ask("GET", "/v1/providers", "").await.json();
    let all = all["providers"].as_array().unwrap().clone();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let each = all.iter();
    each.map(|one| {
        (
            text(one, "name"),
            text(one, "state"),
            one["started"] == true,
        )
    })
    .collect()
}

fn is(name: &str, state: &str, started: bool) -> (String, String, bool) {
    (name.to_owned(), state.to_owned(), started)
}

/// A5: whoever starts offline sees that everything sleeps, before anything is called, and that this
/// holds for domains that no provider has.
#[tokio::test]
async fn a5_what_sleeps_is_shown_asleep_before_it_is_called() {
    write("op-offline.yaml", FILE);
    let options = Options {
        offline: true,
        ..Options::default()
    };
    let desk = Desk::with(from_file("op-offline.yaml"), options, None).await;
    let expected = [is("x", "sleep", false), is("unknown", "sleep", true)];
    assert_eq!(listed(&desk).await, expected);
    let unknown = desk.ask("GET", "/v1/providers/unknown", "").await.json();
    assert_eq!(unknown["health"]["state"], "sleep");
    desk.ask("POST", "/v1/providers/unknown/resume", "").await;
    assert_eq!(listed(&desk).await, [is("x", "sleep", false)]);
}

/// M14: what the ledger remembers is shown by a process that has not called the provider yet.
#[tokio::test]
async fn m14_sleep_and_cache_only_are_shown_after_a_restart() {
    write("op-kept.yaml", FILE);
    let ledger = Ledger::memory(Clock::System);
    for (order, state) in [("offline", "sleep"), ("cache-only", "cache_only")] {
        let sources = || from_file("op-kept.yaml");
        let first = Desk::on(ledger.clone(), sources(), Options::default(), None).await;
        first
            .ask("POST", &format!("/v1/providers/x/{order}"), "")
            .await;
        let second = Desk::on(ledger.clone(), sources(), Options::default(), None).await;
        soon(async { while listed(&second).await != [is("x", state, false)] {} }).await;
    }
}

async fn patch(desk: &Desk, provider: &str, body: &str) -> Answer {
    let path = format!("/v1/providers/{provider}/settings");
    desk.ask("PATCH", &path, body).await
}

/// A14: a setting has several spellings, and is taken back by any of them.
#[tokio::test]
async fn a14_a_setting_is_taken_back_by_another_of_its_names() {
    write("op-names.yaml", FILE);
    let desk = Desk::open(from_file("op-names.yaml")).await;
    let before = desk.setting("x", "health.sleep_max").await;
    for (set, back) in [
        ("sleep_max", "health.sleep_max"),
        ("health.sleep_max", "SLEEP-MAX"),
    ] {
        patch(&desk, "x", &format!("{{\"{set}\": \"30s\"}}")).await;
        let (value, by) = desk.setting("x", "health.sleep_max").await;
        assert_eq!((value.as_str(), by.as_str()), ("30s", "set"));
        let answer = patch(&desk, "x", &format!("{{\"{back}\": null}}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(desk.setting("x", "health.sleep_max").await, before);
    }
    // What is set by two names is set once.
    patch(&desk, "x", "{\"sleep_max\": \"30s\"}").await;
    patch(&desk, "x", "{\"health.sleep_max\": \"40s\"}").await;
    patch(&desk, "x", "{\"sleep_max\": null}").await;
    assert_eq!(desk.setting("x", "health.sleep_max").await, before);
    let wrong = patch(&desk, "x", "{\"sleep_mx\": null}").await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    assert!(
        wrong.body.contains("did you mean `sleep_max`?"),
        "{wrong:?}"
    );
}

fn with_presets(path: &str) -> Sources {
    Sources {
        bare: false,
        config: None,
        ..from_file(path)
    }
}

/// A built-in provider has an address of its own like any other: by `--set` and by PATCH, and a reload
/// does not take it away.
#[tokio::test]
async fn a_built_in_provider_gets_the_address_that_is_set_for_it() {
    write("op-built-in.yaml", FILE);
    let (one, two) = (free(), free());
    let mut sources = with_presets("op-built-in.yaml");
    sources.set.push(Set::parse(&format!("tmdb.listen={one}")));
    let desk = Desk::open(sources).await;
    assert_eq!(desk.reload().await.status, 200);
    let opens = |at| async move { tokio::net::TcpStream::connect(at).await.is_ok() };
    assert!(opens(one).await, "by --set");
    let answer = patch(&desk, "omdb", &format!("{{\"listen\": \"{two}\"}}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(opens(two).await, "by PATCH");
    assert_eq!(desk.reload().await.status, 200);
    assert!(opens(one).await && opens(two).await, "after a reload");
}

/// Port 0 is a free port, chosen once.
#[tokio::test]
async fn a_free_port_is_not_chosen_anew_by_a_reload() {
    let text = |more: &str| format!("{FILE}listen: 127.0.0.1:0\n{more}");
    write("op-any.yaml", &text(""));
    let desk = Desk::open(from_file("op-any.yaml")).await;
    desk.reload().await;
    let doors = desk.doors.0.doors();
    let before = doors.listening();
    assert_eq!(before.len(), 2);
    desk.reload().await;
    write("op-any.yaml", &text("queue: {max: 7}\n"));
    desk.reload().await;
    assert_eq!(doors.listening(), before);
}

/// An address that cannot be had is shown until it can; by PATCH it is refused.
#[tokio::test]
async fn an_address_that_is_taken_is_shown_and_cannot_be_set() {
    let squatter = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = squatter.local_addr().unwrap();
    write("op-taken.yaml", FILE);
    let desk = Desk::open(from_file("op-taken.yaml")).await;
    let answer = patch(&desk, "x", &format!("{{\"listen\": \"{taken}\"}}")).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains(&taken.to_string()), "{answer:?}");
    write("op-taken.yaml", &format!("{FILE}listen: {taken}\n"));
    assert_eq!(desk.reload().await.status, 422);
    let said = async || {
        let all = desk.ask("GET", "/v1/providers", "").await.json();
        let one = desk.ask("GET", "/v1/providers/x", "").await.json();
        let lists = [
            &all["problems"],
            &all["providers"][0]["problems"],
            &one["problems"],
        ];
        lists.map(|list| list.to_string().contains(&taken.to_string()))
    };
    assert_eq!(said().await, [true; 3]);
    drop(squatter);
    assert_eq!(desk.reload().await.status, 200);
    assert_eq!(said().await, [false; 3]);
}

async fn used(desk: &Desk) -> Vec<Value> {
    let shown = desk.ask("GET", "/v1/providers/x", "").await.json();
    let limits = shown["limits"].as_array().unwrap().clone();
    limits.iter().map(|limit| limit["used"].clone()).collect()
}

/// What is counted by key is shown by key; where clients bring their own, nobody knows whose to show.
#[tokio::test]
async fn a_limit_by_key_is_shown_for_our_keys_and_for_no_other() {
    let upstream = Upstream::start(|_, asked| async move {
        match asked.target.as_str() {
            "/token" => reply(200, &[], "{\"access_token\": \"t\", \"expires_in\": 3600}"),
            _ => ok(),
        }
    })
    .await;
    let limit = "limits: [{limit: 5, period: 1h, per: api_key}]";
    let token = format!("token_url: \"http://{}/token\"", upstream.address);
    for (path, auth, expected) in [
        (
            "op-theirs.yaml",
            "auth: {header: x-key}".to_owned(),
            Value::Null,
        ),
        (
            "op-ours.yaml",
            "api_key: ours\nauth: {header: x-key}".to_owned(),
            1.into(),
        ),
        (
            "op-oauth2.yaml",
            format!("auth: {{oauth2: {{{token}, client_id: i, client_secret: s}}}}"),
            2.into(), // the token is asked for under the same limit
        ),
    ] {
        write(path, &file(upstream.address, &format!("{limit}\n{auth}")));
        let desk = Desk::open(from_file(path)).await;
        let answer = get_with(desk.gateway, "/x/a", &[("x-key", "theirs")]).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(used(&desk).await, [expected], "{path}");
    }
}

/// `reset` of an entity whose calls are held back by the cool-down of a key.
#[tokio::test]
async fn a_reset_of_an_entity_ends_the_cool_down_that_holds_it() {
    let upstream = Upstream::start(|number, _| async move {
        match number {
            0 => reply(429, &[("retry-after", "3600")], ""),
            _ => ok(),
        }
    })
    .await;
    let rest = format!(
        "api_key: ours\nauth: {{header: x-key}}\n{NO_RETRY}\n\
         limits: [{{limit: 5, period: 1h, per: api_key}}]"
    );
    write("op-reset.yaml", &file(upstream.address, &rest));
    let desk = Desk::open(from_file("op-reset.yaml")).await;
    assert_eq!(get(desk.gateway, "/x/a").await.status, 429);
    let soon = [("x-tollgate-timeout", "30s")];
    assert_eq!(get_with(desk.gateway, "/x/b", &soon).await.status, 429);
    let answer = desk.ask("POST", "/v1/providers/x/reset?entity=b", "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = get_with(desk.gateway, "/x/c", &soon).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
