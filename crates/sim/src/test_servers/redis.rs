//! A redis-server for tests.
//!
//! Promises: nothing is written to the disk unless the test asks for it.
//!
//! Never: speaks more of the protocol than tests need: commands, and the first line of a reply.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use super::Server;
use crate::test_host::{TempFolder, free_address};

/// A reply that has not come by then does not come.
const REPLY_WITHIN: Duration = Duration::from_secs(5);

/// How often a start is tried: another program may take the port.
const STARTS: u32 = 3;

/// A redis-server.
#[derive(Debug)]
pub struct RedisServer {
    server: Server,
    address: SocketAddr,
    folder: TempFolder,
    options: Vec<String>,
}

impl RedisServer {
    /// A server with these options besides the usual ones, such as `--appendonly yes`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start(options: &[&str]) -> RedisServer {
        let folder = TempFolder::new("redis");
        let options: Vec<String> = options.iter().map(|&one| one.to_owned()).collect();
        let mut last = String::new();
        for _ in 0..STARTS {
            let address = free_address();
            match launch(address, &folder, &options) {
                Ok(server) => {
                    return RedisServer {
                        server,
                        address,
                        folder,
                        options,
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

    /// The number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
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
        match launch(self.address, &self.folder, &self.options) {
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

fn launch(address: SocketAddr, folder: &TempFolder, options: &[String]) -> Result<Server, String> {
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
        .args(["--save", "", "--enable-debug-command", "yes"])
        .arg("--dir")
        .arg(folder.path())
        .args(options);
    Server::start(&mut command, "Ready to accept connections")
}
