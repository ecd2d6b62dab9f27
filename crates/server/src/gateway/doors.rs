//! The doors of a gateway: its own address, and those of providers, which come and go on reload.
//!
//! Promises: a door that is closed accepts nothing more; requests under way on it are finished within
//! the grace. An address that stays the same is not touched. What cannot be opened is said, and what
//! was open before stays.
//!
//! Never: serves. `visit` does.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::event::Fact;

use super::visit::{self, Visit};
use super::{Door, Listening, State, full};
use crate::doorway::{self, Host};

/// The doors of a gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Doors {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Arc<State>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    doors: Vec<Opened>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Opened {
    listening: Listening,
    /// The address that was asked for: with port 0 it is another one.
    wanted: SocketAddr,
    ending: watch::Sender<bool>,
}

/// Sockets of providers that are open and not served yet.
#[derive(Debug)]
pub(crate) struct Ready {
    new: Vec<(StdListener, Door, SocketAddr)>,
    /// What is to stay of what is there now.
    wanted: Vec<(SocketAddr, Door)>,
    /// What could not be opened.
    pub(crate) problems: Vec<Shut>,
}

/// An address that a provider could not have.
#[derive(Clone, Debug)]
pub(crate) struct Shut {
    /// Whose it was to be.
    pub(crate) provider: String,
    /// Why, in words.
    pub(crate) why: String,
}

impl Doors {
    pub(super) fn new(state: Arc<State>) -> Doors {
        Doors {
            shared: Arc::new(Shared {
                state,
                open: Mutex::default(),
            }),
        }
    }

    /// Serves a socket; `wanted` is the address that was asked for, if it is not the socket's own.
    pub(super) fn open(
        &self,
        listener: TcpListener,
        door: Door,
        wanted: Option<SocketAddr>,
    ) -> io::Result<Listening> {
        let address = listener.local_addr()?;
        let Shared { state, open } = &*self.shared;
        state.shop.add_own_address(address);
        let listening = Listening { address, door };
        let ending = watch::Sender::new(false);
        let hall = Hall {
            state: state.clone(),
            door: Arc::new(listening.door.clone()),
        };
        let grace = state.options.grace.into();
        let mut open = open.lock();
        if state.is_draining() {
            return Err(io::Error::other("the gateway is ending"));
        }
        // Those that ended by themselves are forgotten.
        while open.tasks.try_join_next().is_some() {}
        let serve = doorway::accept(listener, hall, ending.subscribe(), grace);
        open.tasks.spawn(serve);
        open.doors.push(Opened {
            listening: listening.clone(),
            wanted: wanted.unwrap_or(address),
            ending,
        });
        Fact::Listening { address }.tell();
        Ok(listening)
    }

    /// Opens what providers want and is not open yet. What they have now goes on until
    /// [`Doors::follow`]. Must be called inside a tokio runtime.
    pub(crate) fn prepare(&self, wanted: Vec<(SocketAddr, String)>) -> Ready {
        let here = self.here();
        let mut ready = Ready {
            new: Vec::new(),
            wanted: Vec::new(),
            problems: Vec::new(),
        };
        for (address, name) in wanted {
            let door = Door::Provider(name.clone());
            let is_own = |(asked, at): &&(SocketAddr, Listening)| {
                at.door == door && (*asked == address || at.address == address)
            };
            if let Some((_, own)) = here.iter().find(is_own) {
                ready.wanted.push((own.address, door));
                continue;
            }
            // Another provider has it now: its door is closed only after this one would be open.
            let is_others =
                |(_, at): &(SocketAddr, Listening)| at.address == address && at.door != Door::All;
            let opened = if here.iter().any(is_others) {
                Err(format!(
                    "`{name}`: {address} belongs to another provider; reload again when that has given it up"
                ))
            } else {
                bind(address).map_err(|error| {
                    format!(
                        "`{name}`: could not listen on {address}: {error}; the address it had stays"
                    )
                })
            };
            match opened {
                Ok(listener) => ready.new.push((listener, door, address)),
                Err(why) => {
                    let provider = name;
                    ready.problems.push(Shut { provider, why });
                    ready.wanted.extend(own(&here, &door));
                }
            }
        }
        ready
    }

    /// Serves what was opened and closes what is no longer wanted.
    pub(crate) fn follow(&self, ready: Ready) -> Vec<Shut> {
        let Ready {
            new,
            wanted,
            mut problems,
        } = ready;
        let is_wanted = |opened: &Opened| {
            let Listening { address, door } = &opened.listening;
            let same = |(at, of): &(SocketAddr, Door)| at == address && of == door;
            *door == Door::All || wanted.iter().any(same)
        };
        self.shared.open.lock().doors.retain(|opened| {
            let stays = is_wanted(opened);
            if !stays {
                opened.ending.send_replace(true);
                let address = opened.listening.address;
                self.shared.state.shop.is_no_longer_ours(address);
            }
            stays
        });
        for (listener, door, address) in new {
            let Door::Provider(provider) = door.clone() else {
                continue; // the gateway's own address does not follow a reload
            };
            let listener = TcpListener::from_std(listener);
            let opened = listener.and_then(|one| self.open(one, door, Some(address)));
            problems.extend(opened.err().map(|error| Shut {
                why: format!("`{provider}`: could not listen on {address}: {error}"),
                provider,
            }));
        }
        problems
    }

    /// What is served now.
    #[must_use]
    pub fn listening(&self) -> Vec<Listening> {
        let open = self.shared.open.lock();
        let doors = open.doors.iter();
        doors.map(|opened| opened.listening.clone()).collect()
    }

    /// What is served now, and by what address it was asked for.
    fn here(&self) -> Vec<(SocketAddr, Listening)> {
        let open = self.shared.open.lock();
        let doors = open.doors.iter();
        doors
            .map(|opened| (opened.wanted, opened.listening.clone()))
            .collect()
    }

    /// Accepts nothing more, finishes what is under way, drops the rest.
    pub(super) async fn drain(&self) {
        let mut tasks = {
            let mut open = self.shared.open.lock();
            self.shared.state.is_ending.store(true, Ordering::Release);
            for opened in &open.doors {
                opened.ending.send_replace(true);
            }
            std::mem::take(&mut open.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }

    /// The gateway is gone: so is everything that it serves.
    pub(super) fn close_all(&self) {
        let mut open = self.shared.open.lock();
        self.shared.state.is_ending.store(true, Ordering::Release);
        open.doors.clear();
        open.tasks.abort_all();
    }
}

/// What a provider has now, which stays while it cannot have another.
fn own(here: &[(SocketAddr, Listening)], door: &Door) -> Vec<(SocketAddr, Door)> {
    let own = here.iter().filter(|(_, at)| at.door == *door);
    own.map(|(_, at)| (at.address, at.door.clone())).collect()
}

fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whoever comes through one door.
struct Hall {
    state: Arc<State>,
    door: Arc<Door>,
}

impl Host for Hall {
    /// Whoever finds no room is told so.
    fn has_room(&self, _inside: usize) -> bool {
        true
    }

    fn receive(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        ending: watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let Some(room) = self.state.crowd.enter(peer.ip()) else {
            self.state.full.tell(stream);
            return None;
        };
        let visit = Visit::new(self.state.clone(), self.door.clone(), peer.ip(), ending);
        Some(async move {
            visit::serve(stream, visit).await;
            drop(room);
        })
    }

    async fn failed(&self, listener: &TcpListener, error: &io::Error) {
        if full::is_lack(error) {
            self.state.full.let_go(listener).await;
        }
    }
}
