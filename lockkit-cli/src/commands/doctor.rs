//! `doctor`: how the backend is, and what to do about it.

use lockkit::state::Severity;

use crate::args::BackendArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output::{self, Style, printable, styled};
use crate::take;

pub(crate) async fn doctor(backend: &BackendArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(backend)?;
    let locks = backend.connect().await?;
    let health = locks.health().await;
    take::close(&locks).await;
    let health = health?;
    let (shown, server) = (printable(&backend.shown()), printable(&health.server));
    let mut text = format!("backend  {shown}\nserver   {server}\n");
    for finding in &health.findings {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        let style = match finding.severity {
            Severity::Note => Style::Faint,
            Severity::Warning => Style::Warning,
            Severity::Problem => Style::Bad,
        };
        let severity = styled(style, &format!("{severity:8}"));
        let (what, advice) = (printable(&finding.what), printable(&finding.advice));
        text.push_str(&format!("{severity} {what}\n         {advice}\n"));
    }
    let worst = health.findings.iter().map(|f| f.severity).max();
    let (style, summary) = match worst {
        None => (Style::Good, "all is well"),
        Some(Severity::Note) => (Style::Good, "all is well otherwise"),
        Some(Severity::Warning) => (Style::Warning, "locks work; see the warnings"),
        Some(Severity::Problem) => (Style::Bad, "locks do not work, or do not hold: see above"),
    };
    text.push_str(&format!("{}\n", styled(style, summary)));
    output::print(&text)?;
    Ok(match worst {
        Some(Severity::Problem) => code::NO,
        _ => 0,
    })
}
