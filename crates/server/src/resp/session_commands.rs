//! Commands about the connection and the server, as far as clients of Redis need them.
//!
//! Promises: redis-cli, redis-benchmark, redis-py and ioredis connect with their defaults. What is
//! not supported is an error that says so.
//!
//! Never: pretends to store anything.

use super::commands::{Action, COMMANDS, CommandSpec, For, find};
use super::parse::Command;
use super::reply::{Protocol, ReplyWriter};
use super::session::Session;

/// The version of Redis whose protocol this is. Clients compare it.
const REDIS_VERSION: &str = "7.0.0";

/// The longest name that a client may give itself.
const NAME_MAX: usize = 64;

fn reply<'o>(session: &Session, out: &'o mut Vec<u8>) -> ReplyWriter<'o> {
    ReplyWriter::new(out, session.protocol)
}

pub(super) fn ping(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let mut reply = reply(session, out);
    match command.get(1) {
        Some(text) => reply.bulk(text),
        None => reply.simple("PONG"),
    }
    Action::Replied
}

pub(super) fn echo(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    reply(session, out).bulk(command.get(1).unwrap_or_default());
    Action::Replied
}

pub(super) fn quit(session: &mut Session, _command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    reply(session, out).ok();
    Action::Close
}

pub(super) fn reset(session: &mut Session, _command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    session.reset();
    reply(session, out).simple("RESET");
    Action::Replied
}

pub(super) fn select(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let mut reply = reply(session, out);
    match command.get(1) {
        Some(b"0") => reply.ok(),
        _ => reply.error("ERR DB index is out of range; there is one database: 0"),
    }
    Action::Replied
}

pub(super) fn auth(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let (name, token) = match (command.get(1), command.get(2)) {
        (Some(name), Some(token)) => (Some(name), token),
        (token, _) => (None, token.unwrap_or_default()),
    };
    let is_known = session.authenticate(name, token);
    let mut reply = reply(session, out);
    if is_known {
        reply.ok();
    } else {
        reply.error(WRONG_TOKEN);
    }
    Action::Replied
}

const WRONG_TOKEN: &str = "WRONGPASS invalid username-password pair or user is disabled. Send the admin token, or a caller's name and token";

/// `HELLO [version [AUTH name token] [SETNAME name]]`: all of it, or nothing.
pub(super) fn hello(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    match read_hello(session, command) {
        Err(error) => reply(session, out).error(&error),
        Ok(()) if session.is_stranger() => reply(session, out).error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ),
        Ok(()) => facts(session, out),
    }
    Action::Replied
}

fn read_hello(session: &mut Session, command: &Command<'_>) -> Result<(), String> {
    let protocol = match command.get(1) {
        None => session.protocol,
        Some(b"2") => Protocol::Two,
        Some(b"3") => Protocol::Three,
        Some(_) => return Err("NOPROTO unsupported protocol version; send 2 or 3".to_owned()),
    };
    let (mut credentials, mut name) = (None, None);
    let mut at = 2;
    while let Some(option) = command.get(at) {
        match (command.get(at + 1), command.get(at + 2)) {
            (Some(user), Some(token)) if option.eq_ignore_ascii_case(b"AUTH") => {
                credentials = Some((user, token));
                at += 3;
            }
            (Some(given), _) if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(client_name(given)?);
                at += 2;
            }
            _ => return Err("ERR Syntax error in HELLO; send HELLO 3 AUTH name token".to_owned()),
        }
    }
    if let Some((user, token)) = credentials
        && !session.authenticate(Some(user), token)
    {
        return Err(WRONG_TOKEN.to_owned());
    }
    if !session.is_stranger() {
        session.protocol = protocol;
        session.name = name.unwrap_or_else(|| std::mem::take(&mut session.name));
    }
    Ok(())
}

fn facts(session: &Session, out: &mut Vec<u8>) {
    let mut reply = reply(session, out);
    reply.map(7);
    for (name, value) in [
        ("server", "tollgate"),
        ("version", env!("CARGO_PKG_VERSION")),
    ] {
        reply.text(name);
        reply.text(value);
    }
    reply.text("proto");
    reply.integer(match session.protocol {
        Protocol::Two => 2,
        Protocol::Three => 3,
    });
    reply.text("id");
    reply.count(session.id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.text(name);
        reply.text(value);
    }
    reply.text("modules");
    reply.array(0);
}

fn client_name(bytes: &[u8]) -> Result<String, String> {
    let is_plain = bytes.iter().all(u8::is_ascii_graphic) && bytes.len() <= NAME_MAX;
    let name = std::str::from_utf8(bytes).ok().filter(|_| is_plain);
    let name = name.map(str::to_owned);
    name.ok_or_else(|| {
        "ERR Client names cannot contain spaces, newlines or special characters, and have at most 64 bytes".to_owned()
    })
}

