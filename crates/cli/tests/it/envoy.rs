//! A real Envoy asks for decisions, with the snippets of docs/integrations.md.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;
use crate::operating::upstream;
use crate::running_daemon::RunningDaemon;

const PAGE: &str = include_str!("../../../../docs/integrations.md");

/// Far beyond the need of a busy machine: turns a test that would hang into one that fails.
const PATIENCE: Duration = Duration::from_secs(120);

const CONFIG: &str = "guards:
  ip:     { limit: 10, period: 1m, burst: 3, by: ip }
  gold:   { limit: 10, period: 1h, burst: 4, by: name, match: { descriptor: { tenant: 'gold-*' } } }
  trial:  { limit: 1,  period: 1h, by: name, shadow: true, match: { descriptor: { tenant: trial } } }
  tokens: { limit: 10, period: 1h, by: global, match: { descriptor: { generic_key: tokens } } }
";

fn daemon(name: &str) -> RunningDaemon {
    let folder = Folder::new(name)
        .file(
            "x.yaml",
            "name: x\ndomain: api.example.org\nlimits: [2/1h]\n",
        )
        .file("tollgate.yaml", CONFIG);
    RunningDaemon::start(folder, &["--grpc", "127.0.0.1:0"])
}

/// The blocks of the page's part about Envoy: filter, route, cluster.
fn snippets() -> [&'static str; 3] {
    let part = PAGE.split("## Envoy").nth(1).expect("a part about Envoy");
    let blocks = part.split("```yaml\n").skip(1);
    let blocks: Vec<&str> = blocks
        .filter_map(|block| block.split("```").next())
        .collect();
    blocks.first_chunk().copied().expect("three snippets")
}

fn indented(text: &str, by: usize) -> String {
    let lines = text.lines().map(|line| format!("{:by$}{line}\n", ""));
    lines.collect()
}

/// Envoy on a socket in a folder, stopped when the test ends.
struct Envoy {
    child: Child,
    folder: Folder,
}

impl Envoy {
    /// With the snippets of the page; `limits` stands in place of its `rate_limits`, unless that is empty.
    fn start(name: &str, daemon: &RunningDaemon, limits: &str, changes: Changes<'_>) -> Envoy {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join("target/clients/venv/bin/envoy");
        assert!(program.exists(), "Envoy is not installed; run `make tools`");
        let folder = Folder::new(name);
        let config = config(folder.path(), daemon, limits, changes);
        let folder = folder.file("envoy.yaml", &config);
        let log = std::fs::File::create(folder.path().join("envoy.log")).expect("a file");
        let child = Command::new(program)
            .arg("--config-path")
            .arg(folder.path().join("envoy.yaml"))
            .args(["--disable-hot-restart", "--concurrency", "1"])
            .args(["--log-level", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("Envoy runs");
        let mut envoy = Envoy { child, folder };
        envoy.wait_until_it_listens();
        envoy
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("envoy.sock")
    }

    fn wait_until_it_listens(&mut self) {
        for _ in 0..PATIENCE.as_millis() / 50 {
            if UnixStream::connect(self.socket()).is_ok() {
                return;
            }
            assert!(
                self.child.try_wait().expect("a child").is_none(),
                "{}",
                self.log()
            );
            std::thread::park_timeout(Duration::from_millis(50));
        }
        panic!("Envoy does not listen:\n{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("envoy.log")).unwrap_or_default()
    }

    /// A request with these headers.
    fn get(&self, headers: &[(&str, &str)]) -> String {
        let mut stream = UnixStream::connect(self.socket()).expect("Envoy listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let headers = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let head: String = headers.collect();
        let request = format!("GET / HTTP/1.1\r\nhost: h\r\n{head}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a connection");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    }

    /// The statuses of so many requests.
    fn statuses(&self, count: usize, headers: &[(&str, &str)]) -> Vec<u16> {
        let status = |_| status(&self.get(headers));
        (0..count).map(status).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn status(response: &str) -> u16 {
    let status = response
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("no response: {response:?}"))
}

fn header<'a>(response: &'a str, name: &str) -> &'a str {
    let mut lines = response.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map_or("", |(_, value)| value)
}

fn config(folder: &Path, daemon: &RunningDaemon, limits: &str, changes: Changes<'_>) -> String {
    let [page_filter, page_limits, cluster] = snippets();
    let port = daemon
        .grpc
        .as_deref()
        .expect("--grpc")
        .rsplit(':')
        .next()
        .expect("a port");
    let cluster = patient(cluster, "connect_timeout: 1s").replace("4292", port);
    let mut filters = patient(page_filter, "timeout: 0.1s");
    for (old, new) in changes {
        assert!(filters.contains(old), "{old}");
        filters = filters.replace(old, new);
    }
    let limits = if limits.is_empty() {
        page_limits
    } else {
        limits
    };
    let service = upstream(204);
    let socket = folder.join("envoy.sock").display().to_string();
    let (filters, limits, cluster) = (
        indented(&filters, 10),
        indented(limits, 14),
        indented(&cluster, 2),
    );
    let (ip, to) = (service.ip(), service.port());
    format!(
        "static_resources:
  listeners:
  - address: {{ pipe: {{ path: '{socket}' }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: test
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: service }}
{limits}          http_filters:
{filters}          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: service
    load_assignment:
      cluster_name: service
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: {ip}, port_value: {to} }} }} }} }}] }}]
{cluster}"
    )
}

