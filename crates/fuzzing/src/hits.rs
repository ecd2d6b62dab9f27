//! The fast path of cache hits, against the whole gateway with hyper.
//!
//! An input is one request. A gateway has cached responses for `/x/a` and `/x/b?c=1`.
//!
//! Promises: whatever the fast path serves, the normal path serves with the same bytes, except for
//! the id of the call.
//!
//! Never: calls a host outside; its upstream is on loopback too.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tollgate::ProviderRegistry;
use tollgate::providers::Options;
use tollgate_config::{Environment, ProviderFile};
use tollgate_core::time::{Micros, Now, Wall};
use tollgate_ledger::{Clock, Ledger, ManualClock};
use tollgate_server::gateway::fuzzing::FastPathProbe;

/// The upstream's response to everything.
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Sun, 15 Nov 2026 00:00:00 GMT\r\n\
      content-length: 3\r\netag: \"e\"\r\nx-a: 1\r\n\r\nabc";

/// Far above what a response on loopback needs: a target must end.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

thread_local! {
    static FIXTURE: RefCell<(Runtime, FastPathProbe)> = RefCell::new(fixture());
}

/// Compares both paths.
pub fn run(input: &[u8]) {
    FIXTURE.with_borrow_mut(|(runtime, probe)| {
        let Some(fast) = probe.respond(input) else {
            return;
        };
        // Two requests in one write take the normal path.
        let twice = [input, input].concat();
        let normal = runtime.block_on(exchange(probe.address, &twice, 2));
        let expected = [without_id(&fast), without_id(&fast)].concat();
        assert_eq!(without_id(&normal), expected);
    });
}

fn fixture() -> (Runtime, FastPathProbe) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let probe = runtime.block_on(async {
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = upstream.local_addr().expect("it is bound");
        tokio::spawn(respond(upstream));
        let file =
            format!("name: x\nupstream: http://{address}\nlimits: [1000/1s]\ncache: {{ttl: 1h}}\n");
        let file = ProviderFile::read("x.yaml", &file).expect("YAML");
        let provider = file.check(&Environment::empty()).provider;
        let clock = ManualClock::new(Now {
            at: Micros(1_000_000_000),
            wall: Wall(1_794_700_800_000_000),
        });
        let ledger = Ledger::memory(Clock::Manual(clock));
        let providers = vec![provider.expect("a valid provider")];
        let registry = ProviderRegistry::build(providers, ledger, Options::default());
        let probe = FastPathProbe::start(registry.expect("a registry")).await;
        let probe = probe.expect("a gateway");
        for path in ["/x/a", "/x/b?c=1"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: g\r\n\r\n");
            exchange(probe.address, request.as_bytes(), 1).await;
        }
        probe
    });
    (runtime, probe)
}

async fn respond(upstream: TcpListener) {
    while let Ok((mut stream, _)) = upstream.accept().await {
        tokio::spawn(async move {
            let mut request = [0; 4_096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                if stream.write_all(RESPONSE).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The bytes of this many responses; each ends with the cached body.
async fn exchange(to: SocketAddr, requests: &[u8], count: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.expect("the gateway listens");
    stream.write_all(requests).await.expect("it reads");
    let mut read = Vec::new();
    let responses = async {
        while read.windows(7).filter(|end| *end == b"\r\n\r\nabc").count() < count {
            let came = stream.read_buf(&mut read).await.expect("it responds");
            assert_ne!(came, 0, "{}", String::from_utf8_lossy(&read));
        }
    };
    timeout(RESPONSE_TIMEOUT, responses)
        .await
        .expect("it responds in time");
    read
}

fn without_id(response: &[u8]) -> Vec<u8> {
    let lines = response.split(|byte| *byte == b'\n');
    let kept = lines.filter(|line| !line.starts_with(b"x-tollgate-id: "));
    kept.collect::<Vec<_>>().join(&b'\n')
}
