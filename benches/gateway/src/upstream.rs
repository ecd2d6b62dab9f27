//! The provider of the speed rows: the same response for every request, at once or after a delay,
//! or 429 for a while.
//!
//! It logs the time and the result of each request. The log is the judge of the rows that depend on
//! what was sent.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The first request for this path gets a 429, and so do all requests until its Retry-After is
/// over.
pub const LIMITED: &str = "/limited";

/// How it responds.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// The length of the body.
    pub bytes: usize,
    /// The Cache-Control header of the response.
    pub cache_control: Option<&'static str>,
    /// The delay of a response.
    pub delay: Duration,
    /// The Retry-After of [`LIMITED`], in whole seconds.
    pub retry_after_seconds: u64,
}

impl Behaviour {
    /// 1 KiB, not cacheable, without delay.
    pub const PLAIN: Behaviour = Behaviour {
        bytes: 1_024,
        cache_control: None,
        delay: Duration::ZERO,
        retry_after_seconds: 0,
    };
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub at: Instant,
    pub limited: bool,
}

/// The log of its requests. Clones share it.
#[derive(Clone, Default)]
pub struct Log(Rc<LogState>);

#[derive(Default)]
struct LogState {
    /// `None`: not recorded.
    arrivals: RefCell<Option<Vec<Arrival>>>,
    closed_until: Cell<Option<Instant>>,
}

impl Log {
    /// Starts a run: records requests from now on, and allows another 429 phase.
    pub fn begin(&self) {
        self.0.arrivals.replace(Some(Vec::new()));
        self.0.closed_until.set(None);
    }

    /// The requests since the start of the run or since the last call.
    pub fn take(&self) -> Vec<Arrival> {
        let mut arrivals = self.0.arrivals.borrow_mut();
        arrivals.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records a request and returns whether it gets a 429.
    fn record(&self, head: &[u8], behaviour: Behaviour) -> bool {
        let mut arrivals = self.0.arrivals.borrow_mut();
        let Some(arrivals) = &mut *arrivals else {
            return false;
        };
        let at = Instant::now();
        if self.0.closed_until.get().is_none()
            && behaviour.retry_after_seconds > 0
            && memchr::memmem::find(head, LIMITED.as_bytes()).is_some()
        {
            let cool_down = Duration::from_secs(behaviour.retry_after_seconds);
            self.0.closed_until.set(Some(at + cool_down));
        }
        let limited = self.0.closed_until.get().is_some_and(|until| at < until);
        arrivals.push(Arrival { at, limited });
        limited
    }
}

/// Starts it on this thread's runtime.
pub async fn start(behaviour: Behaviour) -> anyhow::Result<(SocketAddr, Log)> {
    let log = Log::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = log.clone();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(serve(stream, served.clone(), behaviour));
        }
    });
    Ok((address, log))
}

async fn serve(mut stream: TcpStream, log: Log, behaviour: Behaviour) {
    let response = response(behaviour);
    let limited_response = format!(
        "HTTP/1.1 429 Too Many Requests\r\nserver: upstream\r\nretry-after: {}\r\ncontent-length: 0\r\n\r\n",
        behaviour.retry_after_seconds
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
        let limited = log.record(&buffer[..filled], behaviour);
        filled = 0;
        if !behaviour.delay.is_zero() && !limited {
            tokio::time::sleep(behaviour.delay).await;
        }
        let response = if limited {
            &limited_response
        } else {
            &response
        };
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A success. Its Date is the start time, recent enough for any computed Age.
fn response(behaviour: Behaviour) -> String {
    let date = httpdate::fmt_http_date(SystemTime::now());
    let cache_control = behaviour.cache_control;
    let cache_control =
        cache_control.map_or(String::new(), |value| format!("cache-control: {value}\r\n"));
    format!(
        "HTTP/1.1 200 OK\r\nserver: upstream\r\ncontent-type: text/plain\r\ndate: {date}\r\n\
         {cache_control}content-length: {}\r\n\r\n{}",
        behaviour.bytes,
        "x".repeat(behaviour.bytes)
    )
}