/// The page's times suit a machine with nothing else to do: where a decision takes longer, `failure_mode_deny` decides.
fn patient(snippet: &str, time: &str) -> String {
    assert!(snippet.contains(time), "{time}");
    let (name, _) = time.split_once(' ').expect("a name");
    snippet.replace(time, &format!("{name} 30s"))
}

/// Changes of the page's filter: a text, and what stands in its place.
type Changes<'a> = &'a [(&'a str, &'a str)];

const DENY: (&str, &str) = ("failure_mode_deny: false", "failure_mode_deny: true");

/// C4: under the limit requests pass, over it they get 429 with the time, the headers and the reason. The
/// service behind Envoy is not called for them.
#[test]
fn envoy_asks_guards_before_it_forwards() {
    let daemon = daemon("envoy-guards");
    let envoy = Envoy::start("envoy-run", &daemon, "", &[]);
    let client = [("x-forwarded-for", "203.0.113.7")];
    let first = envoy.get(&client);
    assert_eq!(status(&first), 204, "{first}\n{}", envoy.log());
    assert_eq!(header(&first, "x-ratelimit-remaining"), "2", "{first}");
    assert_eq!(header(&first, "x-tollgate-decision"), "allow", "{first}");
    assert_eq!(envoy.statuses(2, &client), [204, 204]);
    let limited = envoy.get(&client);
    assert_eq!(status(&limited), 429, "{limited}");
    let seconds: u32 = header(&limited, "retry-after").parse().expect("a time");
    assert!((1..=6).contains(&seconds), "{limited}");
    assert_eq!(header(&limited, "x-ratelimit-limit"), "10");
    assert_eq!(header(&limited, "x-ratelimit-remaining"), "0");
    assert_eq!(header(&limited, "x-tollgate-decision"), "reject");
    assert_eq!(header(&limited, "content-type"), "application/json");
    assert!(
        header(&limited, "ratelimit").starts_with("\"ip\";r=0"),
        "{limited}"
    );
    assert!(limited.contains("\"guard\":\"ip\""), "{limited}");
    let other = [("x-forwarded-for", "203.0.113.8")];
    assert_eq!(envoy.statuses(1, &other), [204], "each address by itself");
}

/// All descriptors of a request agree, or none is charged; prefixes and shadow as the guards say.
#[test]
fn descriptors_of_envoy_mean_guards() {
    let daemon = daemon("envoy-descriptors");
    let envoy = Envoy::start("envoy-run-2", &daemon, "", &[]);
    let ask = |ip: &str, tenant: &str, count: usize| {
        envoy.statuses(count, &[("x-forwarded-for", ip), ("x-tenant", tenant)])
    };
    assert_eq!(ask("203.0.113.1", "trial", 3), [204, 204, 204], "shadow");
    assert_eq!(ask("203.0.113.2", "gold-1", 3), [204, 204, 204]);
    assert_eq!(ask("203.0.113.2", "gold-1", 5), [429; 5], "by the address");
    assert_eq!(ask("203.0.113.3", "gold-1", 1), [204], "the fourth token");
    assert_eq!(ask("203.0.113.3", "gold-1", 1), [429], "by the tenant");
    assert_eq!(ask("203.0.113.3", "gold-2", 2), [204, 204], "not charged");
}

