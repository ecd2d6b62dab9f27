//! Callers: many connections of one thread, each with one batch under way.
//!
//! Promises: a decision is counted when its reply was read. An error in a reply ends the run.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::process::Server;

/// Connections at a time.
const CONNECTIONS: usize = 32;

/// A way to ask.
pub trait Load {
    /// Makes at least so many decisions; how many it made.
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64>;
}

/// `CL.THROTTLE` in pipelines.
pub struct Resp {
    streams: Vec<TcpStream>,
    command: (Vec<String>, Vec<String>),
    keys: u64,
    pipeline: usize,
    dice: u64,
}

impl Resp {
    pub fn new(server: &Server, keys: u64, pipeline: usize, round: usize) -> anyhow::Result<Resp> {
        Ok(Resp {
            streams: connect(server.port)?,
            command: server.command.clone(),
            keys,
            pipeline,
            dice: dice(round),
        })
    }

    /// Every key once, on all connections: a server without TCP_NODELAY takes 44 ms per batch.
    pub fn every_key(&mut self) -> anyhow::Result<()> {
        let mut key = 0;
        while key < self.keys {
            let mut asked = Vec::new();
            for at in 0..self.streams.len() {
                let end = (key + self.pipeline as u64).min(self.keys);
                let batch: Vec<u8> = (key..end).flat_map(|key| self.command(key)).collect();
                self.streams[at].write_all(&batch)?;
                asked.push(end - key);
                key = end;
            }
            for (stream, asked) in self.streams.iter_mut().zip(asked) {
                read_lines(stream, 6 * asked)?;
            }
        }
        Ok(())
    }

    fn command(&self, key: u64) -> Vec<u8> {
        let key = format!("key:{key:08}");
        let words = self.command.0.iter().chain([&key]).chain(&self.command.1);
        encode(&words.map(String::as_str).collect::<Vec<_>>())
    }
}

impl Load for Resp {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        let mut made = 0;
        while made < decisions {
            for at in 0..self.streams.len() {
                let mut batch = Vec::new();
                for _ in 0..self.pipeline {
                    let key = roll(&mut self.dice) % self.keys;
                    batch.extend(self.command(key));
                }
                self.streams[at].write_all(&batch)?;
            }
            for stream in &mut self.streams {
                // An array of five integers.
                read_lines(stream, 6 * self.pipeline as u64)?;
            }
            made += (self.streams.len() * self.pipeline) as u64;
        }
        Ok(made)
    }
}

/// Tokens of a guard over HTTP, or what a peer calls so.
pub struct Http {
    streams: Vec<TcpStream>,
    request: HttpRequest,
    keys: u64,
    dice: u64,
}

impl Http {
    pub fn new(server: &Server, keys: u64, round: usize) -> anyhow::Result<Http> {
        Ok(Http {
            streams: connect(server.http_port)?,
            request: server.http_request,
            keys,
            dice: dice(round),
        })
    }

    /// Every key once.
    pub fn every_key(&mut self) -> anyhow::Result<()> {
        let mut keys = 0..self.keys;
        while !keys.is_empty() {
            let batch: Vec<u64> = keys.by_ref().take(self.streams.len()).collect();
            for (stream, key) in self.streams.iter_mut().zip(&batch) {
                ask(stream, self.request, *key)?;
            }
            for stream in self.streams.iter_mut().take(batch.len()) {
                read_response(stream)?;
            }
        }
        Ok(())
    }
}

/// Sends one request. One write: a head alone would be a packet of its own.
fn ask(stream: &mut TcpStream, request: HttpRequest, key: u64) -> anyhow::Result<()> {
    let body = request.body.replace("KEY", &format!("key:{key:08}"));
    // Without a token the admin address wants its own name.
    let host = stream.peer_addr()?;
    let (path, length) = (request.path, body.len());
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nX-Tollgate-Admin: 1\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    Ok(stream.write_all(request.as_bytes())?)
}

