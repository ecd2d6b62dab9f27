//! Permits for calls that the program makes itself.
//!
//! `cargo run -p tollgate --example permits`

use std::time::Duration;

use tollgate::{Call, Priority::High, Provider, Tollgate};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shop = Provider::new("shop").domain("api.example.org");
    let shop = shop.limit(2, Duration::from_secs(60));
    let tollgate = Tollgate::builder().provider(shop)?.build().await?;
    let call = || Call::url("https://api.example.org/items/1").priority(High);
    for _ in 0..2 {
        let permit = tollgate.acquire(call()).await?;
        let response = http::Response::builder().status(200).body("an item")?;
        permit.report(&response);
    }
    let error = tollgate.acquire(call().no_wait()).await;
    let error = error
        .err()
        .ok_or("the third call of this minute must wait")?;
    assert_eq!(error.limit(), Some("2/1m"));
    assert!(error.retry_in().is_some());
    Ok(())
}
