//! A server that responds at once, in a process of its own.

use std::convert::Infallible;
use std::process::Stdio;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io::{BufRead, BufReader};
use tokio::net::TcpListener;

/// Serves until its parent kills it; prints its address.
pub async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let respond = service_fn(async |_| {
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"{}"))))
            });
            let server = hyper::server::conn::http1::Builder::new();
            drop(server.serve_connection(TokioIo::new(stream), respond).await);
        });
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: std::process::Child,
    pub url: String,
}

impl Server {
    pub fn start() -> anyhow::Result<Server> {
        let mut child = std::process::Command::new(std::env::current_exe()?)
            .arg("--server")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line)?;
        let url = format!("http://{}", line.trim());
        Ok(Server { child, url })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
