//! A gateway and its admin address on free ports, with files and variables that a test can change.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tollgate::Shop;
use tollgate::shop::Options;
use tollgate_config::{Config, Flag, KeyFile, Secret, Seen, Sources, World};
use tollgate_ledger::{Clock, Ledger};
use tollgate_server::{Admin, AdminOptions, Daemon, Door, Gateway, GatewayOptions};

use crate::client::{Answer, Session, whole};

/// Files and variables of all tests of this program; each test has names of its own.
static FILES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
static VARIABLES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

fn world() -> World<'static> {
    World {
        env: &|name| VARIABLES.lock().get(name).cloned(),
        env_names: &|| VARIABLES.lock().keys().cloned().collect(),
        key_file: &|path| {
            let text = FILES.lock().get(path).cloned();
            let text = text.ok_or_else(|| "no such file".to_owned())?;
            Ok(KeyFile {
                text,
                open_to_others: false,
            })
        },
        look: &|path| {
            let is_file = FILES.lock().contains_key(path);
            Ok(if is_file { Seen::File } else { Seen::Nothing })
        },
    }
}

pub(crate) fn write(path: &str, text: &str) {
    FILES.lock().insert(path.to_owned(), text.to_owned());
}

pub(crate) fn variable(name: &str, value: Option<&str>) {
    let mut variables = VARIABLES.lock();
    match value {
        Some(value) => variables.insert(name.to_owned(), value.to_owned()),
        None => variables.remove(name),
    };
}

/// A provider file of this path.
pub(crate) fn from_file(path: &str) -> Sources {
    Sources {
        bare: true,
        providers: vec![path.to_owned()],
        flags: vec![Flag {
            name: "--store",
            path: "store",
            value: "memory:".to_owned(),
        }],
        ..Sources::default()
    }
}

/// A running gateway with its admin address.
pub(crate) struct Desk {
    pub(crate) daemon: Daemon,
    pub(crate) gateway: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) doors: (Gateway, Admin),
}

impl Desk {
    pub(crate) async fn open(sources: Sources) -> Desk {
        Desk::with(sources, Options::default(), None).await
    }

    pub(crate) async fn with(sources: Sources, options: Options, token: Option<&str>) -> Desk {
        let ledger = Ledger::memory(Clock::System);
        Desk::on(ledger, sources, options, token).await
    }

    pub(crate) async fn on(
        ledger: Ledger,
        sources: Sources,
        options: Options,
        token: Option<&str>,
    ) -> Desk {
        crate::log::keep();
        let loaded = Config::load(&sources, &world()).unwrap();
        let providers = loaded.config.all().map(|provider| (**provider).clone());
        let shop = Shop::build(providers.collect(), ledger, options).unwrap();
        let daemon = Daemon::new(shop.clone(), sources, loaded, world);
        let mut gateway = Gateway::new(shop, GatewayOptions::default());
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let address = gateway.listen(free, Door::All).await.unwrap().address;
        daemon.serves(gateway.doors());
        let options = AdminOptions {
            token: token.map(|token| Secret::new(token.to_owned())),
            ..AdminOptions::default()
        };
        let listener = TcpListener::bind(free).await.unwrap();
        let admin = Admin::serve(&daemon, listener, options).unwrap();
        Desk {
            daemon,
            gateway: address,
            admin: admin.address(),
            doors: (gateway, admin),
        }
    }

    /// A request as the operator's own program sends it.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let host = self.admin.to_string();
        let headers = [("host", host.as_str()), ("x-tollgate-admin", "1")];
        raw_ask(self.admin, method, path, &headers, body).await
    }

    pub(crate) async fn reload(&self) -> Answer {
        self.ask("POST", "/v1/reload", "").await
    }

    /// What is in force: the value, and who set it.
    pub(crate) async fn setting(&self, provider: &str, key: &str) -> (String, String) {
        let path = format!("/v1/providers/{provider}");
        let described = self.ask("GET", &path, "").await.json();
        let settings = described["settings"].as_array().unwrap().clone();
        let found = settings.iter().find(|setting| setting["key"] == key);
        let found = found.unwrap_or_else(|| panic!("no setting {key}"));
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        (text("value"), text("by"))
    }
}

/// A request with these headers and no others.
pub(crate) async fn raw_ask(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(body.to_owned()));
    let mut session = Session::open(to).await;
    whole(session.send(request.body(body).unwrap()).await).await
}
