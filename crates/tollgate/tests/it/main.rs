//! All integration tests of the crate in one program, because linking is expensive.

mod guard_behaviour;
mod guard_huge_pages;
mod guard_instructions;
mod guard_memory;
mod guard_model;
mod guard_oracle;
mod guard_snapshot;
mod guard_table;
mod guard_threads;
mod permits;
mod decide;
mod events;
mod path_cost;
mod recall;
