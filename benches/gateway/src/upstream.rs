//! The provider of the speed rows: the same answer for every request, as fast as can be, or after a
//! while, or refused for a while.
//!
//! It notes when each request came and what became of it: its log is the judge of the rows in which
//! it matters what was sent.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request for this path is refused once; for so long as it says, everything is.
pub const REFUSED: &str = "/refused";

/// How it answers.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Of the body.
    pub bytes: usize,
    /// What it says about keeping the answer.
    pub cache_control: Option<&'static str>,
    /// How long an answer takes.
    pub delay: Duration,
    /// For how long [`REFUSED`] closes it, in whole seconds.
    pub rest_seconds: u64,
}

impl Manner {
    /// 1 KiB that nobody may keep, at once.
    pub const PLAIN: Manner = Manner {
        bytes: 1_024,
        cache_control: None,
        delay: Duration::ZERO,
        rest_seconds: 0,
    };
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub at: Instant,
    pub refused: bool,
}

/// What is known about its requests. Clones share it.
#[derive(Clone, Default)]
pub struct Log(Rc<Seen>);

#[derive(Default)]
struct Seen {
    /// `None`: nobody wants to know.
    came: RefCell<Option<Vec<Came>>>,
    closed_until: Cell<Option<Instant>>,
}

impl Log {
    /// Another run begins: from now on it is noted what comes, and it may be closed again.
    pub fn begin(&self) {
        self.0.came.replace(Some(Vec::new()));
        self.0.closed_until.set(None);
    }

    /// All that came since the beginning, or since this was asked last.
    pub fn take(&self) -> Vec<Came> {
        let mut came = self.0.came.borrow_mut();
        came.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes a request. Is it refused?
    fn note(&self, head: &[u8], manner: Manner) -> bool {
        let mut came = self.0.came.borrow_mut();
        let Some(came) = &mut *came else {
            return false;
        };
        let at = Instant::now();
        if self.0.closed_until.get().is_none()
            && manner.rest_seconds > 0
            && memchr::memmem::find(head, REFUSED.as_bytes()).is_some()
        {
            let rest = Duration::from_secs(manner.rest_seconds);
            self.0.closed_until.set(Some(at + rest));
        }
        let refused = self.0.closed_until.get().is_some_and(|until| at < until);
        came.push(Came { at, refused });
        refused
    }
}

/// Starts it on this thread's runtime.
pub async fn start(manner: Manner) -> anyhow::Result<(SocketAddr, Log)> {
    let log = Log::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = log.clone();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(stream, served.clone(), manner));
        }
    });
    Ok((address, log))
}

async fn serve(mut stream: TcpStream, log: Log, manner: Manner) {
    let answer = answer(manner);
    let refusal = format!(
        "HTTP/1.1 429 Too Many Requests\r\nserver: upstream\r\nretry-after: {}\r\ncontent-length: 0\r\n\r\n",
        manner.rest_seconds
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
        let refused = log.note(&buffer[..filled], manner);
        filled = 0;
        if !manner.delay.is_zero() && !refused {
            tokio::time::sleep(manner.delay).await;
        }
        let answer = if refused { &refusal } else { &answer };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A success. Its date is that of the start, which is recent enough for whoever computes an age.
fn answer(manner: Manner) -> String {
    let date = httpdate::fmt_http_date(SystemTime::now());
    let keep = manner.cache_control;
    let keep = keep.map_or(String::new(), |how| format!("cache-control: {how}\r\n"));
    format!(
        "HTTP/1.1 200 OK\r\nserver: upstream\r\ncontent-type: text/plain\r\ndate: {date}\r\n\
         {keep}content-length: {}\r\n\r\n{}",
        manner.bytes,
        "x".repeat(manner.bytes)
    )
}
