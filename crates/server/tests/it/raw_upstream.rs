//! An upstream of raw bytes: it sends exactly what a test specifies, valid or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A running upstream of bare bytes; it ends when it is dropped.
pub(crate) struct RawUpstream {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl RawUpstream {
    /// Each connection is handed to the script, with its number.
    pub(crate) async fn start<F, A>(script: F) -> RawUpstream
    where
        F: Fn(usize, TcpStream) -> A + Send + Sync + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let count = AtomicUsize::new(0);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(number, stream));
            }
        });
        RawUpstream { address, task }
    }

    /// Reads one head, says these bytes, then closes.
    pub(crate) async fn replying(bytes: impl Into<Vec<u8>>) -> RawUpstream {
        let bytes = Arc::new(bytes.into());
        RawUpstream::start(move |_, mut stream| {
            let bytes = bytes.clone();
            async move {
                read_head(&mut stream).await;
                stream.write_all(&bytes).await.ok();
                stream.shutdown().await.ok();
                // Closing with unread bytes would reset what was just said.
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.ok();
            }
        })
        .await
    }
}

impl Drop for RawUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a head, byte by byte, so that nothing behind it is lost.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => read.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// Closes so that the other side sees a reset.
pub(crate) fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("a socket");
    drop(stream);
}
