//! One client: who it is, what it may do, and what it has chosen.
//!
//! | listens on | `admin.token` | without `AUTH` a client is |
//! |---|---|---|
//! | loopback, a Unix socket | none | the operator, as on the admin address |
//! | loopback, a Unix socket | set | nobody |
//! | any other address | set or not | nobody |
//!
//! `AUTH` takes the admin token, or the token of a caller: such a client asks for itself only.
//!
//! Promises: tokens are compared in constant time. A caller's token is checked again with every batch
//! of commands, so a reload that changes it ends what its clients may do.
//!
//! Never: repeats a token.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate_config::Secret;
use tollgate_config::config::Limiting;
use tollgate_guard::Tick;

use super::activity::ClientActivity;
use super::parse::CommandCaps;
use super::reply::Protocol;
use super::waiting_places::WaitingPlaces;
use crate::connection_table::ConnectionPlace;
use crate::daemon::Daemon;
use crate::decisions::Decisions;
use crate::gateway::ConnectionSlot;

/// What all clients of one listener share.
#[derive(Debug)]
pub(super) struct RespContext {
    pub(super) daemon: Daemon,
    /// The admin token, if there is one.
    pub(super) token: Option<Secret>,
    /// Clients that say nothing are the operator.
    pub(super) is_open: bool,
    /// Connections now.
    pub(super) clients: AtomicUsize,
    /// Places of commands that wait, of all connections.
    pub(super) waiting: Arc<WaitingPlaces>,
}

/// Who a client is.
#[derive(Clone, Debug)]
pub(super) enum Identity {
    /// It has not said so.
    Stranger,
    /// Whoever may use the admin address.
    Operator,
    /// A caller with a token: it asks for itself only.
    Caller(String, Secret),
}

impl Identity {
    /// The caller that a token has authenticated.
    pub(super) fn caller(&self) -> Option<&str> {
        match self {
            Identity::Caller(name, _) => Some(name),
            Identity::Stranger | Identity::Operator => None,
        }
    }
}

/// One client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) context: Arc<RespContext>,
    pub(super) identity: Identity,
    pub(super) protocol: Protocol,
    /// The number of the connection.
    pub(super) id: u64,
    /// The name that the client has given itself.
    pub(super) name: String,
    /// Its address; `None` on a Unix socket.
    pub(super) peer: Option<IpAddr>,
    /// Whether guards reject: read once for all commands that are decided together.
    pub(super) limiting: Option<Limiting>,
    /// The time of the commands that are decided together.
    pub(super) now: Option<Tick>,
}

/// The place of a connection: counted while it lives.
#[derive(Debug)]
pub(super) struct Place {
    context: Arc<RespContext>,
    _slot: ConnectionSlot,
    /// Among those of its listener.
    pub(super) open: ConnectionPlace<ClientActivity>,
}

impl RespContext {
    pub(super) fn decisions(&self) -> &Decisions {
        self.daemon.decisions()
    }

    pub(super) fn place(
        self: &Arc<RespContext>,
        slot: ConnectionSlot,
        open: ConnectionPlace<ClientActivity>,
    ) -> Place {
        self.clients.fetch_add(1, Ordering::Relaxed);
        Place {
            context: self.clone(),
            _slot: slot,
            open,
        }
    }

    fn first_identity(&self) -> Identity {
        if self.is_open {
            Identity::Operator
        } else {
            Identity::Stranger
        }
    }

    /// Whom a token, and perhaps a name, authenticate.
    fn authenticate(&self, name: Option<&str>, token: &str) -> Option<Identity> {
        let token = Secret::new(token.to_owned());
        // Redis calls the user of a plain `AUTH` so.
        let is_operator_name = name.is_none_or(|name| matches!(name, "default" | "admin"));
        if is_operator_name && self.token.as_ref() == Some(&token) {
            return Some(Identity::Operator);
        }
        let caller = self.decisions().caller_of(&token)?;
        let fits = name.is_none_or(|name| name == "default" || name == caller);
        fits.then_some(Identity::Caller(caller, token))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.context.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub(super) fn new(context: Arc<RespContext>, id: u64, peer: Option<IpAddr>) -> Session {
        Session {
            identity: context.first_identity(),
            context,
            protocol: Protocol::Two,
            id,
            name: String::new(),
            peer,
            limiting: None,
            now: None,
        }
    }

    /// As at the beginning.
    pub(super) fn reset(&mut self) {
        self.identity = self.context.first_identity();
        self.protocol = Protocol::Two;
        self.name.clear();
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.identity, Identity::Stranger)
    }

    pub(super) fn is_operator(&self) -> bool {
        matches!(self.identity, Identity::Operator)
    }

    /// What it may send.
    pub(super) fn caps(&self) -> &'static CommandCaps {
        if self.is_stranger() {
            &CommandCaps::STRANGER
        } else {
            &CommandCaps::FULL
        }
    }

    /// The client says who it is. `false`: it is not.
    pub(super) fn authenticate(&mut self, name: Option<&[u8]>, token: &[u8]) -> bool {
        let name = name.map(|name| String::from_utf8_lossy(name));
        let token = String::from_utf8_lossy(token);
        let identity = self.context.authenticate(name.as_deref(), &token);
        let is_known = identity.is_some();
        self.identity = identity.unwrap_or_else(|| self.identity.clone());
        is_known
    }

    /// A caller whose token is no longer its own, after a reload, is a stranger again.
    pub(super) fn check_token(&mut self) {
        if let Identity::Caller(name, token) = &self.identity
            && self.context.decisions().caller_of(token).as_ref() != Some(name)
        {
            self.identity = Identity::Stranger;
        }
    }

    /// The time of a decision: one for all commands that are decided together.
    pub(super) fn now(&mut self) -> Tick {
        let throttle = self.context.daemon.decisions().throttle();
        *self.now.get_or_insert_with(|| throttle.now())
    }
}
