//! The compared servers, each with a minimal configuration: keep-alive on both sides, one worker,
//! no access log, and a key added to every request.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::server::Server;

/// The inputs for starting the servers.
#[derive(Clone)]
pub struct Site {
    /// Files of this run.
    pub folder: PathBuf,
    /// The `tollgate` program.
    pub ours: PathBuf,
    /// The `envoy` program.
    pub envoy: PathBuf,
    /// The address of the upstream.
    pub upstream: SocketAddr,
}

/// The path that every server forwards.
const PATH: &str = "/item/1";

/// The nginx lines for a cache in this folder: for `http`, and for `location`. `sendfile` is `on`
/// as in its default file, or `off`, which is faster for small responses.
pub fn nginx_cache(folder: &str, sendfile: &str) -> [String; 2] {
    [
        format!(
            "proxy_cache_path {folder} levels=1:2 keys_zone=k:8m max_size=1g inactive=1h \
             use_temp_path=off; sendfile {sendfile}; output_buffers 2 128k; \
             open_file_cache max=1000 inactive=1h; open_file_cache_valid 1h; \
             open_file_cache_min_uses 1;"
        ),
        "proxy_cache k; proxy_cache_lock on;".to_owned(),
    ]
}

/// The HAProxy lines for a cache: global, and for the backend.
pub const HAPROXY_CACHE: [&str; 2] = [
    "cache c\n  total-max-size 256\n  max-object-size 262144\n  max-age 3600\n",
    "  http-request cache-use c\n  http-response cache-store c\n",
];

/// The Envoy filter for a cache, version 2, which sends one call for identical requests at the same
/// time.
pub const ENVOY_CACHE: &str = "
          - name: envoy.filters.http.cache_v2
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.cache_v2.v3.CacheV2Config
              typed_config:
                '@type': type.googleapis.com/envoy.extensions.http.cache_v2.simple_http_cache.v3.SimpleHttpCacheV2Config";

