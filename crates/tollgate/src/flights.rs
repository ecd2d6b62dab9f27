//! Flights: one upstream call for everyone who waits for the same response, or for a part of it.
//!
//! Promises: this module holds the state of flights and merges, and knows which responses may be
//! shared. The stages `flight` and `merge` of the path drive it.
//!
//! Never: sends anything, or takes locks against their order (flights, flight, demand).

mod demand; // priority and deadline of all callers of a flight
mod sharing; // which responses may be shared with whom
mod flight; // one upstream call and everyone who waits for it
mod table; // all flights of this process
mod end; // how a flight ends
mod recipe; // how parts are requested together and split again
mod merge_group; // calls for parts of one item
mod writes; // when each path was last written to
pub(crate) use demand::{CallDemand, SharedDemand};
pub(crate) use end::{FlightInProgress, FlightResult};
pub(crate) use flight::{Flight, Flights, Follower};
pub(crate) use merge_group::{
    GroupEnd, MergeFollower, MergeGroup, MergeGroups, MergeLeader, WHOLE_BODY_HEADERS,
};
pub(crate) use recipe::part;
pub(crate) use sharing::{
    Conditions, FlightKey, RequestIdentity, contains, may_share_parts, user_agent,
};
pub(crate) use table::{FlightSlot, FlightTable, PassEntry};
pub(crate) use writes::Writes;

#[cfg(test)]
pub(crate) use sharing::tests as sharing_tests;
#[cfg(test)]
pub(crate) use table::PASS_FOR;
