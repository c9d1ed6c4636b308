//! `doctor`: how the backend is, and what to do about it.

use lockkit::state::Severity;

use crate::args::DoctorArgs;
use crate::backend::Backend;
use crate::exit::{Failure, code};
use crate::output::{self, printable};
use crate::take;

pub(crate) async fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let backend = Backend::choose(&args.backend)?;
    let locks = backend.connect().await?;
    let health = locks.health().await;
    take::close(&locks).await;
    let health = health?;
    let mut text = format!("backend  {}\nserver   {}\n", backend.shown(), health.server);
    for finding in &health.findings {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Problem => "PROBLEM",
        };
        text.push_str(&format!("{severity:8} {}\n         {}\n", finding.what, finding.advice));
    }
    let worst = health.findings.iter().map(|f| f.severity).max();
    text.push_str(match worst {
        None => "all is well\n",
        Some(Severity::Note) => "all is well otherwise\n",
        Some(Severity::Warning) => "locks work; see the warnings\n",
        Some(Severity::Problem) => "locks do not work, or do not hold: see above\n",
    });
    output::print(&printable(&text))?;
    Ok(match worst {
        Some(Severity::Problem) => code::NO,
        _ => 0,
    })
}
