//! Where the page is, for people who start the daemon by hand.
//!
//! Promises: one line, on a terminal only: programs that read our output see what they did before.
//!
//! Never: opens a browser.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;

/// Prints where to look.
pub(super) fn announce(out: &mut impl Write, admin: SocketAddr) -> io::Result<()> {
    if io::stdout().is_terminal() {
        out.write_all(line(admin).as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// 0.0.0.0 cannot be opened in a browser.
fn line(admin: SocketAddr) -> String {
    let address = crate::admin_client::reachable(admin);
    format!("look: http://{address} shows every provider, limit and call as it happens\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_an_address_that_a_browser_can_open() {
        let line = line("0.0.0.0:4291".parse().unwrap());
        assert!(line.starts_with("look: http://127.0.0.1:4291 "), "{line}");
    }
}
