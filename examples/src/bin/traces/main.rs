//! The spans of lockkit as OpenTelemetry sees them, printed by the exporter for the standard output:
//! another exporter is another line. `cargo run -p lockkit-examples --bin traces`

#[cfg(test)]
mod tests;

use lockkit::{Error, Token};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let spans = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    tracing::subscriber::set_global_default(exported(&spans))?;
    work().await?;
    spans.shutdown()?;
    Ok(())
}

/// Exports the spans of level `debug` and above, which those of lockkit are.
fn exported(spans: &SdkTracerProvider) -> impl tracing::Subscriber + Send + Sync + use<> {
    let layer = tracing_opentelemetry::layer().with_tracer(spans.tracer("invoices"));
    tracing_subscriber::registry().with(tracing_subscriber::filter::LevelFilter::DEBUG).with(layer)
}

/// An acquisition, and the work under the lock with a span of its own.
async fn work() -> Result<(), Error> {
    let locks = lockkit::connect("memory:").await?;
    let invoice = locks.mutex("invoice/42");
    invoice.run(async |lock| lock.token().map(pay)).await?;
    locks.shutdown().await;
    Ok(())
}

fn pay(token: Token) {
    let _paying = tracing::info_span!("pay", token = token.as_i64()).entered();
}
