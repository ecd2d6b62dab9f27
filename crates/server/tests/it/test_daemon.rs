//! A gateway and its admin address on free ports, with files and variables that a test can change.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tollgate::ProviderRegistry;
use tollgate::providers::Options;
use tollgate_config::{Config, Environment, FileContent, Flag, PathKind, Secret, Sources};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Admin, AdminOptions, Daemon, Gateway, GatewayOptions, ListenerKind};

use crate::client::{ClientResponse, Session, read_response, within_timeout};

/// Files and variables of all tests of this program; each test has names of its own.
static FILES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static VARIABLES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn world() -> Environment<'static> {
    Environment {
        missing_key: None,
        env: &|name| VARIABLES.lock().get(name).cloned(),
        env_names: &|| VARIABLES.lock().keys().cloned().collect(),
        read_file: &|path| {
            let text = FILES.lock().get(path).cloned();
            let text = text.ok_or_else(|| "no such file".to_owned())?;
            Ok(FileContent {
                text,
                readable_by_others: false,
            })
        },
        path_kind: &|path| {
            let is_file = FILES.lock().contains_key(path);
            Ok(if is_file {
                PathKind::File
            } else {
                PathKind::Nothing
            })
        },
    }
}

pub(crate) fn write_file(path: &str, text: &str) {
    FILES.lock().insert(path.to_owned(), text.to_owned());
}

pub(crate) fn set_variable(name: &str, value: Option<&str>) {
    let mut variables = VARIABLES.lock();
    match value {
        Some(value) => variables.insert(name.to_owned(), value.to_owned()),
        None => variables.remove(name),
    };
}

/// A provider file of this path.
pub(crate) fn from_file(path: &str) -> Sources {
    Sources {
        only_named: true,
        providers: vec![path.to_owned()],
        flags: vec![Flag {
            name: "--store",
            path: "store",
            value: "memory:".to_owned(),
        }],
        ..Sources::default()
    }
}

/// A `tollgate.yaml` of this path, which names its providers.
pub(crate) fn from_config(path: &str) -> Sources {
    Sources {
        config: Some(path.to_owned()),
        providers: Vec::new(),
        ..from_file(path)
    }
}

/// A running gateway with its admin address.
pub(crate) struct TestDaemon {
    pub(crate) daemon: Daemon,
    pub(crate) gateway: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) servers: (Gateway, Admin),
}

impl TestDaemon {
    pub(crate) async fn start(sources: Sources) -> TestDaemon {
        TestDaemon::start_with(sources, Options::default(), None).await
    }

    pub(crate) async fn start_with(
        sources: Sources,
        options: Options,
        token: Option<&str>,
    ) -> TestDaemon {
        let ledger = Ledger::memory(Clock::System);
        TestDaemon::start_on(ledger, sources, options, token).await
    }

    pub(crate) async fn start_on(
        ledger: Ledger,
        sources: Sources,
        options: Options,
        token: Option<&str>,
    ) -> TestDaemon {
        crate::log::capture();
        let loaded = Config::load(&sources, &world()).unwrap();
        let providers = loaded
            .config
            .all_providers()
            .map(|provider| (**provider).clone());
        let registry = ProviderRegistry::build(providers.collect(), ledger, options).unwrap();
        let daemon = Daemon::new(registry.clone(), sources, loaded, world);
        registry.set_callers(&daemon.config().callers);
        daemon.set_desk(tollgate_server::desk::Desk::in_memory().unwrap());
        let gateway_options = GatewayOptions {
            decisions: Some(daemon.decisions().clone()),
            ..GatewayOptions::default()
        };
        let mut gateway = Gateway::new(registry, gateway_options);
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let address = gateway
            .listen(free, ListenerKind::All)
            .await
            .unwrap()
            .address;
        daemon.set_listeners(gateway.listeners());
        let options = AdminOptions {
            token: token.map(|token| Secret::new(token.to_owned())),
            ..AdminOptions::default()
        };
        let listener = TcpListener::bind(free).await.unwrap();
        let admin = Admin::serve(&daemon, listener, options).unwrap();
        TestDaemon {
            daemon,
            gateway: address,
            admin: admin.address(),
            servers: (gateway, admin),
        }
    }

    /// A request as the operator's own program sends it.
    pub(crate) async fn request(&self, method: &str, path: &str, body: &str) -> ClientResponse {
        let host = self.admin.to_string();
        let headers = [("host", host.as_str()), ("x-tollgate-admin", "1")];
        raw_request(self.admin, method, path, &headers, body).await
    }

    pub(crate) async fn reload(&self) -> ClientResponse {
        self.request("POST", "/v1/reload", "").await
    }

    /// The effective value and its origin.
    /// The status of a provider as soon as one call waits for it.
    pub(crate) async fn status_with_one_waiting(&self, provider: &str) -> serde_json::Value {
        let path = format!("/v1/providers/{provider}");
        within_timeout(async {
            loop {
                let status = self.request("GET", &path, "").await.json();
                if status["queue"]["normal"] == 1 {
                    return status;
                }
            }
        })
        .await
    }

    pub(crate) async fn setting(&self, provider: &str, key: &str) -> (String, String) {
        let path = format!("/v1/providers/{provider}");
        let described = self.request("GET", &path, "").await.json();
        let settings = described["settings"].as_array().unwrap().clone();
        let found = settings.iter().find(|setting| setting["key"] == key);
        let found = found.unwrap_or_else(|| panic!("no setting {key}"));
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("value"), text("by"))
    }
}

/// A request with these headers and no others.
pub(crate) async fn raw_request(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> ClientResponse {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(body.to_owned()));
    let mut session = Session::open(to).await;
    read_response(session.send(request.body(body).unwrap()).await).await
}