pub(super) fn client(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let verb = command.get(1).unwrap_or_default().to_ascii_lowercase();
    match (verb.as_slice(), command.len()) {
        (b"id", 2) => reply(session, out).count(session.id),
        (b"getname", 2) => {
            let name = Some(session.name.as_str()).filter(|name| !name.is_empty());
            reply(session, out).text_or_null(name);
        }
        (b"setname", 3) => match client_name(command.get(2).unwrap_or_default()) {
            Ok(name) => {
                session.name = name;
                reply(session, out).ok();
            }
            Err(error) => reply(session, out).error(&error),
        },
        (b"info", 2) => {
            let (id, name) = (session.id, &session.name);
            reply(session, out).text(&format!("id={id} name={name} db=0\n"));
        }
        // Libraries say their name and version; nobody asks for it.
        (b"setinfo", 4) | (b"no-evict" | b"no-touch", 3) => reply(session, out).ok(),
        _ => reply(session, out).error(
            "ERR unknown subcommand or wrong number of arguments for 'client'; it has ID, GETNAME, SETNAME, SETINFO, INFO, NO-EVICT and NO-TOUCH",
        ),
    }
    Action::Replied
}

/// redis-benchmark asks for two settings before it begins.
pub(super) fn config(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let is_get = command
        .get(1)
        .is_some_and(|verb| verb.eq_ignore_ascii_case(b"GET"));
    let mut reply = reply(session, out);
    if !is_get {
        reply.error("ERR only CONFIG GET is there; settings are in tollgate.yaml");
        return Action::Replied;
    }
    let wanted = |name: &str| {
        (2..command.len()).any(|at| command.get(at).is_some_and(|one| one == name.as_bytes()))
    };
    let known = [("save", ""), ("appendonly", "no")];
    let found = known.into_iter().filter(|(name, _)| wanted(name));
    reply.map(found.clone().count());
    for (name, value) in found {
        reply.text(name);
        reply.text(value);
    }
    Action::Replied
}

pub(super) fn info(session: &mut Session, _command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let context = &session.context;
    let decisions = context.decisions();
    let clients = context.clients.load(std::sync::atomic::Ordering::Relaxed);
    let (throttle_keys, guard_keys) = (decisions.throttle().keys(), decisions.guards().keys());
    let version = env!("CARGO_PKG_VERSION");
    let lines = [
        "# Server".to_owned(),
        format!("redis_version:{REDIS_VERSION}"),
        "redis_mode:standalone".to_owned(),
        format!("tollgate_version:{version}"),
        "loading:0".to_owned(),
        "role:master".to_owned(),
        "# Clients".to_owned(),
        format!("connected_clients:{clients}"),
        "# Tollgate".to_owned(),
        format!("throttle_keys:{throttle_keys}"),
        format!("guard_keys:{guard_keys}"),
        String::new(),
    ];
    reply(session, out).text(&lines.join("\r\n"));
    Action::Replied
}

pub(super) fn command(session: &mut Session, command: &Command<'_>, out: &mut Vec<u8>) -> Action {
    let verb = command.get(1).map(<[u8]>::to_ascii_lowercase);
    let mut reply = reply(session, out);
    let named: Vec<Option<&CommandSpec>> = (2..command.len())
        .map(|at| find(command.get(at).unwrap_or_default()))
        .collect();
    match (verb.as_deref(), named.as_slice()) {
        (None, _) | (Some(b"info"), []) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| describe(&mut reply, spec));
        }
        (Some(b"info"), named) => {
            reply.array(named.len());
            for spec in named {
                match spec {
                    Some(spec) => describe(&mut reply, spec),
                    None => reply.null(),
                }
            }
        }
        (Some(b"count"), []) => reply.count(COMMANDS.len() as u64),
        (Some(b"list"), []) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| reply.text(spec.name));
        }
        (Some(b"docs"), []) => docs(&mut reply, COMMANDS.iter()),
        (Some(b"docs"), named) => docs(&mut reply, named.iter().flatten().copied()),
        _ => reply.error("ERR unknown subcommand for 'command'; it has COUNT, LIST, INFO and DOCS"),
    }
    Action::Replied
}

/// The ten facts that clients expect of a command.
fn describe(reply: &mut ReplyWriter<'_>, spec: &CommandSpec) {
    let (fewest, most) = spec.arguments;
    let fewest = i64::try_from(fewest).unwrap_or(i64::MAX);
    reply.array(10);
    reply.text(spec.name);
    // A negative number is the fewest.
    let is_fixed = most == spec.arguments.0;
    reply.integer(if is_fixed { fewest } else { -fewest });
    let flags: &[&str] = match spec.who {
        For::Anyone => &["fast", "no_auth"],
        For::Known if spec.has_key => &["fast", "write"],
        For::Known => &["fast"],
        For::Operator => &["admin"],
    };
    reply.array(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    let key = i64::from(spec.has_key);
    for _ in 0..3 {
        reply.integer(key);
    }
    for _ in 0..4 {
        reply.array(0);
    }
}

fn docs<'s>(reply: &mut ReplyWriter<'_>, specs: impl Iterator<Item = &'s CommandSpec> + Clone) {
    reply.map(specs.clone().count());
    for spec in specs {
        reply.text(spec.name);
        reply.map(2);
        for (name, value) in [("summary", spec.summary), ("group", spec.group)] {
            reply.text(name);
            reply.text(value);
        }
    }
}
