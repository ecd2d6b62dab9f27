//! The callers of the speed rows: so many connections, each with one request under way.
//!
//! Promises: an answer is read to its end and its status checked; one that is not 200 is counted
//! apart and never as work done.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the callers saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub answers: u64,
    pub refused: u64,
    pub failed: u64,
    pub took: Duration,
    /// Sorted, of every answer, in microseconds.
    pub latencies: Vec<u32>,
}

impl Seen {
    pub fn per_second(&self) -> f64 {
        self.answers as f64 / self.took.as_secs_f64()
    }

    pub fn percentile(&self, percent: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * percent / 100.0).round() as usize;
        self.latencies.get(at).copied().unwrap_or(0).into()
    }

    fn add(&mut self, other: Seen) {
        self.answers += other.answers;
        self.refused += other.refused;
        self.failed += other.failed;
        self.latencies.extend(other.latencies);
    }
}

/// One connection to a server.
pub struct Caller {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Where the last answer ends in it.
    filled: usize,
}

/// How an answer ended.
pub struct Ended {
    pub status: u16,
}

impl Caller {
    pub async fn connect(server: SocketAddr) -> anyhow::Result<Caller> {
        Caller::with_room(server, 16 * 1024).await
    }

    /// For answers of up to so many bytes, heads included.
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

    /// Sends a request and reads its answer.
    pub async fn call(&mut self, request: &[u8]) -> anyhow::Result<Ended> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        let mut whole = None;
        loop {
            if filled == self.buffer.len() {
                bail!("an answer of more than {filled} bytes");
            }
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                bail!("closed in the middle of an answer");
            }
            filled += read;
            if whole.is_none() {
                whole = length(&self.buffer[..filled])?;
            }
            if let Some((length, status)) = whole
                && filled >= length
            {
                self.filled = filled;
                return Ok(Ended { status });
            }
        }
    }

    /// A header of the last answer.
    pub fn header(&self, name: &str) -> Option<String> {
        let answer = &self.buffer[..self.filled];
        let head = memchr::memmem::find(answer, b"\r\n\r\n")?;
        let text = std::str::from_utf8(&answer[..head]).ok()?;
        text.split("\r\n").find_map(|line| {
            let (found, value) = line.split_once(':')?;
            let is_it = found.eq_ignore_ascii_case(name);
            is_it.then(|| value.trim().to_owned())
        })
    }
}

/// The length of an answer with its head, and its status, once the head is there.
fn length(answer: &[u8]) -> anyhow::Result<Option<(usize, u16)>> {
    let Some(head) = memchr::memmem::find(answer, b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&answer[..head])?;
    let status = text.get(9..12).context("a status")?.parse()?;
    let body = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>())
    });
    let body = body.context("an answer without Content-Length")??;
    Ok(Some((head + 4 + body, status)))
}

/// How a server is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    pub connections: usize,
    pub span: Duration,
    /// For an answer with its head.
    pub room: usize,
    /// Each connection asks for something of its own: what is the same at the same time may be
    /// answered by one call.
    pub different: bool,
}

/// Calls as fast as answers come.
pub async fn flood(server: SocketAddr, path: &str, flood: Flood) -> anyhow::Result<Seen> {
    let Flood {
        connections,
        span,
        room,
        different,
    } = flood;
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
    let mut seen = Seen::default();
    for task in tasks {
        seen.add(task.await?);
    }
    seen.took = began.elapsed();
    seen.latencies.sort_unstable();
    Ok(seen)
}

async fn one(mut caller: Caller, request: Vec<u8>, end: Instant) -> Seen {
    let mut seen = Seen::default();
    let mut began = Instant::now();
    while began < end {
        match caller.call(&request).await {
            Ok(Ended { status: 200 }) => seen.answers += 1,
            Ok(_) => seen.refused += 1,
            Err(_) => {
                seen.failed += 1;
                return seen;
            }
        }
        let now = Instant::now();
        let took = now.duration_since(began).as_micros();
        seen.latencies.push(u32::try_from(took).unwrap_or(u32::MAX));
        began = now;
    }
    seen
}

/// A request as a small client writes it.
pub fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n")
        .into_bytes()
}
