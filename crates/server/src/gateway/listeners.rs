//! The listeners of a gateway: its own address, and those of providers, which a reload opens and
//! closes.
//!
//! Promises: a closed listener accepts nothing more and finishes running requests within the grace
//! period. A reload does not touch an address that stays the same. If an address cannot be opened,
//! the reload reports it and the previous address stays open.
//!
//! Never: serves a connection. `client_connection` does.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::{Event, Events};

use tollgate_ledger::lock_order::{RankedMutex, rank};

use super::client_connection::{self, ClientConnection};
use super::{GatewayState, ListenAddress, ListenerKind, overload};
use crate::accept_loop::{self, ConnectionHandler, ShutdownSignal};

/// The listeners of a gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Listeners {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Arc<GatewayState>,
    open: RankedMutex<{ rank::LISTENERS }, OpenListeners>,
}

#[derive(Debug, Default)]
struct OpenListeners {
    listeners: Vec<OpenListener>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct OpenListener {
    listening: ListenAddress,
    /// The configured address. The bound one differs for port 0.
    requested: SocketAddr,
    shutdown: watch::Sender<bool>,
}

/// Sockets of providers that are bound and not served yet.
#[derive(Debug)]
pub(crate) struct PreparedListeners {
    new: Vec<(StdListener, ListenerKind, SocketAddr)>,
    /// The current listeners that stay.
    wanted: Vec<(SocketAddr, ListenerKind)>,
    /// The addresses that could not be opened.
    pub(crate) problems: Vec<ListenError>,
}

/// An address of a provider that could not be opened.
#[derive(Clone, Debug)]
pub(crate) struct ListenError {
    /// The provider.
    pub(crate) provider: String,
    /// The reason and the next step.
    pub(crate) message: String,
}

impl Listeners {
    pub(super) fn new(state: Arc<GatewayState>) -> Listeners {
        Listeners {
            shared: Arc::new(Shared {
                state,
                open: RankedMutex::default(),
            }),
        }
    }

    /// Where events are emitted.
    pub(super) fn events(&self) -> &Events {
        self.shared.state.registry.events()
    }

    /// Serves a socket; `wanted` is the configured address, if it differs from the socket's own.
    pub(super) fn open(
        &self,
        listener: TcpListener,
        kind: ListenerKind,
        wanted: Option<SocketAddr>,
    ) -> io::Result<ListenAddress> {
        let address = listener.local_addr()?;
        let Shared { state, open } = &*self.shared;
        state.registry.add_own_address(address);
        let listening = ListenAddress { address, kind };
        let shutdown = watch::Sender::new(false);
        let handler = GatewayHandler {
            state: state.clone(),
            kind: Arc::new(listening.kind.clone()),
        };
        let grace = state.options.grace.into();
        let mut open = open.lock();
        if state.is_draining() {
            return Err(io::Error::other("the gateway is shutting down"));
        }
        // Remove the tasks that have finished.
        while open.tasks.try_join_next().is_some() {}
        let serve = accept_loop::run(listener, handler, shutdown.subscribe(), grace);
        open.tasks.spawn(serve);
        open.listeners.push(OpenListener {
            listening: listening.clone(),
            requested: wanted.unwrap_or(address),
            shutdown,
        });
        drop(open);
        state.registry.events().emit(Event::Listening { address });
        Ok(listening)
    }

    /// Binds the addresses of providers that are not open yet. The current listeners continue until
    /// [`Listeners::apply`]. Must be called inside a tokio runtime.
    pub(crate) fn prepare(&self, wanted: Vec<(SocketAddr, String)>) -> PreparedListeners {
        let current = self.current();
        let mut ready = PreparedListeners {
            new: Vec::new(),
            wanted: Vec::new(),
            problems: Vec::new(),
        };
        for (address, name) in wanted {
            let kind = ListenerKind::Provider(name.clone());
            let is_own = |(requested, at): &&(SocketAddr, ListenAddress)| {
                at.kind == kind && (*requested == address || at.address == address)
            };
            if let Some((_, own)) = current.iter().find(is_own) {
                ready.wanted.push((own.address, kind));
                continue;
            }
            // Another provider has it now, and its listener closes only after this one would open.
            let is_others = |(_, at): &(SocketAddr, ListenAddress)| {
                at.address == address && at.kind != ListenerKind::All
            };
            let opened = if current.iter().any(is_others) {
                Err(format!(
                    "`{name}`: {address} belongs to another provider; reload again after that provider has released it"
                ))
            } else {
                bind(address).map_err(|error| {
                    format!(
                        "`{name}`: could not listen on {address}: {error}; its previous address stays open"
                    )
                })
            };
            match opened {
                Ok(listener) => ready.new.push((listener, kind, address)),
                Err(why) => {
                    let provider = name;
                    ready.problems.push(ListenError {
                        provider,
                        message: why,
                    });
                    ready.wanted.extend(current_of(&current, &kind));
                }
            }
        }
        ready
    }

