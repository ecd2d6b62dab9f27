//! A reqwest client whose calls are governed, against a provider that enforces its limit.
//!
//! `cargo run -p tollgate --example reqwest_client`

use std::time::Duration;

use tollgate::reqwest::Governed;
use tollgate::{Provider, Source, Tollgate};
use tollgate_sim::http::{Settings, SimProvider};

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let strict = SimProvider::start(Settings::with_rules("sliding 5/100ms")?).await?;
    let shop = Provider::new("shop").domain("api.example.org");
    let shop = shop.upstream(strict.url()).cache(Duration::from_secs(60));
    let shop = shop.limit(5, Duration::from_millis(100));
    let tollgate = Tollgate::builder().provider(shop)?.build().await?;
    let client = Governed::new(&tollgate, reqwest::Client::builder())?;
    for number in 0..20 {
        let url = format!("https://api.example.org/items/{}", number % 10);
        let response = client.get(url).send().await?.error_for_status()?;
        let source = response.extensions().get::<Source>().copied();
        assert_eq!(source == Some(Source::Cache), number >= 10);
        response.bytes().await?;
    }
    let report = strict.stop().await;
    assert_eq!((report.violations, report.accepted), (0, 10));
    Ok(())
}
