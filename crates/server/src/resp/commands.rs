//! The commands: one table, from which they are run, counted and documented.
//!
//! Promises: a command that is unknown, not allowed or has a wrong number of arguments gets an error
//! that says what to do, and nothing is counted.
//!
//! Never: waits. What takes time is handed out as a future.

use std::pin::Pin;

use super::parse::Command;
use super::permit_commands::{acquire, capacity, release, report, status};
use super::reply::ReplyWriter;
use super::session::Session;
use super::session_commands::{
    auth, client, command, config, echo, hello, info, ping, quit, reset, select,
};
use super::throttle_command::throttle;

/// A reply that takes time.
pub(super) type LaterReply = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// What a command has done.
pub(super) enum Action {
    /// Its reply is written.
    Replied,
    /// Its reply is written, and it was the last one.
    Close,
    /// Its reply takes time.
    Later(LaterReply),
}

/// Who may use a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// Whoever connects.
    Anyone,
    /// Whoever has said who it is.
    Known,
    /// The operator only.
    Operator,
}

type Run = fn(&mut Session, &Command<'_>, &mut Vec<u8>) -> Action;

/// One command.
pub(super) struct CommandSpec {
    pub(super) name: &'static str,
    /// The fewest and the most arguments, the name included.
    pub(super) arguments: (usize, usize),
    pub(super) who: For,
    /// Several of them that come together are asked for together.
    pub(super) is_concurrent: bool,
    /// It names a key at position 1.
    pub(super) has_key: bool,
    pub(super) group: &'static str,
    pub(super) summary: &'static str,
    run: Run,
}

/// As many arguments as a command may have at all.
const MANY: usize = usize::MAX;

const fn spec(
    name: &'static str,
    arguments: (usize, usize),
    summary: &'static str,
    run: Run,
) -> CommandSpec {
    CommandSpec {
        name,
        arguments,
        who: For::Known,
        is_concurrent: false,
        has_key: false,
        group: "connection",
        summary,
        run,
    }
}

/// All commands, the frequent ones first.
pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        has_key: true,
        group: "tollgate",
        ..spec(
            "cl.throttle",
            (1, MANY),
            "Takes tokens of a bucket: KEY MAX_BURST COUNT PERIOD [QUANTITY]",
            throttle,
        )
    },
    CommandSpec {
        is_concurrent: true,
        group: "tollgate",
        ..spec(
            "tg.acquire",
            (2, MANY),
            "A permit for a call, or tokens of guards: PROVIDER | URL | GUARD NAME IDENTIFIER [GUARD …] [ENTITY E] [PRIORITY P] [COST C] [CALLER C] [WAIT MS | NOWAIT]",
            acquire,
        )
    },
    CommandSpec {
        group: "tollgate",
        ..spec(
            "tg.report",
            (2, MANY),
            "What became of the call of a permit: PERMIT [STATUS N | ERROR E] [HEADER NAME VALUE …] [BODY B] [COST C] [LATENCY MS]",
            report,
        )
    },
    CommandSpec {
        group: "tollgate",
        ..spec(
            "tg.release",
            (2, 2),
            "The call of a permit is not made: PERMIT",
            release,
        )
    },
    CommandSpec {
        group: "tollgate",
        ..spec(
            "tg.capacity",
            (2, MANY),
            "Would a call get a permit now? PROVIDER | URL | GUARD NAME IDENTIFIER [ENTITY E] [PRIORITY P] [COST C] [CALLER C]",
            capacity,
        )
    },
    CommandSpec {
        group: "tollgate",
        who: For::Operator,
        ..spec(
            "tg.status",
            (1, 2),
            "All providers, or one with its details: [PROVIDER]",
            status,
        )
    },
    spec("ping", (1, 2), "Replies PONG, or its argument", ping),
    spec("echo", (2, 2), "Replies its argument", echo),
    CommandSpec {
        who: For::Anyone,
        ..spec(
            "hello",
            (1, MANY),
            "Chooses the protocol: [2 | 3 [AUTH NAME TOKEN] [SETNAME NAME]]",
            hello,
        )
    },
    CommandSpec {
        who: For::Anyone,
        ..spec(
            "auth",
            (2, 3),
            "Says who asks: [NAME] TOKEN, the admin token or a caller's",
            auth,
        )
    },
    CommandSpec {
        who: For::Anyone,
        ..spec("quit", (1, MANY), "Ends the connection", quit)
    },
    CommandSpec {
        who: For::Anyone,
        ..spec("reset", (1, 1), "The connection as at its beginning", reset)
    },
    spec(
        "client",
        (2, MANY),
        "ID, SETNAME, GETNAME, SETINFO, INFO",
        client,
    ),
    spec("select", (2, 2), "There is one database: 0", select),
    CommandSpec {
        group: "server",
        ..spec(
            "command",
            (1, MANY),
            "The commands: COUNT, LIST, INFO, DOCS",
            command,
        )
    },
    CommandSpec {
        group: "server",
        ..spec("info", (1, MANY), "Facts about the server", info)
    },
    CommandSpec {
        group: "server",
        ..spec(
            "config",
            (2, MANY),
            "GET, for clients that ask at their start",
            config,
        )
    },
];

/// The command of this name.
pub(super) fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    let is_it = |spec: &&CommandSpec| name.eq_ignore_ascii_case(spec.name.as_bytes());
    COMMANDS.iter().find(is_it)
}

/// Runs a command that [`find`] has found, or writes why not.
pub(super) fn run(
    spec: Option<&CommandSpec>,
    session: &mut Session,
    command: &Command<'_>,
    out: &mut Vec<u8>,
) -> Action {
    let mut reply = ReplyWriter::new(out, session.protocol);
    let Some(spec) = spec else {
        // Who has not said who it is learns nothing.
        if session.is_stranger() {
            reply.error(NO_AUTH);
        } else {
            reply.error(&unknown(command.name()));
        }
        return Action::Replied;
    };
    if spec.who != For::Anyone && session.is_stranger() {
        reply.error(NO_AUTH);
        return Action::Replied;
    }
    if spec.who == For::Operator && !session.is_operator() {
        let name = spec.name;
        reply.error(&format!(
            "NOPERM {name} is for the operator; send AUTH with the admin token"
        ));
        return Action::Replied;
    }
    let (fewest, most) = spec.arguments;
    if command.len() < fewest || command.len() > most {
        let (name, summary) = (spec.name, spec.summary);
        reply.error(&format!(
            "ERR wrong number of arguments for '{name}' command; {summary}"
        ));
        return Action::Replied;
    }
    (spec.run)(session, command, out)
}

const NO_AUTH: &str = "NOAUTH Authentication required. Send AUTH with the admin token, or with the token of a caller under `callers:`";

/// A name that is not a command.
fn unknown(name: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(name)
        .chars()
        .take(32)
        .filter(|one| one.is_ascii_graphic())
        .collect();
    let lower = shown.to_ascii_lowercase();
    let known: Vec<&str> = COMMANDS.iter().map(|spec| spec.name).collect();
    let hint = match lower.as_str() {
        "multi" | "exec" | "discard" | "watch" => {
            "there are no transactions; use a plain pipeline, such as pipeline(transaction=False) of redis-py".to_owned()
        }
        _ => match tollgate_config::problem::nearest(&lower, &known) {
            Some(near) => format!("did you mean '{near}'?"),
            None => "this is Tollgate, not Redis; COMMAND lists its commands".to_owned(),
        },
    };
    format!("ERR unknown command '{shown}'; {hint}")
}
