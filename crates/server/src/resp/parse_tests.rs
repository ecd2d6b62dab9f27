//! The parser, without a socket.

use super::*;

type Found = Result<(Vec<Vec<u8>>, usize), ProtocolError>;

/// The arguments of the first command, and its length; `None` = incomplete.
fn first(input: &[u8], caps: &CommandCaps) -> Option<Found> {
    let mut arguments = Arguments::default();
    match parse(input, caps, &mut arguments) {
        Ok(Parsed::Incomplete { needed }) => {
            assert!(needed > input.len(), "it is never worth another look now");
            None
        }
        Ok(Parsed::Command { used }) => {
            let command = arguments.of(input);
            let all = (0..command.len()).map(|at| command.get(at).unwrap().to_vec());
            Some(Ok((all.collect(), used)))
        }
        Err(error) => Some(Err(error)),
    }
}

fn words(input: &[u8]) -> Vec<String> {
    let found = first(input, &CommandCaps::FULL).expect("complete");
    let (words, used) = found.expect("a command");
    assert_eq!(used, input.len());
    let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
    words.into_iter().map(text).collect()
}

fn error(input: &[u8]) -> ProtocolError {
    let found = first(input, &CommandCaps::FULL).expect("complete");
    found.expect_err("no command")
}

#[test]
fn arrays_and_lines_are_the_same_commands() {
    let array = b"*3\r\n$11\r\nCL.THROTTLE\r\n$0\r\n\r\n$2\r\n\r\n\r\n";
    assert_eq!(words(array), ["CL.THROTTLE", "", "\r\n"]);
    assert_eq!(words(b"PING\r\n"), ["PING"]);
    assert_eq!(words(b"  echo   a\tb \n"), ["echo", "a", "b"]);
    let quoted = br#"echo "a b\x41\n\"" 'it\'s' "" x"#;
    let line = [quoted.as_slice(), b"\r\n"].concat();
    assert_eq!(words(&line), ["echo", "a bA\n\"", "it's", "", "x"]);
    for empty in [&b"\r\n"[..], b"\n", b"*0\r\n", b"*-1\r\n", b"  \n"] {
        assert!(words(empty).is_empty());
    }
}

#[test]
fn what_is_no_command_is_rejected_as_soon_as_it_is_known() {
    use ProtocolError as E;
    for (input, expected) in [
        (&b"*x"[..], E::ArrayLength),
        (b"*-2\r\n", E::ArrayLength),
        (b"*\r\n", E::ArrayLength),
        (b"*1\r$", E::ArrayLength),
        (b"*2049\r\n", E::ArrayLength),
        (b"*99999999999", E::ArrayLength),
        (b"*1\r\n*", E::NotBulk),
        (b"*1\r\n:1\r\n", E::NotBulk),
        (b"*1\r\n$-1\r\n", E::BulkLength),
        (b"*1\r\n$65537\r\n", E::BulkLength),
        (b"*1\r\n$1x", E::BulkLength),
        (b"*1\r\n$4\r\nPINGPONG", E::BulkEnd),
        (b"echo \"a\n", E::Quotes),
        (b"echo \"a\"b\n", E::Quotes),
        (b"echo 'a\n", E::Quotes),
    ] {
        assert_eq!(error(input), expected, "{}", input.escape_ascii());
    }
    assert_eq!(error(&vec![b'a'; LINE_MAX]), E::LineTooBig);
    assert_eq!(
        error(&[&b"a ".repeat(2_049)[..], b"\n"].concat()),
        E::LineTooBig
    );
    let mut many = b"*3\r\n".to_vec();
    for _ in 0..3 {
        many.extend_from_slice(b"$65536\r\n");
        many.extend_from_slice(&vec![b'a'; 65_536]);
        many.extend_from_slice(b"\r\n");
    }
    assert_eq!(error(&many), E::TooBig);
}

/// A client that has not said who it is gets ten arguments of 16 KiB.
#[test]
fn strangers_have_smaller_caps() {
    let strangers = |input: &[u8]| first(input, &CommandCaps::STRANGER);
    assert_eq!(strangers(b"*10\r\n"), None);
    assert_eq!(strangers(b"*11\r\n"), Some(Err(ProtocolError::ArrayLength)));
    assert_eq!(strangers(b"*1\r\n$16384\r\n"), None);
    let big = strangers(b"*1\r\n$16385\r\n");
    assert_eq!(big, Some(Err(ProtocolError::BulkLength)));
}

/// Every beginning of a command is incomplete, and the whole is the same as in one piece.
#[test]
fn a_command_cut_at_every_byte_is_incomplete() {
    let all: [&[u8]; 3] = [
        b"*3\r\n$4\r\nECHO\r\n$3\r\na\r\n\r\n$0\r\n\r\n",
        b"echo \"a b\" c\r\n",
        b"*-1\r\n",
    ];
    for whole in all {
        for cut in 0..whole.len() {
            assert_eq!(first(&whole[..cut], &CommandCaps::FULL), None, "{cut}");
        }
        assert!(first(whole, &CommandCaps::FULL).is_some());
    }
}

/// 2,048 arguments that come byte by byte: each byte caused a look at all of them.
#[test]
fn an_incomplete_command_is_not_parsed_for_every_byte() {
    let mut whole = b"*2048\r\n".to_vec();
    for number in 0..2_048 {
        let word = format!("{number:020}");
        whole.extend_from_slice(format!("$20\r\n{word}\r\n").as_bytes());
    }
    let (mut looks, mut needed) = (0, 1);
    let mut arguments = Arguments::default();
    for length in 1..=whole.len() {
        if length < needed {
            continue;
        }
        looks += 1;
        match parse(&whole[..length], &CommandCaps::FULL, &mut arguments) {
            Ok(Parsed::Incomplete { needed: more }) => needed = more,
            Ok(Parsed::Command { used }) => assert_eq!(used, whole.len()),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(looks < 700, "{looks} looks at {} bytes", whole.len());
}
