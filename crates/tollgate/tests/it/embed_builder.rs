//! What a program can build in code, and what it can do with it besides permits.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate::reqwest::Governed;
use tollgate::{Call, Class, Error, Provider, Source, Tollgate, Unknown};

const HOUR: Duration = Duration::from_secs(3_600);

/// A folder of this test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("tollgate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// All `*.yaml` and `*.yml` files of a folder, and nothing else of it.
#[tokio::test]
async fn a_folder_of_providers_is_loaded() {
    let folder = Folder::new("provider-dir");
    for (file, text) in [
        ("a.yaml", "limits: [1/1h]\n"),
        ("b.yml", "name: other\nlimits: [2/1h]\n"),
        ("README.md", "no provider"),
    ] {
        std::fs::write(folder.0.join(file), text).expect("a file");
    }
    let builder = Tollgate::builder().provider_dir(&folder.0).expect("valid");
    let tollgate = builder.build().await.expect("it starts");
    for (name, limit) in [("a", 1), ("other", 2)] {
        let capacity = tollgate.capacity(Call::provider(name)).await;
        assert_eq!(capacity.expect("known").remaining, Some(limit), "{name}");
    }
    std::fs::write(folder.0.join("c.yaml"), "limits: [1/1x]\n").expect("a file");
    let error = Tollgate::builder().provider_dir(&folder.0).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("c.yaml:1:"), "{words}");
}

/// A built-in provider that needs no key: its limits hold, and its domain is known.
#[tokio::test]
async fn a_preset_is_a_provider() {
    let builder = Tollgate::builder()
        .preset("musicbrainz")
        .expect("it needs no key");
    let tollgate = builder.build().await.expect("it starts");
    let url = "https://musicbrainz.org/ws/2/artist/1";
    let permit = tollgate.acquire(url).await.expect("a permit");
    assert_eq!(permit.provider(), "musicbrainz");
    permit.report(&Ok::<_, io::Error>(Response::new(())));
    let error = tollgate
        .acquire(Call::url(url).no_wait())
        .await
        .unwrap_err();
    let wait = Duration::from(error.retry_in().expect("known"));
    assert!(
        wait > Duration::ZERO && wait <= Duration::from_secs(5),
        "{wait:?}"
    );
}

#[tokio::test]
async fn calls_to_unknown_domains_are_rejected_if_the_program_says_so() {
    let call = || Call::url("https://elsewhere.example.net/").no_wait();
    for (unknown, is_allowed) in [(Unknown::Allow, true), (Unknown::Refuse, false)] {
        let builder = Tollgate::builder().unknown_domains(unknown);
        let tollgate = builder.build().await.expect("it starts");
        let permit = tollgate.acquire(call()).await;
        assert_eq!(permit.is_ok(), is_allowed, "{permit:?}");
        if let Err(error) = permit {
            assert!(matches!(error, Error::NotAllowed { .. }), "{error:?}");
        }
    }
}

/// Providers that report limits in the body: a 200 with an error in it is a 429.
#[tokio::test]
async fn a_report_with_the_body_says_more_than_its_head() {
    let limited = br#"{"Note": "Thank you for using Alpha Vantage! Our standard API call frequency is 5 calls per minute."}"#;
    for (body, class) in [(&limited[..], Class::Limited), (b"{}", Class::Success)] {
        let provider = Provider::new("x").preset("alphavantage").api_key("canary"); // tidy:canary
        let builder = Tollgate::builder().provider(provider).expect("valid");
        let tollgate = builder.build().await.expect("it starts");
        let permit = tollgate.acquire("x").await.expect("a permit");
        let response = Response::builder().header("content-type", "application/json");
        let response = Ok::<_, io::Error>(response.body(()).expect("a response"));
        assert_eq!(permit.report_with_body(&response, body).class, class);
    }
}

/// Answers every request with 200 and a body, and counts them.
async fn site() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut head = [0; 1_024];
            let _read = stream.read(&mut head).await.expect("a request");
            let response = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
            stream.write_all(response.as_bytes()).await.expect("open");
        }
    });
    url
}

/// `execute` takes a request of reqwest as it is, with the options of a call; after `close` what was cached is there for
/// the next program.
#[tokio::test]
async fn a_closed_tollgate_leaves_its_cache_to_the_next_one() {
    let folder = Folder::new("close");
    let url = site().await;
    let mut sources = Vec::new();
    for _ in 0..2 {
        let provider = Provider::new("x").domain("api.example.org").upstream(&url);
        let builder = Tollgate::builder().provider(provider.limit(9, HOUR).cache(HOUR));
        let store = format!("sqlite:{}", folder.0.display());
        let builder = builder.expect("valid").store(store);
        let tollgate = builder.build().await.expect("it starts");
        let client = Governed::new(&tollgate, reqwest::Client::builder()).expect("a client");
        let to = "https://api.example.org/items".parse().expect("a URL");
        let request = reqwest::Request::new(reqwest::Method::GET, to);
        let options = Call::unaddressed().timeout(Duration::from_secs(30));
        let response = client.execute(request, options).await.expect("a response");
        sources.push(*response.extensions().get::<Source>().expect("known"));
        assert_eq!(response.text().await.expect("a body"), "ok");
        tollgate.close().await;
    }
    assert_eq!(sources, [Source::Upstream, Source::Cache]);
}
