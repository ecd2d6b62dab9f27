//! The rules of the protocol, each with a switch.
//!
//! Promises: the default has all of them. Tests turn one or two off and must see limits exceeded,
//! quota wasted, owners starved or more conflicts. `own_row` is only off
//! together with another rule.
//!
//! Never: turned off by a program that serves calls.

/// Which rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one switch per rule")]
pub struct Rules {
    /// Free by the lower bound of time, stamp by the upper one. Off: the lower one for both.
    pub two_bounds: bool,
    /// A version names its writer and its batch. Off: a counter.
    pub named_versions: bool,
    /// The store compares the epoch with the rows. Off: the rows only.
    pub compare_epoch: bool,
    /// The store compares its time with the writer's bounds. Off: a writer that has not noticed a
    /// step is believed.
    pub compare_time: bool,
    /// A step of the store's clock is not believed. Off: every stamp is taken as it is.
    pub notice_steps: bool,
    /// A node that has just joined moves rows that it cannot date to its own time. Off: it
    /// believes them.
    pub distrust_on_join: bool,
    /// What a host remembers of the store's clock counts only if the first reply, the epoch, the
    /// incarnation and the number of changes agree with it, and only from its lower bound. Off: it is believed.
    pub compare_clock_record: bool,
    /// The age of a grant counts from when its request was sent. Off: from the reply.
    pub age_from_sent: bool,
    /// After its own deadline a node takes back what may have been granted, with a write that no
    /// late request survives. Off: it assumes that the request was lost.
    pub recover_by_write: bool,
    /// Each request replaces its process's own row, so that a batch whose reply was lost is
    /// recognised. Off: it is applied again.
    pub own_row: bool,
    /// The store notes who waits, whatever becomes of a request, and sends them new rows. Off: an
    /// owner that loses a race knows nothing of the next one.
    pub note_waiting: bool,
    /// Waiting owners take turns by rank and take their share only. Off: everyone at once, all
    /// that is free.
    pub take_turns: bool,
    /// Rows of another epoch are closed for one window. Off: believed.
    pub close_after_promotion: bool,
    /// The shares of nodes that may have lost the store are left alone. Off: such a node adds its
    /// share to what the others use.
    pub leave_shares: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            two_bounds: true,
            named_versions: true,
            compare_epoch: true,
            compare_time: true,
            notice_steps: true,
            distrust_on_join: true,
            compare_clock_record: true,
            age_from_sent: true,
            recover_by_write: true,
            own_row: true,
            note_waiting: true,
            take_turns: true,
            close_after_promotion: true,
            leave_shares: true,
        }
    }
}
