//! The `tollgate` program: one file per command, and here the list of them.
//!
//! Promises: exit code 0 is success, 1 failure, 2 wrong usage. An error is told once, on standard
//! error, with its causes and the next step.
//!
//! Never: decides anything about limits; that is the core's business.

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

mod check;
mod completions;
mod demo;
mod explain;
mod init;
mod options;
mod provider;
mod schema;
mod serve;
mod terminal;

/// Stay within the limits of the APIs you call, and use them fully.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

/// The program only, never the library: a proxied call makes some thirty small allocations, and
/// this allocator takes half the time of the system's for them (`make bench`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Init(init::Init),
    Serve(serve::Serve),
    Check(check::Check),
    Provider(provider::Provider),
    Explain(explain::Explain),
    Schema(schema::Schema),
    Completions(completions::Completions),
}

fn main() -> ExitCode {
    let outcome = match Program::parse().command {
        Command::Demo(command) => command.run(),
        Command::Init(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Provider(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Schema(command) => command.run(),
        Command::Completions(command) => command.run(),
    };
    match outcome {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is gone too, the exit code is all that is left to tell.
            let _told = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Also where the pipe broke below a writer of JSON, which wraps the error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let plain = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>();
        let kind = plain.or_else(|| json?.io_error_kind());
        kind == Some(io::ErrorKind::BrokenPipe)
    })
}
