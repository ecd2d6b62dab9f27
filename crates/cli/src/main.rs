//! The `tollgate` program: the list of commands, with one file per command.
//!
//! Promises: exit code 0 is success, 1 failure, 2 wrong usage, 75 "try later". An error is printed once, on
//! standard error, with its causes and the next step.
//!
//! Never: decides anything about limits; `core` does.

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

mod acquire;
mod cache;
mod check;
mod completions;
mod demo;
mod explain;
mod import;
mod init;
mod log;
mod man;
mod open_ledger;
mod options;
mod control;
mod out;
mod provider;
mod provider_state;
mod admin_client;
mod schema;
mod serve;
mod source;
mod status;
mod terminal;
mod times;
mod top;
mod why;

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
    Acquire(acquire::Acquire),
    Capacity(acquire::CapacityCommand),
    Report(acquire::ReportCommand),
    Release(acquire::ReleaseCommand),
    Source(source::SourceCommands),
    Status(status::StatusCommand),
    Top(top::Top),
    Set(control::SetCommand),
    Reload(control::Reload),
    /// Send no calls to a provider until it is resumed; calls wait as long as they can
    Pause(control::TimedControlCommand),
    /// Send no calls to a provider until it is resumed; calls are rejected at once
    Offline(control::ControlCommand),
    /// Use only the cache for calls to a provider
    CacheOnly(control::TimedControlCommand),
    /// Send calls to a provider again: ends a pause, a sleep, cool-downs and closed paths; a provider that was failing is probed first
    Resume(control::ControlCommand),
    /// Clear a provider's failures, cool-downs and degrade modes
    Reset(control::ControlCommand),
    Cache(cache::Cache),
    Why(why::Why),
    Explain(explain::Explain),
    Import(import::Import),
    Schema(schema::Schema),
    Completions(completions::Completions),
    Man(man::Man),
}

/// As clap exits.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Program::parse().command {
        Command::Demo(command) => command.run(),
        Command::Init(command) => command.run(),
        Command::Serve(command) => command.run(),
        Command::Check(command) => command.run(),
        Command::Provider(command) => command.run(),
        Command::Acquire(command) => command.run(),
        Command::Capacity(command) => command.run(),
        Command::Report(command) => command.run(),
        Command::Release(command) => command.run(),
        Command::Source(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Set(command) => command.run(),
        Command::Reload(command) => command.run(),
        Command::Pause(command) => command.run("pause"),
        Command::Offline(command) => command.run("offline"),
        Command::CacheOnly(command) => command.run("cache-only"),
        Command::Resume(command) => command.run("resume"),
        Command::Reset(command) => command.run("reset"),
        Command::Cache(command) => command.run(),
        Command::Why(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Schema(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed too, only the exit code reports the failure.
            let _printed = writeln!(io::stderr(), "error: {error:#}");
            match error.is::<acquire::WrongUsage>() {
                true => ExitCode::from(WRONG_USAGE),
                false => ExitCode::FAILURE,
            }
        }
    }
}
