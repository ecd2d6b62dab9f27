//! A real Traefik asks for decisions, with the snippet of docs/integrations.md.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate_sim::test_host::free_address;

use crate::folder::Folder;
use crate::integrations::{blocks, slow_daemon};
use crate::operating::upstream;

/// Two minutes in steps of 50 ms: far beyond the need of a busy machine.
const PATIENCE_STEPS: u32 = 2_400;

/// Ports that another program took in between, before it is our fault.
const ATTEMPTS: u32 = 3;

/// Traefik with the snippet of the page; killed when the test ends.
struct Traefik {
    child: Child,
    address: String,
    folder: Folder,
}

impl Traefik {
    /// The page has the middleware; the route that uses it and the service behind are the reader's.
    fn start(middleware: &str, service: &str) -> Traefik {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join("target/clients/venv/bin/traefik");
        assert!(
            program.exists(),
            "Traefik is not installed; run `make tools`"
        );
        let rest = format!(
            "  routers:\n    app: {{ rule: 'PathPrefix(`/`)', service: app, middlewares: [tollgate] }}\n  \
             services:\n    app: {{ loadBalancer: {{ servers: [{{ url: 'http://{service}' }}] }} }}\n"
        );
        for attempt in 0..ATTEMPTS {
            let address = free_address().to_string();
            let folder = Folder::new(&format!("traefik-{attempt}"))
                .file("dynamic.yaml", &format!("{middleware}{rest}"));
            let log = std::fs::File::create(folder.path().join("traefik.log")).expect("a file");
            let mut command = Command::new(&program);
            command
                .arg(format!("--entryPoints.web.address={address}"))
                .arg("--providers.file.filename=dynamic.yaml")
                // Nothing of this test leaves the machine.
                .args([
                    "--global.checkNewVersion=false",
                    "--global.sendAnonymousUsage=false",
                ])
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a file"))
                .stderr(log);
            let child = folder.prepare(&mut command).spawn().expect("Traefik runs");
            let traefik = Traefik {
                child,
                address,
                folder,
            };
            if let Some(traefik) = traefik.with_its_route() {
                return traefik;
            }
        }
        panic!("Traefik does not listen");
    }

    /// Waits until it serves; `None` = it has ended. An exempt path takes no token of a guard.
    fn with_its_route(mut self) -> Option<Traefik> {
        for _ in 0..PATIENCE_STEPS {
            if self.get("127.0.0.9", "/health").starts_with("HTTP/1.1 204") {
                return Some(self);
            }
            if self.child.try_wait().expect("a child").is_some() {
                return None;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        panic!("no route:\n{}", self.folder.read("traefik.log"));
    }

    /// A request from this address of the loopback network.
    fn get(&self, from: &str, path: &str) -> String {
        let mut command = Command::new("curl");
        command
            .args(["-si", "-m", "30", "--noproxy", "*", "--interface", from])
            .arg(format!("http://{}{path}", self.address));
        let output = command.output().expect("curl runs");
        crate::text(&output.stdout).to_owned()
    }
}

impl Drop for Traefik {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// C4: Traefik passes on what the guards say: 429 with the time and the rate headers. Other callers and exempt paths pass.
#[test]
fn traefik_asks_before_it_forwards() {
    let daemon = slow_daemon("integrations-traefik");
    let yaml = blocks("yaml").into_iter();
    let snippet: String = yaml.filter(|block| block.contains("forwardAuth")).collect();
    let snippet = snippet.replace("127.0.0.1:4291", &daemon.admin);
    let traefik = Traefik::start(&snippet, &upstream(204).to_string());
    for _ in 0..5 {
        let passed = traefik.get("127.0.0.2", "/a");
        assert!(passed.starts_with("HTTP/1.1 204"), "{passed}");
    }
    let limited = traefik.get("127.0.0.2", "/a?health");
    assert!(limited.starts_with("HTTP/1.1 429"), "{limited}");
    for part in [
        "Retry-After: ",
        "X-Ratelimit-Limit: 1\r",
        "RateLimitExceeded",
    ] {
        assert!(limited.contains(part), "{part}: {limited}");
    }
    for (from, path) in [("127.0.0.2", "/health"), ("127.0.0.3", "/a")] {
        let passed = traefik.get(from, path);
        assert!(
            passed.starts_with("HTTP/1.1 204"),
            "{from} {path}: {passed}"
        );
    }
}
