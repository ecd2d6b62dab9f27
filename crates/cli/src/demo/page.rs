//! The page of the demonstration: both sides on the admin address.
//!
//! The governed side is there because it goes through the gateway. The direct side is a provider whose limiting is
//! off; its clients report what they got, after the fact.
//!
//! Promises: calls of the direct side go to their provider directly and wait for nobody.
//!
//! Never: reads a file of the user.

use std::net::SocketAddr;
use std::sync::OnceLock;

use anyhow::Context;
use http::HeaderMap;
use tokio::net::TcpListener;
use tollgate::ProviderRegistry;
use tollgate::path::{CallOptions, decide};
use tollgate_config::{Config, Environment, FileContent, Loaded, PathKind, Sources};
use tollgate_core::ask::Priority;
use tollgate_core::health::Fault;
use tollgate_server::{Admin, AdminOptions, Daemon};

/// The address in the documents; another port if this one is in use.
const DEFAULT_ADDRESS: &str = "127.0.0.1:4291";

/// The name of the direct side.
const DIRECT: &str = "direct";

/// The files of the two providers, which exist only here. A process runs one demonstration.
static FILES: OnceLock<[(&'static str, String); 2]> = OnceLock::new();

/// The configuration of both sides: the governed one, and the URL of the other.
pub(super) fn load(governed: String, direct_url: &str) -> anyhow::Result<(Sources, Loaded)> {
    let direct = format!("name: {DIRECT}\nupstream: {direct_url}\nenabled: false\nhealth: off\n");
    // A second demonstration of one process would show the first one's addresses.
    let _first = FILES.set([("demo.yaml", governed), ("direct.yaml", direct)]);
    let sources = Sources {
        only_named: true,
        providers: vec!["demo.yaml".to_owned(), "direct.yaml".to_owned()],
        ..Sources::default()
    };
    let loaded = Config::load(&sources, &world());
    let loaded = loaded.map_err(|problems| anyhow::anyhow!("{problems}"))?;
    Ok((sources, loaded))
}

/// Serves the page, on the usual port if it is free.
pub(super) async fn serve(
    registry: &ProviderRegistry,
    sources: Sources,
    loaded: Loaded,
) -> anyhow::Result<Admin> {
    let daemon = Daemon::new(registry.clone(), sources, loaded, world);
    let usual: SocketAddr = DEFAULT_ADDRESS.parse().context("an address")?;
    let listener = match TcpListener::bind(usual).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((usual.ip(), 0))
            .await
            .context("no free port")?,
    };
    let options = AdminOptions {
        grace: tollgate_core::time::Span::ZERO,
        ..AdminOptions::default()
    };
    Ok(Admin::serve(&daemon, listener, options)?)
}

/// A direct call got this status, or no response.
pub(super) async fn on_direct_call(
    registry: &ProviderRegistry,
    status: Option<u16>,
    priority: Priority,
) {
    let options = CallOptions {
        priority,
        ..CallOptions::default()
    };
    let Ok(mut call) = decide::acquire(registry, DIRECT, None, options).await else {
        return;
    };
    // It cannot be too old: it was granted just now.
    call.sent().ok();
    match status {
        Some(status) => drop(call.report(status, &HeaderMap::new(), &[], &[])),
        None => call.failed(Fault::Reset),
    }
}

fn world() -> Environment<'static> {
    Environment {
        missing_key: None,
        env: &|_| None,
        env_names: &Vec::new,
        read_file: &|path| match file(path) {
            Some(text) => Ok(FileContent {
                text: text.to_owned(),
                readable_by_others: false,
            }),
            None => Err("no such file".to_owned()),
        },
        path_kind: &|path| {
            Ok(match file(path) {
                Some(_) => PathKind::File,
                None => PathKind::Nothing,
            })
        },
    }
}

fn file(path: &str) -> Option<&'static str> {
    let files = FILES.get().into_iter().flatten();
    let mut texts = files
        .filter(|(name, _)| *name == path)
        .map(|(_, text)| text.as_str());
    texts.next()
}