/// Every key of the guard once, over the Redis protocol: the same table as over HTTP and gRPC, filled in
/// seconds.
pub fn fill_guard(server: &Server, keys: u64) -> anyhow::Result<()> {
    const PIPELINE: u64 = 64;
    let mut streams = connect(server.port)?;
    let mut next = 0;
    while next < keys {
        for stream in &mut streams {
            let end = (next + PIPELINE).min(keys);
            let batch = (next..end).flat_map(|key| {
                let key = format!("key:{key:08}");
                encode(&["TG.ACQUIRE", "GUARD", "api", &key, "NOWAIT"])
            });
            // The reply to `PING` ends the batch.
            let batch: Vec<u8> = batch.chain(encode(&["PING"])).collect();
            stream.write_all(&batch)?;
            next = end;
        }
        for stream in &mut streams {
            read_until_pong(stream)?;
        }
    }
    Ok(())
}

/// Reads replies up to that to `PING`, none of which is an error.
fn read_until_pong(stream: &mut TcpStream) -> anyhow::Result<()> {
    let (mut text, mut buffer) = (Vec::new(), [0; 64 * 1_024]);
    while !text.ends_with(b"+PONG\r\n") {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the server has ended the connection");
        text.extend_from_slice(&buffer[..read]);
    }
    let text = String::from_utf8_lossy(&text);
    ensure!(!text.contains("-ERR"), "{text}");
    Ok(())
}

impl Load for Http {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        let mut made = 0;
        while made < decisions {
            for stream in &mut self.streams {
                ask(stream, self.request, roll(&mut self.dice) % self.keys)?;
            }
            for stream in &mut self.streams {
                read_response(stream)?;
            }
            made += self.streams.len() as u64;
        }
        Ok(made)
    }
}

/// How a server is asked over HTTP; `KEY` stands for the key.
#[derive(Clone, Copy)]
pub struct HttpRequest {
    pub path: &'static str,
    pub body: &'static str,
}

/// Envoy's `ShouldRateLimit`, one call under way on each connection.
pub struct Grpc {
    runtime: tokio::runtime::Runtime,
    callers: Vec<SendRequest<Full<Bytes>>>,
    uri: String,
    keys: u64,
    dice: u64,
}

impl Grpc {
    pub fn new(server: &Server, keys: u64, round: usize) -> anyhow::Result<Grpc> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let port = server.grpc_port;
        let callers = runtime.block_on(async {
            let mut callers = Vec::new();
            for _ in 0..CONNECTIONS {
                let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                stream.set_nodelay(true)?;
                let connecting =
                    http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
                let (caller, connection) = connecting;
                tokio::spawn(connection);
                callers.push(caller);
            }
            anyhow::Ok(callers)
        })?;
        let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        Ok(Grpc {
            runtime,
            callers,
            uri: format!("http://127.0.0.1:{port}/{method}"),
            keys,
            dice: dice(round),
        })
    }
}

impl Load for Grpc {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        let each = decisions.div_ceil(self.callers.len() as u64);
        let mut seeds = Vec::new();
        for _ in &self.callers {
            seeds.push(roll(&mut self.dice));
        }
        let (uri, keys) = (&self.uri, self.keys);
        let all = self.callers.iter().cloned().zip(seeds);
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for (caller, dice) in all {
                tasks.spawn(call(caller, uri.clone(), each, keys, dice));
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            anyhow::Ok(())
        })?;
        Ok(each * self.callers.len() as u64)
    }
}

/// Calls of one connection, one after the other.
async fn call(
    mut caller: SendRequest<Full<Bytes>>,
    uri: String,
    calls: u64,
    keys: u64,
    mut dice: u64,
) -> anyhow::Result<()> {
    for _ in 0..calls {
        let key = format!("key:{:08}", roll(&mut dice) % keys);
        let request = hyper::Request::post(&uri)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(should_rate_limit(&key)))?;
        let response = caller.send_request(request).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        let body = response.into_body().collect().await?;
        let status = body
            .trailers()
            .and_then(|all| all.get("grpc-status").cloned());
        let status = status.context("no grpc-status; is the call rejected?")?;
        ensure!(status == "0", "grpc-status {status:?}");
        // The overall code is the first field: 1 is OK.
        let bytes = body.to_bytes();
        ensure!(bytes.get(5..7) == Some(&[8, 1]), "not granted: {bytes:?}");
    }
    Ok(())
}

/// One descriptor with one entry, as a frame.
fn should_rate_limit(key: &str) -> Bytes {
    let field = |number: u8, bytes: &[u8]| {
        let mut out = vec![number << 3 | 2, bytes.len() as u8];
        out.extend_from_slice(bytes);
        out
    };
    let entry = [field(1, b"api"), field(2, key.as_bytes())].concat();
    let descriptor = field(2, &field(1, &entry));
    let message = [field(1, b"guards"), descriptor].concat();
    let mut frame = vec![0, 0, 0, 0, message.len() as u8];
    frame.extend(message);
    Bytes::from(frame)
}

