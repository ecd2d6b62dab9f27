//! A redis-server for tests.
//!
//! Promises: nothing is written to the disk unless the test asks for it.
//!
//! Never: speaks more of the protocol than tests need: commands, and the first line of a reply.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

#[cfg(feature = "http")]
use super::Certificate;
use super::{HostClock, STARTS, Server};
use crate::test_host::{TempFolder, free_address};

/// A reply that has not come by then does not come.
const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// A redis-server.
#[derive(Debug)]
pub struct RedisServer {
    server: Server,
    address: SocketAddr,
    folder: TempFolder,
    options: Vec<String>,
    /// Where it listens with TLS.
    tls_address: Option<SocketAddr>,
    clock: Option<HostClock>,
}

impl RedisServer {
    /// A server with these options besides the usual ones, such as `--appendonly yes`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(options: &[&str]) -> RedisServer {
        RedisServer::start_on(TempFolder::new("redis"), options, None)
    }

    /// The same on a host whose clock differs, such as by `+30s` (libfaketime).
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start_on_clock(offset: &str, options: &[&str]) -> RedisServer {
        let folder = TempFolder::new("redis");
        let clock = HostClock::new(folder.path(), offset);
        RedisServer::start_on(folder, options, Some(clock))
    }

    /// A server that listens with TLS too.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[cfg(feature = "http")]
    #[must_use]
    pub fn start_with_tls(certificate: &Certificate) -> RedisServer {
        let address = free_address();
        let (cert, key) = (certificate.path(), certificate.key());
        let (cert, key) = (cert.to_string_lossy(), key.to_string_lossy());
        let port = address.port().to_string();
        let mut server = RedisServer::start(&[
            "--tls-port",
            &port,
            "--tls-cert-file",
            &cert,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &cert,
            "--tls-auth-clients",
            "no",
        ]);
        server.tls_address = Some(address);
        server
    }

    fn start_on(folder: TempFolder, options: &[&str], clock: Option<HostClock>) -> RedisServer {
        let options: Vec<String> = options.iter().map(|&one| one.to_owned()).collect();
        let mut last = String::new();
        for _ in 0..STARTS {
            let address = free_address();
            match launch(address, &folder, &options, clock.as_ref()) {
                Ok(server) => {
                    return RedisServer {
                        server,
                        address,
                        folder,
                        options,
                        tls_address: None,
                        clock,
                    };
                }
                Err(error) => last = error,
            }
        }
        panic!("{last}");
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Its address with TLS for clients.
    ///
    /// # Panics
    ///
    /// If it was started without.
    #[must_use]
    pub fn tls_url(&self) -> String {
        let address = self.tls_address.expect("a server with TLS");
        format!("rediss://{address}")
    }

    /// Steps the clock of its host, such as to `+2s`.
    ///
    /// # Panics
    ///
    /// If it was not started on a clock of its own.
    pub fn step_clock(&self, offset: &str) {
        let clock = self.clock.as_ref();
        clock.expect("a server on a clock of its own").set(offset);
    }

    /// The number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Listens at this address from now on, which is free.
    ///
    /// # Panics
    ///
    /// If it cannot.
    pub fn move_to(&mut self, address: SocketAddr) {
        let port = address.port().to_string();
        match self.command(&["CONFIG", "SET", "port", &port]) {
            Ok(reply) if reply.starts_with('+') => self.address = address,
            failed => panic!("CONFIG SET port: {failed:?}"),
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts it again, on the same port and in the same folder.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.server.kill();
        match launch(
            self.address,
            &self.folder,
            &self.options,
            self.clock.as_ref(),
        ) {
            Ok(server) => self.server = server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a command and returns the beginning of its reply, as it comes.
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(REPLY_WITHIN))?;
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(text.as_bytes())?;
        let mut reply = vec![0; 65_536];
        let length = stream.read(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
    }
}

fn launch(
    address: SocketAddr,
    folder: &TempFolder,
    options: &[String],
    clock: Option<&HostClock>,
) -> Result<Server, String> {
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
        .args(["--save", "", "--enable-debug-command", "yes"])
        .arg("--dir")
        .arg(folder.path())
        .args(options)
        .envs(clock.into_iter().flat_map(HostClock::variables));
    Server::start(&mut command, "Ready to accept connections")
}
