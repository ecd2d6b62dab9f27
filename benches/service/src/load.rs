//! Callers: many connections of one thread, each with one batch under way.
//!
//! Promises: a decision is counted when its reply was read. An error in a reply ends the run.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, bail, ensure};

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
    pub fn new(server: &Server, keys: u64, pipeline: usize) -> anyhow::Result<Resp> {
        Ok(Resp {
            streams: connect(server.port)?,
            command: server.command.clone(),
            keys,
            pipeline,
            dice: 0x9E37_79B9_7F4A_7C15,
        })
    }

    /// Every key once.
    pub fn every_key(&mut self) -> anyhow::Result<()> {
        let mut key = 0;
        while key < self.keys {
            let end = (key + self.pipeline as u64).min(self.keys);
            let batch = (key..end)
                .flat_map(|key| self.command(key))
                .collect::<Vec<u8>>();
            self.streams[0].write_all(&batch)?;
            read_lines(&mut self.streams[0], 6 * (end - key))?;
            key = end;
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

/// Tokens of a guard over HTTP.
pub struct Http {
    streams: Vec<TcpStream>,
    keys: u64,
    dice: u64,
}

impl Http {
    pub fn new(server: &Server, keys: u64) -> anyhow::Result<Http> {
        Ok(Http {
            streams: connect(server.http_port)?,
            keys,
            dice: 0x9E37_79B9_7F4A_7C15,
        })
    }
}

impl Load for Http {
    fn run(&mut self, decisions: u64) -> anyhow::Result<u64> {
        let mut made = 0;
        while made < decisions {
            for stream in &mut self.streams {
                let key = roll(&mut self.dice) % self.keys;
                let body = format!(r#"{{"guard":"api","identifier":"key:{key:08}","wait":false}}"#);
                let head = "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nX-Tollgate-Admin: 1";
                // Without a token the admin address wants its own name.
                let host = format!("127.0.0.1:{}", stream.peer_addr()?.port());
                let head = head.replace("localhost", &host);
                write!(
                    stream,
                    "{head}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
            }
            for stream in &mut self.streams {
                read_response(stream)?;
            }
            made += self.streams.len() as u64;
        }
        Ok(made)
    }
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