/// `TG.ACQUIRE` in pipelines, and a report for each permit.
pub struct Permits {
    streams: Vec<TcpStream>,
}

impl Permits {
    pub fn new(server: &Server) -> anyhow::Result<Permits> {
        Ok(Permits {
            streams: connect(server.port)?,
        })
    }
}

impl Load for Permits {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        const PIPELINE: usize = 64;
        let ask = encode(&["TG.ACQUIRE", "x"]).repeat(PIPELINE);
        let mut made = 0;
        while made < decisions {
            for stream in &mut self.streams {
                stream.write_all(&ask)?;
            }
            for stream in &mut self.streams {
                let permits = read_permits(stream, PIPELINE)?;
                let released = permits
                    .iter()
                    .flat_map(|permit| encode(&["TG.RELEASE", permit]));
                stream.write_all(&released.collect::<Vec<u8>>())?;
            }
            for stream in &mut self.streams {
                read_lines(stream, PIPELINE as u64)?;
            }
            made += (self.streams.len() * PIPELINE) as u64;
        }
        Ok(made)
    }
}

/// `INCR` in pipelines: the least that a limiter on Redis writes per decision.
pub struct Increments {
    streams: Vec<TcpStream>,
}

impl Increments {
    pub fn new(server: &Server) -> anyhow::Result<Increments> {
        Ok(Increments {
            streams: connect(server.port)?,
        })
    }
}

impl Load for Increments {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        const PIPELINE: usize = 64;
        let ask = encode(&["INCR", "x"]).repeat(PIPELINE);
        let mut made = 0;
        while made < decisions {
            for stream in &mut self.streams {
                stream.write_all(&ask)?;
            }
            for stream in &mut self.streams {
                read_lines(stream, PIPELINE as u64)?;
            }
            made += (self.streams.len() * PIPELINE) as u64;
        }
        Ok(made)
    }
}

fn connect(port: u16) -> anyhow::Result<Vec<TcpStream>> {
    let one = |_| {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    (0..CONNECTIONS).map(one).collect()
}

pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Where the dice of a round begin: every round asks for other keys.
fn dice(round: usize) -> u64 {
    (round as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn roll(dice: &mut u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice
}

/// Reads so many lines, none of which is an error.
fn read_lines(stream: &mut TcpStream, lines: u64) -> anyhow::Result<()> {
    let (mut seen, mut buffer) = (0, [0; 64 * 1_024]);
    while seen < lines {
        let read = stream.read(&mut buffer)?;
        let bytes = &buffer[..read];
        ensure!(read > 0, "the server has ended the connection");
        if bytes[0] == b'-' {
            bail!("{}", String::from_utf8_lossy(bytes));
        }
        seen += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    Ok(())
}

/// The permits of so many grants.
fn read_permits(stream: &mut TcpStream, count: usize) -> anyhow::Result<Vec<String>> {
    let (mut text, mut buffer) = (String::new(), [0; 64 * 1_024]);
    // Each ends with how long it may be used.
    let is_whole = |text: &str| text.ends_with("\r\n") && !text.ends_with("use_within\r\n");
    while text.matches("use_within").count() < count || !is_whole(&text) {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the server has ended the connection");
        text.push_str(std::str::from_utf8(&buffer[..read])?);
        ensure!(!text.starts_with('-'), "{text}");
    }
    let parts = text.split("permit\r\n$").skip(1);
    let permits = parts.filter_map(|part| part.split("\r\n").nth(1));
    Ok(permits.map(str::to_owned).collect())
}

fn read_response(stream: &mut TcpStream) -> anyhow::Result<()> {
    let (mut held, mut buffer) = (Vec::new(), [0; 16 * 1_024]);
    loop {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "the server has ended the connection");
        held.extend_from_slice(&buffer[..read]);
        let text = std::str::from_utf8(&held)?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        ensure!(head.starts_with("HTTP/1.1 200"), "{text}");
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length: ").nth(1).context("a length")?;
        let length: usize = length.lines().next().unwrap_or_default().trim().parse()?;
        if body.len() >= length {
            return Ok(());
        }
    }
}
