//! Messages of Envoy's rate limit service and of the health service.
//!
//! An input is messages of one client, each behind its length in two bytes; what is left over is the last
//! message.
//!
//! Promises: the same messages get the same replies; every reply is a frame with a well-formed message
//! that states one of two codes, or an error with a sentence; a field that nobody knows changes nothing.
//!
//! Never: opens a socket.

use std::cell::RefCell;

use tollgate_server::grpc::fuzzing::{checked_service, read_request, replies};

/// The longest input: the largest message is 32 KiB.
const INPUT_MAX: usize = 64 * 1_024;

/// The deepest message of a reply: a header of a response.
const DEPTH_MAX: usize = 8;

/// Field 15, a number: unknown to every message.
const UNKNOWN_FIELD: [u8; 2] = [15 << 3, 0];

/// Reads the messages only: some hundred thousand runs per second.
pub fn run_parser(input: &[u8]) {
    if input.len() > INPUT_MAX {
        return;
    }
    for message in messages(input) {
        if let Ok(request) = read_request(&message) {
            let extended = [message.as_slice(), &UNKNOWN_FIELD].concat();
            assert_eq!(Ok(request), read_request(&extended), "an unknown field");
        }
    }
}

/// Feeds the messages to the service, as the operator and as a caller.
pub fn run(input: &[u8]) {
    if input.len() > INPUT_MAX {
        return;
    }
    let messages = messages(input);
    for is_operator in [true, false] {
        let answer = |messages: &[Vec<u8>]| {
            let messages = messages.iter().map(Vec::as_slice);
            RUNTIME.with_borrow_mut(|runtime| runtime.block_on(replies(messages, is_operator)))
        };
        let first = answer(&messages);
        assert!(first == answer(&messages), "the same replies again");
        for reply in &first {
            match reply {
                Ok(frame) => check_frame(frame),
                Err(sentence) => assert!(!sentence.is_empty(), "an error says why"),
            }
        }
        let readable = messages.iter().zip(&first);
        let readable = readable.filter_map(|(message, reply)| reply.is_ok().then_some(message));
        let readable: Vec<Vec<u8>> = readable.cloned().collect();
        let extended = |message: &Vec<u8>| [message.as_slice(), &UNKNOWN_FIELD].concat();
        let extended: Vec<Vec<u8>> = readable.iter().map(extended).collect();
        assert!(answer(&readable) == answer(&extended), "an unknown field");
    }
    for message in &messages {
        let service = checked_service(message);
        if service.is_some() {
            let extended = [message.as_slice(), &UNKNOWN_FIELD].concat();
            assert_eq!(service, checked_service(&extended), "an unknown field");
        }
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

/// At most 16 messages.
fn messages(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let [high, low, behind @ ..] = rest
        && messages.len() < 15
    {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((message, left)) = behind.split_at_checked(length) else {
            break;
        };
        messages.push(message.to_vec());
        rest = left;
    }
    messages.push(rest.to_vec());
    messages
}

/// A frame with one message that begins with the overall code.
fn check_frame(frame: &[u8]) {
    let (prefix, message) = frame.split_at_checked(5).expect("flag and length");
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    assert_eq!(
        (prefix[0], length as usize),
        (0, message.len()),
        "its frame"
    );
    assert!(
        matches!(message, [0x08, 1 | 2, ..]),
        "OK or OVER_LIMIT comes first"
    );
    assert!(is_message(message, DEPTH_MAX), "a well-formed message");
}

/// Whether the bytes are fields to their end.
fn is_message(mut rest: &[u8], depth: usize) -> bool {
    while !rest.is_empty() {
        let Some((tag, behind)) = number(rest) else {
            return false;
        };
        let next = match (tag >> 3, tag & 7) {
            (0, _) => None,
            (_, 0) => number(behind).map(|(_, behind)| behind),
            (_, 2) => number(behind).and_then(|(length, behind)| {
                let length = usize::try_from(length).ok()?;
                let (inner, behind) = behind.split_at_checked(length)?;
                // A text may look like a message, a message must not look like nothing.
                let is_fine =
                    std::str::from_utf8(inner).is_ok() || depth > 0 && is_message(inner, depth - 1);
                is_fine.then_some(behind)
            }),
            _ => None,
        };
        let Some(next) = next else {
            return false;
        };
        rest = next;
    }
    true
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}
