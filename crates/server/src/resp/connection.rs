//! One connection: reads what is there, runs it, replies with one write.
//!
//! Promises: replies come in the order of their commands. A command that waits holds up the commands
//! behind it on its own connection only; permits that are asked for one after the other are asked for
//! together. A client that leaves ends what waits for it. A client that is silent for too long, stops
//! in the middle of a command, does not read its replies, does not say who it is, or sends more than
//! is held behind commands that wait is disconnected.
//!
//! Never: holds more of one client than one command and the replies to a batch.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::client_stream::{ClientStream, read_or_end};
use super::commands::{self, Action, LaterReply};
use super::parse::{Arguments, Command, CommandCaps, Parsed, parse};
use super::reply::ReplyWriter;
use super::session::{Place, Session};
use crate::accept_loop::ShutdownSignal;

/// How many bytes are read at once: a pipeline of 200 requests.
const READ_SIZE: usize = 16 * 1_024;

/// The most bytes that are held before they are run: one command.
const INPUT_MAX: usize = CommandCaps::FULL.command + READ_SIZE;

/// Replies are written when there are so many bytes of them, also in the middle of a batch.
const OUTPUT_SIZE: usize = 64 * 1_024;

/// Commands of one connection that wait: a client that sends more is read no further.
const PENDING_MAX: usize = 1_024;

/// How often a connection is looked at.
const TICK: Duration = Duration::from_secs(10);

/// How many ticks a client may be silent: pools of clients find a closed connection before they use
/// it, and who is gone without a word takes a place for five minutes only.
const IDLE_TICKS: u32 = 30;

/// The same in the middle of a command.
const UNFINISHED_TICKS: u32 = 2;

/// How many ticks a client may take to say who it is, whatever it sends meanwhile. The first tick is
/// at the beginning.
const STRANGER_TICKS: u32 = 3;

/// How many ticks the input may be full without any reply. Nothing is read then; a client whose end is
/// behind what its kernel still holds would not be noticed.
const FULL_TICKS: u32 = 6;

/// How long a client may leave its replies unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

const TOO_MUCH_WAITS: &str =
    "ERR more than 144 KiB of commands wait behind TG.ACQUIRE for a minute; send fewer at a time";

const SHUTTING_DOWN: &str =
    "ERR the daemon is shutting down; try again after it has restarted (nothing was counted)";

/// Serves one connection until its end.
pub(super) async fn serve<S>(stream: S, session: Session, place: Place, shutdown: ShutdownSignal)
where
    S: ClientStream,
{
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut requested = shutdown.clone();
    let mut connection = Connection {
        stream,
        session,
        input: BytesMut::new(),
        output: Vec::new(),
        arguments: Arguments::default(),
        needed: 1,
        pending: PendingReplies::default(),
        was_active: true,
        silent_ticks: 0,
        full_ticks: 0,
        is_draining: false,
        stage: Box::pin(async move { requested.requested().await }),
        shutdown,
        place,
    };
    connection.run(&mut ticks).await;
    connection.stream.shutdown().await.ok();
}

struct Connection<S> {
    stream: S,
    session: Session,
    input: BytesMut,
    output: Vec<u8>,
    arguments: Arguments,
    /// So many bytes of input are worth a look.
    needed: usize,
    pending: PendingReplies,
    /// Something came since the last tick.
    was_active: bool,
    /// Of a stranger, all ticks.
    silent_ticks: u32,
    /// Ticks since the input is full and no reply came.
    full_ticks: u32,
    is_draining: bool,
    /// Ends with the next stage of a shutdown. Made once, because it is polled with every command.
    stage: Pin<Box<dyn Future<Output = ()> + Send>>,
    shutdown: ShutdownSignal,
    place: Place,
}

/// Replies that take time, and those behind them.
#[derive(Default)]
struct PendingReplies {
    tasks: JoinSet<(u64, Vec<u8>)>,
    /// In the order of their commands; `None` = not there yet.
    replies: VecDeque<Option<Vec<u8>>>,
    /// The number of the first one.
    first: u64,
}

/// What a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// There is more to run.
    Run,
    /// More must come.
    Read,
    /// The next command takes effect after those that wait.
    Settle,
    /// It is over.
    Close,
}

