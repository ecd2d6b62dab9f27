//! The `tollgate` program: one file per command, and here the list of them.
//!
//! Promises: exit code 0 is success, 1 failure, 2 wrong usage. An error is told once, on standard
//! error, with its causes and the next step.
//!
//! Never: decides anything about limits; that is the core's business.

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

mod demo;
mod explain;
mod serve;

/// Stay within the limits of the APIs you call, and use them fully.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Explain(explain::Explain),
    Serve(serve::Serve),
}

fn main() -> ExitCode {
    let outcome = match Program::parse().command {
        Command::Demo(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Serve(command) => command.run(),
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

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
