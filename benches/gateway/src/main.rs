mod floor;
mod load;
mod peers;
mod proxied;
mod quota;
mod server;
mod upstream;

use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, listen, up] = &arguments[..]
        && word == "bare"
    {
        return floor::run(listen.parse()?, up.parse()?);
    }
    if let [word, tool, file] = &arguments[..]
        && word == "client"
    {
        return quota::client::run(tool, file);
    }
    // The callers' core is this process's.
    if arguments.first().map(String::as_str) != Some("pinned") {
        let own = std::env::current_exe()?;
        let status = std::process::Command::new("taskset")
            .args(["-c", server::CALLER_CORE])
            .arg(own)
            .arg("pinned")
            .args(&arguments)
            .status()?;
        std::process::exit(status.code().unwrap_or(1));
    }
    let folder = PathBuf::from("target/bench-gateway").to_path_buf();
    std::fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    let site = peers::Site {
        folder,
        ours: "target/release/tollgate".into(),
        envoy: std::env::var("ENVOY").unwrap_or("envoy".into()).into(),
        upstream: "127.0.0.1:1".parse()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let only: Vec<String> = arguments[1..].to_vec();
    tokio::task::LocalSet::new().block_on(&runtime, proxied::run(site, only))
}