/// A descriptor's own `hits_addend` is the cost, and 0 takes nothing; a provider gives permits.
#[test]
fn envoy_says_what_a_request_costs() {
    let daemon = daemon("envoy-hits");
    let limits = |hits: u32| {
        format!(
            "typed_per_filter_config:
  envoy.filters.http.ratelimit:
    '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
    rate_limits:
    - actions: [{{ generic_key: {{ descriptor_value: tokens }} }}]
      hits_addend: {{ number: {hits} }}
"
        )
    };
    let peeks = Envoy::start("envoy-run-3", &daemon, &limits(0), &[]);
    let costs = Envoy::start("envoy-run-4", &daemon, &limits(4), &[]);
    assert_eq!(peeks.statuses(12, &[]), [204; 12]);
    assert_eq!(costs.statuses(3, &[]), [204, 204, 429], "four each of ten");
    assert_eq!(peeks.statuses(1, &[]), [204], "two are left");
    let entity = "rate_limits:
- actions: [{ generic_key: { descriptor_key: entity, descriptor_value: odds } }]
";
    let domain = [("domain: guards", "domain: x")];
    let provider = Envoy::start("envoy-run-5", &daemon, entity, &domain);
    let first = provider.get(&[]);
    assert_eq!(header(&first, "x-tollgate-decision"), "allow", "{first}");
    assert_ne!(header(&first, "x-ratelimit-reset"), "", "{first}");
    assert_eq!(provider.statuses(2, &[]), [204, 429]);
}

/// The limits of envoyproxy/ratelimit go on as guards: addresses have 2 per hour, one has 3, one has no
/// limit.
#[test]
fn imported_limits_hold() {
    let limits = "domain: edge
descriptors:
- key: remote_address
  rate_limit: { unit: hour, requests_per_unit: 2 }
- key: remote_address
  value: 203.0.113.3
  rate_limit: { unit: hour, requests_per_unit: 3 }
- key: remote_address
  value: 203.0.113.4
";
    let folder = Folder::new("envoy-import")
        .file("limits.yaml", limits)
        .file(
            "x.yaml",
            "name: x\ndomain: api.example.org\nlimits: [2/1h]\n",
        );
    let args = [
        "import",
        "envoy-ratelimit",
        "limits.yaml",
        "--out",
        "tollgate.yaml",
    ];
    let imported = folder.run(&args);
    assert_eq!(imported.code, Some(0), "{}", imported.err);
    let daemon = RunningDaemon::start(folder, &["--grpc", "127.0.0.1:0"]);
    let envoy = Envoy::start("envoy-run-9", &daemon, "", &[]);
    for (address, expected) in [
        ("203.0.113.2", [204, 204, 429, 429]),
        ("203.0.113.3", [204, 204, 204, 429]),
        ("203.0.113.4", [204, 204, 204, 204]),
    ] {
        let client = [("x-forwarded-for", address)];
        assert_eq!(envoy.statuses(4, &client), expected, "{address}");
    }
}

/// While the service is down, `failure_mode_deny` decides; a wrong domain is an error too.
#[test]
fn envoy_goes_on_as_configured_while_we_are_down() {
    let daemon = daemon("envoy-down");
    let open = Envoy::start("envoy-run-6", &daemon, "", &[]);
    let closed = Envoy::start("envoy-run-7", &daemon, "", &[DENY]);
    let wrong = [DENY, ("domain: guards", "domain: gards")];
    let wrong = Envoy::start("envoy-run-8", &daemon, "", &wrong);
    let client = [("x-forwarded-for", "203.0.113.7")];
    assert_eq!(wrong.statuses(1, &client), [500], "the domain is mistyped");
    assert_eq!(open.statuses(2, &client), [204, 204]);
    assert_eq!(closed.statuses(2, &client), [204, 429]);
    drop(daemon);
    assert_eq!(open.statuses(4, &client), [204; 4]);
    assert_eq!(closed.statuses(2, &client), [500, 500]);
}
