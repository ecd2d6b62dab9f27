//! `tollgate-sim`: the simulated providers, the TCP fault proxy and the tables of exactness and use as a program.
//!
//! Promises: exit code 0 for success, 1 for failure, 2 for wrong usage; results on stdout, problems on
//! stderr, each once.
//!
//! Never: decides anything; every command is one file under `cmd/`.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cmd;

/// A provider that enforces its limits and reports every violation.
#[derive(Debug, Parser)]
#[command(name = "tollgate-sim", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<cmd::serve::Serve>),
    Llm(cmd::llm::Llm),
    Proxy(cmd::proxy::Proxy),
    Exactness(cmd::exactness::Exactness),
    Stores(cmd::stores::Stores),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Llm(llm) => llm.run(),
        Command::Proxy(proxy) => proxy.run(),
        Command::Exactness(exactness) => exactness.run(),
        Command::Stores(stores) => stores.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

/// Prints an error and its causes on one line.
fn print_error(error: &dyn Error) {
    let mut line = format!("tollgate-sim: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(&format!(": {error}"));
        cause = error.source();
    }
    // If stderr is closed, nobody reads the error.
    writeln!(std::io::stderr(), "{line}").ok();
}
