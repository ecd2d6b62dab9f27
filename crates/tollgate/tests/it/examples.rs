//! The examples do what they say: each asserts it by itself.

#[path = "../../examples/permits.rs"]
mod permits;
#[path = "../../examples/reqwest_client.rs"]
mod reqwest_client;
#[path = "../../examples/tower_client.rs"]
mod tower_client;
#[path = "../../examples/tower_server.rs"]
mod tower_server;

#[test]
fn the_example_of_permits_runs() {
    permits::main().expect("it holds");
}

#[test]
fn the_example_of_reqwest_runs() {
    reqwest_client::main().expect("it holds");
}

/// hyper's own client: twenty calls arrive within the limit, and a connection that fails costs nothing.
#[test]
fn the_example_of_a_tower_client_runs() {
    tower_client::main().expect("it holds");
}

#[test]
fn the_example_of_a_server_runs() {
    tower_server::main().expect("it holds");
}
