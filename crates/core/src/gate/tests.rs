//! Tests of the gate.
