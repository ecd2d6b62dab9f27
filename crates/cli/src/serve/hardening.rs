//! Keys are in memory only, and the memory is never dumped (H3).
//!
//! Promises: a crash of the gateway writes no core dump, neither to a file nor to a program that
//! collects them, and no other process of the same user can attach to it or read its memory.
//!
//! Never: prevents the gateway from starting; a kernel that does not allow it causes a warning.

use std::io::{self, Write};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Disables core dumps of this process, before it reads a key.
pub(super) fn disable_core_dumps() -> io::Result<()> {
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // The limit prevents dump files; the other call prevents dumps to a collecting program.
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
