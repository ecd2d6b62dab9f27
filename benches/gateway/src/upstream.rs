//! The provider of the speed rows: the same 1 KiB for every request, as fast as can be.
//!
//! It notes when each request came, for the row in which a limit is judged.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// When requests came. `None` = nobody wants to know.
pub type Log = Rc<RefCell<Option<Vec<Instant>>>>;

/// Starts it on this thread's runtime.
pub async fn start(log: Log) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(stream, log.clone()));
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream, log: Log) {
    let body = "x".repeat(1_024);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nserver: upstream\r\ncontent-type: text/plain\r\n\
         date: Sun, 15 Nov 2026 12:00:00 GMT\r\ncontent-length: 1024\r\n\r\n{body}"
    );
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut buffer = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(0) | Err(_) => return,
            Ok(read) => filled += read,
        }
        // One request at a time: heads without bodies.
        if !buffer[..filled].ends_with(b"\r\n\r\n") {
            continue;
        }
        filled = 0;
        if let Some(log) = &mut *log.borrow_mut() {
            log.push(Instant::now());
        }
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