impl<S: ClientStream> Connection<S> {
    async fn run(&mut self, ticks: &mut Interval) {
        loop {
            let next = poll_fn(|cx| Poll::Ready(self.execute(cx))).await;
            if !self.flush().await {
                return;
            }
            let is_over = match next {
                Next::Run => continue,
                Next::Close => true,
                Next::Read => self.is_draining && self.pending.is_empty(),
                Next::Settle => false,
            };
            if is_over || !self.wait(ticks).await {
                return;
            }
        }
    }

    /// Runs the commands that are there.
    fn execute(&mut self, cx: &mut Context<'_>) -> Next {
        // One reading of the clock and of the settings for all of them.
        self.session.now = None;
        self.session.limiting = None;
        self.session.check_token();
        let mut at = 0;
        let next = loop {
            if self.output.len() >= OUTPUT_SIZE {
                break Next::Run;
            }
            let input = self.input.get(at..).unwrap_or_default();
            if input.len() < self.needed {
                break Next::Read;
            }
            match parse(input, self.session.caps(), &mut self.arguments) {
                Ok(Parsed::Incomplete { needed }) => {
                    self.needed = needed;
                    break Next::Read;
                }
                Ok(Parsed::Command { used }) => {
                    let command = self.arguments.of(input);
                    let (session, output) = (&mut self.session, &mut self.output);
                    if let Some(next) = run_one(session, &command, output, &mut self.pending, cx) {
                        at += if next == Next::Close { used } else { 0 };
                        break next;
                    }
                    if !session.is_stranger() {
                        self.place.open.activity().on_known();
                    }
                    at += used;
                    self.needed = 1;
                }
                // What came before is replied to first.
                Err(_) if !self.pending.is_empty() => break Next::Settle,
                Err(error) => {
                    let text = format!("ERR {error}");
                    ReplyWriter::new(&mut self.output, self.session.protocol).error(&text);
                    break Next::Close;
                }
            }
        };
        self.input.advance(at);
        next
    }

    /// Writes the replies. `false`: the client does not take them.
    async fn flush(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        let mut write = pin!(self.stream.write_all(&self.output));
        // Nearly always there is room, and then no timer is needed.
        let is_written = match poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
            Poll::Ready(written) => written.is_ok(),
            Poll::Pending => matches!(timeout(WRITE_TIMEOUT, write).await, Ok(Ok(()))),
        };
        self.output.clear();
        is_written
    }

    /// Waits for bytes, for a reply, or for the end. `false`: it is over.
    async fn wait(&mut self, ticks: &mut Interval) -> bool {
        let may_read = self.input.len() < INPUT_MAX && !self.is_draining;
        self.place
            .open
            .activity()
            .set_served(!self.pending.is_empty());
        if may_read && self.input.capacity() - self.input.len() < READ_SIZE / 4 {
            self.input.reserve(READ_SIZE);
        }
        tokio::select! {
            biased;
            Some(done) = self.pending.tasks.join_next(), if !self.pending.is_empty() => {
                // A task that panicked has no reply, and no reply behind it would be the right one.
                let Ok((number, reply)) = done else { return false };
                self.full_ticks = 0;
                self.pending.place(number, reply);
                self.pending.take_ready(&mut self.output);
                true
            }
            // Before the input: who sends without a pause is looked at too.
            _ = ticks.tick() => {
                if self.is_full_for_too_long() {
                    self.pending.give_up(&self.session, TOO_MUCH_WAITS, &mut self.output);
                    self.flush().await;
                    return false;
                }
                !self.is_silent_for_too_long()
            }
            read = read_or_end(&mut self.stream, &mut self.input, may_read) => {
                self.was_active = true;
                self.place.open.activity().set_served(true);
                matches!(read, Ok(bytes) if bytes > 0)
            }
            () = self.place.open.replaced() => false,
            () = &mut self.stage => {
                if std::mem::replace(&mut self.is_draining, true) {
                    self.pending.give_up(&self.session, SHUTTING_DOWN, &mut self.output);
                    self.flush().await;
                    return false;
                }
                let mut shutdown = self.shutdown.clone();
                self.stage = Box::pin(async move { shutdown.grace_over().await });
                true
            }
        }
    }

    /// Is there no room for input since a minute, because of commands that wait?
    fn is_full_for_too_long(&mut self) -> bool {
        if self.input.len() < INPUT_MAX || self.pending.is_empty() {
            self.full_ticks = 0;
            return false;
        }
        self.full_ticks += 1;
        self.full_ticks > FULL_TICKS
    }

    fn is_silent_for_too_long(&mut self) -> bool {
        let is_stranger = self.session.is_stranger();
        let was_active = std::mem::take(&mut self.was_active) || !self.pending.is_empty();
        if was_active && !is_stranger {
            self.silent_ticks = 0;
            return false;
        }
        self.silent_ticks += 1;
        let is_unfinished = !self.input.is_empty();
        if !is_unfinished && !is_stranger {
            // A silent client needs no buffers.
            (self.input, self.output) = (BytesMut::new(), Vec::new());
        }
        let ticks = match (is_stranger, is_unfinished) {
            (true, _) => STRANGER_TICKS,
            (false, true) => UNFINISHED_TICKS,
            (false, false) => IDLE_TICKS,
        };
        self.silent_ticks >= ticks
    }
}

