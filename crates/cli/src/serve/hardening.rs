//! Keys live in memory only, and memory stays where it is (H3).
//!
//! Promises: a crash of the gateway writes no core dump, neither to a file nor to a program that
//! collects them, and no other process of the same user can attach to it or read its memory.
//!
//! Never: keeps the gateway from starting; a kernel that does not allow it is told.

use std::io::{self, Write};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Seals this process, before it reads a key.
pub(super) fn disable_core_dumps() -> io::Result<()> {
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // The limit is for files; programs that collect dumps through a pipe are kept off by the other.
    let sealed = setrlimit(Resource::Core, nothing)
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    if let Err(error) = sealed {
        writeln!(
            io::stderr(),
            "warning: a crash could write keys to a core dump: {error}; run it with LimitCORE=0"
        )?;
    }
    Ok(())
}
