//! What an exporter gets: names, attributes and parents of the spans, as the documentation has them.

use std::collections::BTreeSet;

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use super::{exported, work};

const DOCUMENTED: &str = include_str!("../../../../docs/observability.md");

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key)?;
    Some(found.value.as_str().into_owned())
}

fn spans_of(work: impl Future<Output = Result<(), lockkit::Error>>) -> Vec<SpanData> {
    let exporter = InMemorySpanExporter::default();
    let spans = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(exported(&spans), || runtime.block_on(work).unwrap());
    exporter.get_finished_spans().unwrap()
}

#[test]
fn an_acquisition_and_the_work_are_spans_with_documented_attributes() {
    let spans = spans_of(work());
    let named = |name: &str| spans.iter().find(|span| span.name == name).expect(name).clone();
    let (acquire, hold, pay) = (named("lockkit.acquire"), named("lockkit.hold"), named("pay"));
    assert_eq!(acquire.span_kind, SpanKind::Client);
    for span in [&acquire, &hold] {
        assert_eq!(attribute(span, "lockkit.lock.name").unwrap(), "invoice/42");
        assert_eq!(attribute(span, "lockkit.lock.kind").unwrap(), "mutex");
        assert_eq!(attribute(span, "lockkit.backend").unwrap(), "memory");
        assert_eq!(attribute(span, "lockkit.token"), attribute(&pay, "token"));
    }
    assert_eq!(attribute(&acquire, "lockkit.outcome").unwrap(), "granted");
    assert_eq!(pay.parent_span_id, hold.span_context.span_id(), "the work is inside of the hold");

    let keys = spans.iter().flat_map(|span| &span.attributes).map(|a| a.key.as_str());
    let keys: BTreeSet<_> = keys.filter(|key| key.starts_with("lockkit.")).collect();
    for key in keys {
        assert!(DOCUMENTED.contains(&format!("`{key}`")), "{key} is not documented");
    }
}

#[test]
fn a_loss_is_the_status_of_the_work_and_its_type_of_error() {
    let (locks, control) = lockkit::testing::locks();
    let spans = spans_of(async {
        let invoice = locks.mutex("invoice/42");
        let lost = invoice.run(async |_lock| {
            control.lose("invoice/42", lockkit::LossReason::Expired).await;
            std::future::pending::<Result<(), lockkit::Error>>().await
        });
        assert!(lost.await.is_err());
        control.refuse_next("invoice/42", lockkit::Error::permanent("test", "no"));
        assert!(invoice.lock().await.is_err());
        Ok(())
    });
    let failed = |name: &str| {
        let failed = |span: &&SpanData| matches!(span.status, Status::Error { .. });
        let span = spans.iter().filter(failed).find(|span| span.name == name).expect(name);
        attribute(span, "error.type").unwrap()
    };
    assert_eq!(failed("lockkit.hold"), "expired");
    assert_eq!(failed("lockkit.acquire"), "backend");
}