impl Site {
    /// The same servers with another upstream.
    pub fn with_upstream(&self, upstream: SocketAddr) -> Site {
        Site {
            upstream,
            ..self.clone()
        }
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// An empty folder of this run.
    pub fn fresh(&self, name: &str) -> anyhow::Result<String> {
        let path = self.folder.join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(path.display().to_string())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// nginx; `limits` are the lines of its limit, if it has one: for `http`, and for `location`.
    pub fn nginx(&self, name: &'static str, limits: [&str; 2]) -> anyhow::Result<Server> {
        let (address, folder) = (free()?, self.folder.display());
        let [outside, inside] = limits;
        let word = name.replace([' ', ','], "-");
        let text = format!(
            "worker_processes 1; daemon off; pid {folder}/{word}.pid; error_log stderr emerg;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; {outside}
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream up {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
  server {{ listen {address};
    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_set_header Authorization \"Bearer secret\"; {inside} }} }}
}}\n",
            upstream = self.upstream
        );
        let file = self.write(&format!("{word}.conf"), &text)?;
        Server::start(
            name,
            address,
            PATH,
            &["nginx", "-c", &file],
            &self.log(name),
        )
    }

    /// HAProxy; `cache` are the lines of its cache, if it has one: global, and for the backend.
    pub fn haproxy(&self, name: &'static str, cache: [&str; 2]) -> anyhow::Result<Server> {
        let (address, [outside, inside]) = (free()?, cache);
        let text = format!(
            "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout client 60s
  timeout server 60s\n  timeout connect 5s\n  http-reuse always
{outside}frontend f\n  bind {address}\n  default_backend b
backend b\n{inside}  http-request set-header Authorization \"Bearer secret\"\n  server s {}\n",
            self.upstream
        );
        let file = self.write("haproxy.cfg", &text)?;
        Server::start(
            name,
            address,
            PATH,
            &["haproxy", "-db", "-f", &file],
            &self.log("haproxy"),
        )
    }

    /// Envoy; `filter` is a limit in front of its router, if it has one.
    pub fn envoy(&self, name: &'static str, filter: &str) -> anyhow::Result<Server> {
        let address = free()?;
        let text = format!(
            "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: s
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{ prefix: '/' }}
                route: {{ cluster: up }}
                request_headers_to_add:
                - header: {{ key: Authorization, value: 'Bearer secret' }}
                  append_action: OVERWRITE_IF_EXISTS_OR_ADD
          http_filters:{filter}
          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: up
    type: STATIC
    load_assignment:
      cluster_name: up
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {up} }} }} }}\n",
            port = address.port(),
            up = self.upstream.port()
        );
        let file = self.write(&format!("{name}.yaml"), &text)?;
        let envoy = self.envoy.display().to_string();
        let program = [
            &envoy,
            "-c",
            &file,
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "error",
        ];
        Server::start(name, address, PATH, &program, &self.log(name))
    }

    /// The bare proxy of this package.
    pub fn bare(&self) -> anyhow::Result<Server> {
        self.own("bare hyper", "bare", &self.upstream.to_string())
    }

    /// The bare server of this package, which has one response of `bytes` bytes.
    pub fn constant(&self, bytes: usize) -> anyhow::Result<Server> {
        self.own("bare hyper", "constant", &bytes.to_string())
    }

    fn own(&self, name: &'static str, what: &str, word: &str) -> anyhow::Result<Server> {
        let (address, own) = (free()?, std::env::current_exe()?.display().to_string());
        let program = [own.as_str(), what, &address.to_string(), word];
        Server::start(name, address, PATH, &program, &self.log(what))
    }

    /// Varnish with 256 MB of cache memory and one thread pool.
    pub fn varnish(&self, name: &'static str) -> anyhow::Result<Server> {
        let (address, folder) = (free()?, self.fresh("varnish")?);
        let (listen, upstream) = (address.to_string(), self.upstream.to_string());
        let program = [
            "varnishd",
            "-F",
            "-a",
            &listen,
            "-b",
            &upstream,
            "-n",
            &folder,
            "-s",
            "malloc,256m",
            "-p",
            "thread_pools=1",
            "-p",
            "thread_pool_max=2000",
        ];
        Server::start(name, address, PATH, &program, &self.log(name))
    }

    /// Squid in front of the upstream, with collapsed forwarding.
    pub fn squid(&self, name: &'static str) -> anyhow::Result<Server> {
        let (address, folder) = (free()?, self.fresh("squid")?);
        // Squid switches to another user.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        let text = format!(
            "http_port {address} accel defaultsite=upstream no-vhost\npid_filename {folder}/squid.pid
cache_peer {} parent {} 0 no-query no-digest originserver default name=up
cache_peer_access up allow all\nhttp_access allow all\nshutdown_lifetime 0 seconds
collapsed_forwarding on\naccess_log none\ncache_log {folder}/cache.log\ncache_mem 256 MB
maximum_object_size_in_memory 256 KB\ncoredump_dir {folder}\n",
            self.upstream.ip(),
            self.upstream.port()
        );
        let file = self.write("squid.conf", &text)?;
        let program = ["squid", "-N", "-f", &file];
        Server::start(name, address, PATH, &program, &self.log(name))
    }

    /// Our gateway: two limits, a key, health, and the ledger of `store`; `extra` are further lines
    /// of the provider's file.
    pub fn tollgate(
        &self,
        name: &'static str,
        store: &str,
        limits: &str,
        extra: &str,
    ) -> anyhow::Result<Server> {
        let address = free()?;
        let file = format!(
            "name: up\nupstream: http://{}\napi_key: secret\nauth: {{ bearer: true }}\nlimits: {limits}\n\
             connections: 256\n{extra}",
            self.upstream
        );
        let file = self.write(&format!("{name}.yaml"), &file)?;
        let ours = self.ours.display().to_string();
        let listen = address.to_string();
        // Only the ledger is on disk, so that the row measures nothing else.
        let config = self.write(&format!("{name}.config"), "cache_store: 'memory:'\n")?;
        let is_on_disk = store.starts_with("sqlite:");
        let mut program = vec![
            ours.as_str(),
            "serve",
            "--provider",
            &file,
            "--store",
            store,
            "--listen",
            &listen,
        ];
        if is_on_disk {
            program.extend(["--config", &config]);
        }
        Server::start(name, address, "/up/item/1", &program, &self.log(name))
    }
}

/// A port that is free at the moment.
pub fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
