//! `tollgate-sim proxy`: a TCP relay that injects faults until a signal ends it.
//!
//! Promises: the first line on stdout is the address; orders come as flags and as lines on stdin,
//! and a bad line is reported and changes nothing.
//!
//! Never: inspects the bytes.

use std::io::{BufRead, Write};
use std::net::SocketAddr;

use clap::Args;
use tokio::sync::mpsc;
use tollgate_sim::fault_proxy::{FaultProxy, ProxyFaults, text};

use super::{CommandResult, ShutdownSignals, block_on, print_line};

/// Orders read and not yet applied; more wait in the pipe.
const ORDERS_MAX: usize = 16;

/// A TCP relay that delays, cuts, stalls or drops on demand.
///
/// Prints its address and relays until SIGTERM or SIGINT. Orders are read from stdin, one per line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Proxy {
    /// Where the bytes go
    #[arg(value_name = "UPSTREAM")]
    to: SocketAddr,

    /// Where clients connect; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Seed of the random jitter
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// An order applied at the start, repeatable
    #[arg(long = "order", value_name = "ORDER", value_parser = order)]
    orders: Vec<String>,
}

const EXAMPLES: &str = "\
Orders:
  up|down|both [delay 20ms] [jitter 5ms] [cut-after BYTES] [pass|stall|drop|half-close]
  refuse | accept      new connections
  cut                  reset every open connection now
  clear                everything passes again

Example:
  tollgate-sim proxy 127.0.0.1:6379 --order 'both delay 20ms jitter 10ms'
  (then type) down drop";

impl Proxy {
    /// Relays until a signal arrives.
    pub(crate) fn run(self) -> CommandResult {
        block_on(async {
            let mut signals = ShutdownSignals::listen()?;
            let proxy = FaultProxy::listen(self.listen, self.to, self.seed).await?;
            for order in &self.orders {
                apply_order(&proxy, order);
            }
            print_line(&proxy.address().to_string())?;
            let mut lines = stdin_lines();
            loop {
                tokio::select! {
                    () = signals.wait() => break,
                    Some(order) = lines.recv() => apply_order(&proxy, &order),
                }
            }
            proxy.stop().await;
            Ok(())
        })
    }
}

fn apply_order(proxy: &FaultProxy, order: &str) {
    proxy.update(|faults| {
        if let Err(bad) = text::apply_order(order, faults) {
            // If stderr is closed, nobody reads the error.
            writeln!(std::io::stderr(), "tollgate-sim: {bad}").ok();
        }
    });
}

/// Checks an order on the command line.
fn order(text: &str) -> Result<String, String> {
    text::apply_order(text, &mut ProxyFaults::default()).map_err(|bad| bad.to_string())?;
    Ok(text.to_owned())
}

/// Lines of stdin. A separate thread reads them and ends with the input or with the process,
/// because a read from a terminal cannot be cancelled.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (orders, lines) = mpsc::channel(ORDERS_MAX);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if orders.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
