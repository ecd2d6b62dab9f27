//! The framing of requests, against hyper and httparse.
//!
//! An input is what a client sends on one connection.
//!
//! Promises: the framing does not depend on how the bytes are cut; every head that hyper serves is
//! counted; every head that httparse reads with two lengths, or with a length and chunks, is
//! ambiguous.
//!
//! Never: opens a socket.

use std::cell::RefCell;
use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_server::gateway::fuzzing::framing;

/// As hyper's own bound.
const HEADERS_MAX: usize = 100;

/// The longest input: above it hyper rejects heads that the framing need not.
const INPUT_MAX: usize = 16 * 1024;

/// Feeds the bytes to all three.
pub fn run(input: &[u8]) {
    if input.len() > INPUT_MAX {
        return;
    }
    let whole = framing(std::iter::once(input));
    assert_eq!(whole, framing(input.chunks(1)), "byte by byte");
    assert_eq!(whole, framing(input.chunks(7)), "in sevens");
    let reference = reference(input);
    if let Some(number) = reference.ambiguous {
        let found = whole.first_ambiguous;
        assert!(
            found.is_some_and(|found| found <= number),
            "request {number} is ambiguous, {found:?} was found"
        );
    }
    let is_tracked = whole.is_between || whole.is_in_head || whole.is_in_body;
    if whole.first_ambiguous.is_none() && is_tracked {
        assert!(whole.heads >= reference.heads, "{whole:?}");
        let served = RUNTIME.with_borrow_mut(|runtime| runtime.block_on(served(input)));
        assert!(whole.heads >= served, "hyper served {served}: {whole:?}");
    }
}

/// Requests as httparse reads them.
#[derive(Debug, Default)]
struct Reference {
    heads: u64,
    ambiguous: Option<u64>,
}

/// Reads heads and skips plain bodies, up to the first head that is ambiguous or chunked.
fn reference(mut input: &[u8]) -> Reference {
    let mut found = Reference::default();
    loop {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Request::new(&mut lines);
        let Ok(httparse::Status::Complete(length)) = head.parse(input) else {
            return found;
        };
        found.heads += 1;
        let named = |name: &'static str| {
            let lines = head.headers.iter();
            lines.filter(move |line| line.name.eq_ignore_ascii_case(name))
        };
        let lengths: Vec<&[u8]> = named("content-length").map(|line| line.value).collect();
        let is_chunked = named("transfer-encoding").next().is_some();
        if lengths.len() > 1 || (is_chunked && !lengths.is_empty()) {
            found.ambiguous = Some(found.heads);
        }
        let body = match lengths.as_slice() {
            [] => Some(0),
            [one] => std::str::from_utf8(one)
                .ok()
                .and_then(|one| one.parse().ok()),
            _several => None,
        };
        let rest = body.and_then(|body: usize| input.get(length.checked_add(body)?..));
        match rest {
            Some(rest) if !is_chunked && found.ambiguous.is_none() => input = rest,
            _end => return found,
        }
    }
}

thread_local! {
    static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers needs nothing"),
    );
}

/// How many requests hyper hands to a handler that reads their bodies.
async fn served(input: &[u8]) -> u64 {
    let count = std::cell::Cell::new(0);
    let service = service_fn(|request: Request<Incoming>| {
        count.set(count.get() + 1);
        async move {
            let _whole_or_not = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let (mut client, server) = tokio::io::duplex(2 * INPUT_MAX);
    let serve = http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(server), service);
    let send = async {
        let _sent = client.write_all(input).await;
        let _ended = client.shutdown().await;
        let _responses = client.read_to_end(&mut Vec::new()).await;
    };
    let (_served, ()) = tokio::join!(serve, send);
    count.get()
}
