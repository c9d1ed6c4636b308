//! What the documentation shows is what a scrape shows.

use std::collections::BTreeSet;

use metrics_exporter_prometheus::PrometheusBuilder;

use super::work;

const DOCUMENTED: &str = include_str!("../../../../docs/observability.md");

/// The metrics of a text for Prometheus, each with its labels and without its value: bucket limits
/// aside, which are the program's.
fn series(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with("lockkit_"));
    let keys = lines.filter_map(|line| line.rsplit_once(' ')).map(|(key, _)| key);
    keys.filter(|key| !key.contains("le=") && !key.contains("quantile="))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_metrics_in_the_documentation_are_those_of_a_scrape() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(work()).unwrap();
    });
    let (shown, documented) = (series(&scrape.render()), series(DOCUMENTED));
    assert!(shown.len() > 10, "{shown:#?}");
    assert_eq!(shown, documented);
}
