//! The servers that are compared, each with a configuration of the shortest path: keep-alive on
//! both sides, one worker, no access log, and a key added to every request.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use crate::server::Server;

/// What the servers are made from.
pub struct Site {
    /// Files of this run.
    pub folder: PathBuf,
    /// The `tollgate` program.
    pub ours: PathBuf,
    /// The `envoy` program.
    pub envoy: PathBuf,
    /// Where answers come from.
    pub upstream: SocketAddr,
}

/// The path that every server passes on.
const PATH: &str = "/item/1";

impl Site {
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
        let text = format!(
            "worker_processes 1; daemon off; pid {folder}/{name}.pid; error_log stderr emerg;
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
        let file = self.write(&format!("{name}.conf"), &text)?;
        Server::start(
            name,
            address,
            PATH,
            &["nginx", "-c", &file],
            &self.log(name),
        )
    }

    pub fn haproxy(&self) -> anyhow::Result<Server> {
        let address = free()?;
        let text = format!(
            "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout client 60s
  timeout server 60s\n  timeout connect 5s\n  http-reuse always
frontend f\n  bind {address}\n  default_backend b
backend b\n  http-request set-header Authorization \"Bearer secret\"\n  server s {}\n",
            self.upstream
        );
        let file = self.write("haproxy.cfg", &text)?;
        Server::start(
            "HAProxy",
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
        let (address, own) = (free()?, std::env::current_exe()?.display().to_string());
        let (listen, upstream) = (address.to_string(), self.upstream.to_string());
        let program = [own.as_str(), "bare", &listen, &upstream];
        Server::start("bare hyper", address, PATH, &program, &self.log("bare"))
    }

    /// Our gateway: two limits, a key, health, and the ledger of `store`.
    pub fn tollgate(
        &self,
        name: &'static str,
        store: &str,
        limits: &str,
    ) -> anyhow::Result<Server> {
        let address = free()?;
        let file = format!(
            "name: up\nupstream: http://{}\napi_key: secret\nauth: {{ bearer: true }}\nlimits: {limits}\n\
             connections: 256\n",
            self.upstream
        );
        let file = self.write(&format!("{name}.yaml"), &file)?;
        let ours = self.ours.display().to_string();
        let listen = address.to_string();
        let program = [
            ours.as_str(),
            "serve",
            "--provider",
            &file,
            "--store",
            store,
            "--listen",
            &listen,
        ];
        Server::start(name, address, "/up/item/1", &program, &self.log(name))
    }
}

/// A port that nobody has at the moment.
pub fn free() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
