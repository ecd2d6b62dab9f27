//! The callers of the speed rows: a number of connections, each with one request in flight.
//!
//! Promises: a response is read to its end and its status checked. A response other than 200 is
//! counted separately and never as work done.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The results of the callers.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    pub responses: u64,
    pub rejected: u64,
    pub failed: u64,
    pub took: Duration,
    /// Of every response, sorted, in microseconds.
    pub latencies: Vec<u32>,
}

impl LoadResult {
    pub fn per_second(&self) -> f64 {
        self.responses as f64 / self.took.as_secs_f64()
    }

    pub fn percentile(&self, percent: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * percent / 100.0).round() as usize;
        self.latencies.get(at).copied().unwrap_or(0).into()
    }

    fn add(&mut self, other: LoadResult) {
        self.responses += other.responses;
        self.rejected += other.rejected;
        self.failed += other.failed;
        self.latencies.extend(other.latencies);
    }
}

/// One connection to a server.
pub struct Caller {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The end of the last response in the buffer.
    filled: usize,
}

/// The result of one call.
pub struct CallResult {
    pub status: u16,
}

impl Caller {
    pub async fn connect(server: SocketAddr) -> anyhow::Result<Caller> {
        Caller::with_room(server, 16 * 1024).await
    }

    /// For responses of up to `bytes` bytes, headers included.
    pub async fn with_room(server: SocketAddr, bytes: usize) -> anyhow::Result<Caller> {
        let stream = TcpStream::connect(server).await.context("connect")?;
        stream.set_nodelay(true)?;
        let buffer = vec![0; bytes];
        Ok(Caller {
            stream,
            buffer,
            filled: 0,
        })
    }

    /// Sends a request and reads its response.
    pub async fn call(&mut self, request: &[u8]) -> anyhow::Result<CallResult> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        let mut whole = None;
        loop {
            if filled == self.buffer.len() {
                bail!("the response has more than {filled} bytes");
            }
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                bail!("the connection closed in the middle of a response");
            }
            filled += read;
            if whole.is_none() {
                whole = length(&self.buffer[..filled])?;
            }
            if let Some((length, status)) = whole
                && filled >= length
            {
                self.filled = filled;
                return Ok(CallResult { status });
            }
        }
    }

    /// A header of the last response.
    pub fn header(&self, name: &str) -> Option<String> {
        let response = &self.buffer[..self.filled];
        let head = memchr::memmem::find(response, b"\r\n\r\n")?;
        let text = std::str::from_utf8(&response[..head]).ok()?;
        text.split("\r\n").find_map(|line| {
            let (found, value) = line.split_once(':')?;
            let is_it = found.eq_ignore_ascii_case(name);
            is_it.then(|| value.trim().to_owned())
        })
    }
}

/// The length of a response with its headers, and its status, once the headers are complete.
fn length(response: &[u8]) -> anyhow::Result<Option<(usize, u16)>> {
    let Some(head) = memchr::memmem::find(response, b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&response[..head])?;
    let status = text.get(9..12).context("a status")?.parse()?;
    let body = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>())
    });
    let body = body.context("the response has no Content-Length")??;
    Ok(Some((head + 4 + body, status)))
}

/// How a server is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub connections: usize,
    pub span: Duration,
    /// Bytes for a response with its headers.
    pub room: usize,
    /// Each connection requests another URL: identical requests at the same time may share one
    /// call.
    pub different: bool,
}

/// Each connection sends its next request as soon as it has a response.
pub async fn run(server: SocketAddr, path: &str, load: Load) -> anyhow::Result<LoadResult> {
    let Load {
        connections,
        span,
        room,
        different,
    } = load;
    let mut callers = Vec::new();
    for _ in 0..connections {
        callers.push(Caller::with_room(server, room).await?);
    }
    let began = Instant::now();
    let tasks: Vec<_> = callers
        .into_iter()
        .enumerate()
        .map(|(number, caller)| {
            let number = if different { number } else { 0 };
            let request = request(&format!("{path}?caller={number}"));
            tokio::task::spawn_local(one(caller, request, began + span))
        })
        .collect();
    let mut result = LoadResult::default();
    for task in tasks {
        result.add(task.await?);
    }
    result.took = began.elapsed();
    result.latencies.sort_unstable();
    Ok(result)
}

async fn one(mut caller: Caller, request: Vec<u8>, end: Instant) -> LoadResult {
    let mut result = LoadResult::default();
    let mut began = Instant::now();
    while began < end {
        match caller.call(&request).await {
            Ok(CallResult { status: 200 }) => result.responses += 1,
            Ok(_) => result.rejected += 1,
            Err(_) => {
                result.failed += 1;
                return result;
            }
        }
        let now = Instant::now();
        let took = now.duration_since(began).as_micros();
        result
            .latencies
            .push(u32::try_from(took).unwrap_or(u32::MAX));
        began = now;
    }
    result
}

/// A request as a small client writes it.
pub fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n")
        .into_bytes()
}
