//! The OpenAPI document: the file in `docs/` is the one that is served, and each operation exists.

use serde_json::Value;

use crate::test_daemon::{TestDaemon, from_file, write_file};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

async fn daemon(name: &str) -> TestDaemon {
    write_file(name, "name: x\ndomain: api.example.org\nlimits: [5/1s]\n");
    TestDaemon::start(from_file(name)).await
}

/// To renew the file, run this test with `TOLLGATE_OPENAPI=write`.
#[tokio::test]
async fn the_checked_in_document_is_the_one_that_is_served() {
    let served = daemon("openapi-file.yaml")
        .await
        .request("GET", "/openapi.json", "")
        .await;
    let text = format!(
        "{}\n",
        serde_json::to_string_pretty(&served.json()).unwrap()
    );
    if std::env::var_os("TOLLGATE_OPENAPI").is_some_and(|word| word == "write") {
        std::fs::write(FILE, &text).unwrap();
    }
    let file = std::fs::read_to_string(FILE).expect("docs/openapi.json");
    assert!(
        file == text,
        "docs/openapi.json is not what is served; see this test"
    );
}

/// An operation that is described is routed with its method, every other method of its path is 405
/// with `Allow`, and each reply has a status that is described.
#[tokio::test]
async fn every_described_operation_exists_and_no_other() {
    let daemon = daemon("openapi-routes.yaml").await;
    let document = daemon.request("GET", "/openapi.json", "").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut operations = 0;
    for (template, methods) in document["paths"].as_object().unwrap() {
        let path = template
            .replace("{name}", "x")
            .replace("{class}", "none")
            .replace("{queue}", "q");
        let endless = (template == "/v1/events").then_some("get"); // `page.rs` reads it
        for method in ["get", "post", "put", "patch", "delete", "options", "trace"] {
            if endless == Some(method) {
                continue;
            }
            let response = daemon.request(&method.to_uppercase(), &path, "").await;
            let Some(described) = methods.get(method) else {
                assert_eq!(response.status, 405, "{method} {path}: {response:?}");
                let allow = response.header("allow");
                for method in methods.as_object().unwrap().keys() {
                    assert!(allow.contains(&method.to_uppercase()), "{path}: {allow}");
                }
                continue;
            };
            let status = response.status.to_string();
            let replies = described["responses"].as_object().unwrap();
            let is_described = replies.contains_key(&status) || status.starts_with('4');
            assert!(is_described, "{method} {path}: {response:?}");
            if response.status >= 400 {
                assert_ne!(response.json()["error"], "NotFound", "{method} {path}");
            }
            assert!(described["summary"].is_string());
            operations += 1;
        }
    }
    assert!(operations > 25, "{operations}");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap_or_default();
        assert!(schemas.get(name).is_some_and(Value::is_object), "{name}");
    }
}
