//! The metrics of lockkit as Prometheus reads them. `cargo run -p lockkit-examples --bin metrics`
//! prints what a scrape of a small program shows; a service would serve it under `/metrics`.

#[cfg(test)]
mod tests;

use std::time::Duration;

use lockkit::driver::BreakMode;
use lockkit::{Error, Space};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(seconds, &[0.005, 0.1, 1.0, 10.0])?
        .build_recorder();
    let scrape = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    work().await?;
    print!("{}", scrape.render());
    Ok(())
}

/// Locks, waits, renews, fails to get a lock, and loses one.
async fn work() -> Result<(), Error> {
    let locks = lockkit::connect("memory:?ttl=500ms").await?;
    let invoice = locks.mutex("invoice/42").class("invoice");
    let guard = invoice.lock().await?;
    assert!(invoice.try_lock_for(Duration::from_millis(300)).await?.is_none());
    guard.release().await?;
    let guard = invoice.lock().await?;
    locks
        .admin()
        .break_lock(Space::Lock, "invoice/42", guard.token()?, BreakMode::Forced, None)
        .await?;
    println!("# {}", guard.lost().await);
    locks.shutdown().await;
    Ok(())
}