    /// Serves the prepared sockets and closes the listeners that are no longer configured.
    pub(crate) fn apply(&self, ready: PreparedListeners) -> Vec<ListenError> {
        let PreparedListeners {
            new,
            wanted,
            mut problems,
        } = ready;
        let is_wanted = |opened: &OpenListener| {
            let ListenAddress { address, kind } = &opened.listening;
            let same = |(at, of): &(SocketAddr, ListenerKind)| at == address && of == kind;
            *kind == ListenerKind::All || wanted.iter().any(same)
        };
        self.shared.open.lock().listeners.retain(|opened| {
            let stays = is_wanted(opened);
            if !stays {
                opened.shutdown.send_replace(true);
                let address = opened.listening.address;
                self.shared.state.registry.remove_own_address(address);
            }
            stays
        });
        for (listener, kind, address) in new {
            let ListenerKind::Provider(provider) = kind.clone() else {
                continue; // the gateway's own address does not follow a reload
            };
            let listener = TcpListener::from_std(listener);
            let opened = listener.and_then(|one| self.open(one, kind, Some(address)));
            problems.extend(opened.err().map(|error| ListenError {
                message: format!("`{provider}`: could not listen on {address}: {error}"),
                provider,
            }));
        }
        problems
    }

    /// The addresses that are served now.
    #[must_use]
    pub fn addresses(&self) -> Vec<ListenAddress> {
        let open = self.shared.open.lock();
        let listeners = open.listeners.iter();
        listeners.map(|opened| opened.listening.clone()).collect()
    }

    /// The addresses that are served now, each with its configured address.
    fn current(&self) -> Vec<(SocketAddr, ListenAddress)> {
        let open = self.shared.open.lock();
        let listeners = open.listeners.iter();
        listeners
            .map(|opened| (opened.requested, opened.listening.clone()))
            .collect()
    }

    /// The gateway shuts down.
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.state.is_draining.load(Ordering::Acquire)
    }

    /// Accepts nothing more, finishes running calls, drops the rest.
    pub(super) async fn drain(&self) {
        let mut tasks = {
            let mut open = self.shared.open.lock();
            self.shared.state.is_draining.store(true, Ordering::Release);
            for opened in &open.listeners {
                opened.shutdown.send_replace(true);
            }
            std::mem::take(&mut open.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }

    /// Drops all listeners and connections at once.
    pub(super) fn close_all(&self) {
        let mut open = self.shared.open.lock();
        self.shared.state.is_draining.store(true, Ordering::Release);
        open.listeners.clear();
        open.tasks.abort_all();
    }
}

/// The current addresses of a provider. They stay if the new one cannot be opened.
fn current_of(
    current: &[(SocketAddr, ListenAddress)],
    kind: &ListenerKind,
) -> Vec<(SocketAddr, ListenerKind)> {
    let own = current.iter().filter(|(_, at)| at.kind == *kind);
    own.map(|(_, at)| (at.address, at.kind.clone())).collect()
}

fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves the connections of one listener.
struct GatewayHandler {
    state: Arc<GatewayState>,
    kind: Arc<ListenerKind>,
}

impl ConnectionHandler for GatewayHandler {
    /// Always: a connection above the cap gets a response.
    fn has_capacity(&self, _active: usize) -> bool {
        true
    }

    fn handle(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: ShutdownSignal,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let Some(slot) = self.state.connection_cap.try_acquire(peer.ip()) else {
            self.state.overload.reject(stream);
            return None;
        };
        let connection =
            ClientConnection::new(self.state.clone(), self.kind.clone(), peer.ip(), shutdown);
        Some(async move {
            client_connection::serve(stream, connection).await;
            drop(slot);
        })
    }

    fn on_dropped(&self, connections: usize) {
        let events = self.state.registry.events();
        events.emit(Event::ConnectionsDropped { connections });
    }

    async fn on_accept_error(&self, listener: &TcpListener, error: &io::Error) {
        if overload::is_out_of_descriptors(error) {
            let now = self.state.registry.ledger().at();
            if self.state.overload.claim_report(now) {
                let address = listener.local_addr().ok();
                let events = self.state.registry.events();
                events.emit(Event::OutOfDescriptors { address });
            }
            self.state.overload.close_one(listener).await;
        }
    }
}
