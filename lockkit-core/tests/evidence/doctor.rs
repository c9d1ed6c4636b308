//! What `doctor` says of a server's clock. The default margin covers a rate of a tenth more.

use std::sync::Arc;

use lockkit_core::LockManager;
use lockkit_core::state::{Finding, Severity};

use super::server::Server;
use super::settings;

async fn findings(rate: f64) -> Vec<Finding> {
    let server = Server::new();
    server.runs_at(rate);
    let manager = || LockManager::with(Arc::new(server.clone()), settings()).unwrap();
    manager().probe(&manager()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_the_servers_clock_is_measured() {
    let said = [
        (1.0, None),
        (1.05, Some(Severity::Warning)),
        (0.8, Some(Severity::Warning)),
        (1.5, Some(Severity::Problem)),
    ];
    for (rate, severity) in said {
        let findings = findings(rate).await;
        let about = findings.iter().find(|it| it.what.contains("as fast as"));
        assert_eq!(about.map(|it| it.severity), severity, "{rate}: {findings:?}");
        let percent = format!("{:.0} %", rate * 100.0);
        assert!(about.is_none_or(|it| it.what.contains(&percent)), "{about:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_skew_is_noted() {
    // The clock of this server began in January 1970.
    let findings = findings(1.0).await;
    let [skew] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(skew.severity, Severity::Note);
    assert!(skew.what.contains(" s behind this machine's"), "{skew:?}");
}