/// Runs one command. `Some`: the next one is not run now.
fn run_one(
    session: &mut Session,
    command: &Command<'_>,
    output: &mut Vec<u8>,
    pending: &mut PendingReplies,
    cx: &mut Context<'_>,
) -> Option<Next> {
    if command.is_empty() {
        return None;
    }
    if is_http(command) {
        return Some(Next::Close);
    }
    let spec = commands::find(command.name());
    let may_join = spec.is_some_and(|spec| spec.is_concurrent) && pending.len() < PENDING_MAX;
    if !pending.is_empty() && !may_join {
        return Some(Next::Settle);
    }
    let mut behind = Vec::new();
    let is_first = pending.is_empty();
    let own = if is_first { output } else { &mut behind };
    let action = commands::run(spec, session, command, own);
    match action {
        Action::Replied if is_first => None,
        Action::Replied => {
            pending.push(Some(behind));
            None
        }
        Action::Close => Some(Next::Close),
        Action::Later(mut reply) => {
            // Asked in the order of the commands: a task of its own would ask at some time.
            match reply.as_mut().poll(cx) {
                Poll::Ready(done) if is_first => own.extend_from_slice(&done),
                Poll::Ready(done) => pending.push(Some(done)),
                Poll::Pending => pending.spawn(reply),
            }
            None
        }
    }
}

/// A browser that was made to send a request here: nothing of it is run.
fn is_http(command: &Command<'_>) -> bool {
    let name = command.name();
    let version = command.get(2).unwrap_or_default();
    let is_method = name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:");
    command.is_line() && (is_method || version.starts_with(b"HTTP/"))
}

impl PendingReplies {
    fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    fn len(&self) -> usize {
        self.replies.len()
    }

    fn push(&mut self, reply: Option<Vec<u8>>) {
        self.replies.push_back(reply);
    }

    fn spawn(&mut self, reply: LaterReply) {
        let number = self.first + self.replies.len() as u64;
        self.push(None);
        self.tasks.spawn(async move { (number, reply.await) });
    }

    fn place(&mut self, number: u64, reply: Vec<u8>) {
        let at = usize::try_from(number.saturating_sub(self.first)).ok();
        if let Some(place) = at.and_then(|at| self.replies.get_mut(at)) {
            *place = Some(reply);
        }
    }

    /// The replies in front that are there.
    fn take_ready(&mut self, output: &mut Vec<u8>) {
        while let Some(Some(reply)) = self.replies.front() {
            output.extend_from_slice(reply);
            self.replies.pop_front();
            self.first += 1;
        }
    }

    /// Every command that still waits gets an error.
    fn give_up(&mut self, session: &Session, why: &str, output: &mut Vec<u8>) {
        self.tasks.abort_all();
        for reply in std::mem::take(&mut self.replies) {
            match reply {
                Some(reply) => output.extend_from_slice(&reply),
                None => ReplyWriter::new(output, session.protocol).error(why),
            }
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
