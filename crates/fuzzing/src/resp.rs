//! Commands of the Redis protocol: the parser, and a connection that replies.
//!
//! An input is what a client sends on one connection.
//!
//! Promises: commands and replies do not depend on how the bytes are cut; every command is within its
//! caps, and is the same when it is written and parsed again; replies are well-formed.
//!
//! Never: opens a socket.

use std::cell::RefCell;

use tollgate_server::resp::fuzzing::replies;
use tollgate_server::resp::parse::{Arguments, CommandCaps, Parsed, parse};

/// The longest input: two commands of the largest size are rejected alike, however they are cut.
const INPUT_MAX: usize = 64 * 1_024;

/// The deepest reply: a list of maps with lists in them.
const DEPTH_MAX: usize = 16;

/// A command, as its arguments.
type Words = Vec<Vec<u8>>;

/// Feeds the bytes to the parser only, cut in several ways: some hundred thousand runs per second.
pub fn run_parser(input: &[u8]) {
    if input.len() > INPUT_MAX {
        return;
    }
    let whole = commands(std::iter::once(input));
    assert_eq!(whole, commands(input.chunks(1)), "byte by byte");
    assert_eq!(whole, commands(input.chunks(7)), "in sevens");
    for words in &whole.0 {
        let written = write(words);
        let again = commands(std::iter::once(written.as_slice()));
        assert_eq!(again.0, std::slice::from_ref(words), "parsed again");
    }
}

/// Feeds the bytes to the parser and to a connection, cut in several ways.
pub fn run(input: &[u8]) {
    if input.len() > INPUT_MAX {
        return;
    }
    run_parser(input);
    let answer = |size: usize| {
        RUNTIME.with_borrow_mut(|runtime| runtime.block_on(replies(input.chunks(size))))
    };
    let whole = answer(input.len().max(1));
    assert!(whole == answer(7), "the same replies in sevens");
    let mut rest = whole.as_slice();
    while !rest.is_empty() {
        rest = skip_reply(rest, DEPTH_MAX).expect("a well-formed reply");
    }
}

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime with a clock needs nothing"),
    );
}

/// The commands of a connection, and whether it ended with an error.
fn commands<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Words>, bool) {
    let caps = &CommandCaps::FULL;
    let (mut found, mut held, mut needed) = (Vec::new(), Vec::new(), 1);
    let mut arguments = Arguments::default();
    for piece in pieces {
        held.extend_from_slice(piece);
        while held.len() >= needed {
            match parse(&held, caps, &mut arguments) {
                Ok(Parsed::Incomplete { needed: more }) => {
                    assert!(more > held.len(), "it is not worth another look now");
                    needed = more;
                }
                Ok(Parsed::Command { used }) => {
                    assert!((1..=held.len()).contains(&used), "it goes on");
                    let command = arguments.of(&held);
                    let words = (0..command.len()).filter_map(|at| command.get(at));
                    let words: Words = words.map(<[u8]>::to_vec).collect();
                    assert_eq!(words.len(), command.len(), "every argument is there");
                    let bytes: usize = words.iter().map(Vec::len).sum();
                    let is_within = bytes <= caps.command && words.len() <= caps.arguments;
                    assert!(is_within, "within the caps");
                    if !words.is_empty() {
                        found.push(words);
                    }
                    held.drain(..used);
                    needed = 1;
                }
                Err(_) => return (found, true),
            }
        }
    }
    // A mistake in a large command that is not complete is found later.
    (found, parse(&held, caps, &mut arguments).is_err())
}

fn write(words: &Words) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// What follows the first reply; `None` if it is not one.
fn skip_reply(bytes: &[u8], depth: usize) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, rest) = (bytes.get(1..end)?, bytes.get(end + 2..)?);
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    let parts = match bytes.first()? {
        b'+' | b'-' | b'_' | b'#' | b',' => return Some(rest),
        b':' => return number().map(|_| rest),
        b'$' => {
            let Ok(length) = usize::try_from(number()?) else {
                return Some(rest);
            };
            let behind = rest.get(length..)?;
            return behind.strip_prefix(b"\r\n");
        }
        b'*' => usize::try_from(number()?).ok()?,
        b'%' => usize::try_from(number()?).ok()?.checked_mul(2)?,
        _ => return None,
    };
    let depth = depth.checked_sub(1)?;
    (0..parts).try_fold(rest, |rest, _| skip_reply(rest, depth))
}
