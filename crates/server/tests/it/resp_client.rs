//! A small client of the Redis protocol, written from its specification.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tollgate_config::Secret;
use tollgate_server::{RespOptions, RespServer};

use crate::client::within_timeout;
use crate::test_daemon::TestDaemon;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Null,
    Simple(String),
    Error(String),
    Integer(i64),
    Boolean(bool),
    Double(String),
    Bulk(String),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    pub(crate) fn integers(&self) -> Vec<i64> {
        let Reply::Array(items) = self else {
            panic!("no integers: {self:?}");
        };
        let one = |item: &Reply| match item {
            Reply::Integer(value) => *value,
            other => panic!("no integer: {other:?}"),
        };
        items.iter().map(one).collect()
    }

    /// A field of a map, in either form.
    pub(crate) fn field(&self, name: &str) -> Reply {
        let found = match self {
            Reply::Array(items) => {
                let mut pairs = items.chunks(2);
                let found = pairs.find(|pair| pair[0].text() == name);
                found.map(|pair| pair[1].clone())
            }
            Reply::Map(pairs) => {
                let found = pairs.iter().find(|(key, _)| key.text() == name);
                found.map(|(_, value)| value.clone())
            }
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Reply::Simple(text) | Reply::Error(text) | Reply::Bulk(text) | Reply::Double(text) => {
                text
            }
            _ => "",
        }
    }

    pub(crate) fn integer(&self) -> i64 {
        match self {
            Reply::Integer(value) => *value,
            other => panic!("no integer: {other:?}"),
        }
    }

    /// It is an error with this text in it.
    pub(crate) fn is_error(&self, part: &str) -> bool {
        matches!(self, Reply::Error(text) if text.contains(part))
    }
}

/// An array of bulk strings.
pub(crate) fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// One connection.
pub(crate) struct RespClient<S = TcpStream> {
    stream: BufReader<S>,
}

impl RespClient {
    pub(crate) async fn connect(to: SocketAddr) -> RespClient {
        RespClient::over(TcpStream::connect(to).await.expect("a listener"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RespClient<S> {
    pub(crate) fn over(stream: S) -> RespClient<S> {
        RespClient {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        within_timeout(self.stream.get_mut().write_all(bytes))
            .await
            .expect("a connection");
    }

    pub(crate) async fn ask(&mut self, words: &[&str]) -> Reply {
        self.send(&encode(words)).await;
        self.reply().await
    }

    /// The same with words in one text.
    pub(crate) async fn say(&mut self, words: &str) -> Reply {
        let words: Vec<&str> = words.split(' ').collect();
        self.ask(&words).await
    }

    pub(crate) async fn reply(&mut self) -> Reply {
        within_timeout(self.read()).await.expect("a reply")
    }

    /// The connection has ended, after nothing more was sent.
    pub(crate) async fn is_closed(&mut self) -> bool {
        within_timeout(self.read()).await.is_none()
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await;
        if read.unwrap_or(0) == 0 {
            return None;
        }
        assert!(line.ends_with("\r\n"), "{line:?}");
        Some(line.trim_end_matches("\r\n").to_owned())
    }

    async fn read(&mut self) -> Option<Reply> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().unwrap();
        Some(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()),
            "," => Reply::Double(rest.to_owned()),
            "#" => Reply::Boolean(rest == "t"),
            "_" => Reply::Null,
            "$" if number() < 0 => Reply::Null,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()).unwrap() + 2];
                self.stream.read_exact(&mut bytes).await.ok()?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(String::from_utf8(bytes).unwrap())
            }
            "*" => {
                let mut items = Vec::new();
                for _ in 0..number() {
                    items.push(Box::pin(self.read()).await?);
                }
                Reply::Array(items)
            }
            "%" => {
                let mut pairs = Vec::new();
                for _ in 0..number() {
                    let key = Box::pin(self.read()).await?;
                    pairs.push((key, Box::pin(self.read()).await?));
                }
                Reply::Map(pairs)
            }
            _ => panic!("no reply: {line}"),
        })
    }
}

/// Serves the Redis protocol of a daemon on a free port.
pub(crate) async fn serve(daemon: &TestDaemon, token: Option<&str>) -> RespServer {
    let options = RespOptions {
        token: token.map(|token| Secret::new(token.to_owned())),
        ..RespOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    RespServer::serve(&daemon.daemon, listener, &options).unwrap()
}

pub(crate) async fn connect(server: &RespServer) -> RespClient {
    RespClient::connect(server.address().unwrap()).await
}
