//! `doctor`: how the backend is, whether locks work on it, and what to do about it.

use lockkit::capabilities::Guarantee;
use lockkit::state::{Finding, Health, Severity};
use lockkit::{Error, LockManager};

use crate::acquire;
use crate::args::BackendArgs;
use crate::args::inspect::DoctorArgs;
use crate::backend::Backend;
use crate::exit::{Ending, ExitError, code};
use crate::output::{self, Style, printable, styled};
use crate::run::signals::Signals;

pub(crate) async fn doctor(args: &DoctorArgs, backend: &BackendArgs) -> Result<Ending, ExitError> {
    let backend = Backend::choose(backend)?;
    if args.promises {
        return promises(&backend).await;
    }
    let mut signals = Signals::ending()?;
    let mut opened = Vec::new();
    let examined = tokio::select! {
        biased;
        signal = signals.next() => {
            Err(ExitError::signal(signal, "interrupted while checking the backend"))
        }
        examined = examine(args, &backend, &mut opened) => examined,
    };
    // Also when it was interrupted: what was tried is taken back.
    for locks in &opened {
        acquire::close_after(locks, &examined).await;
    }
    let health = examined?;
    output::print(&report(&backend, &health))?;
    Ok(Ending::Code(match worst(&health) {
        Some(Severity::Problem) => code::NO,
        _ => 0,
    }))
}

/// The row of these servers in the table of faults.
async fn promises(backend: &Backend) -> Result<Ending, ExitError> {
    let locks = backend.connect().await?;
    let promises = locks.promises().await.map_err(ExitError::from);
    acquire::close_after(&locks, &promises).await;
    let mut text = format!("backend  {}\n", printable(&backend.url_without_passwords()));
    for promise in promises?.all() {
        let title = promise.fault.title().trim_end_matches(['²', '³']);
        let (word, why) = (promise.word(), printable(&promise.why));
        let style = match promise.keeps {
            Some(Guarantee::All | Guarantee::Impossible) => Style::Good,
            Some(Guarantee::Tokens) | None => Style::Warning,
            Some(Guarantee::Nothing) => Style::Bad,
        };
        let word = styled(style, &format!("{word:8}"));
        text.push_str(&format!("{word}  {title}\n            {why}\n"));
    }
    text.push_str("fencing only: two may hold at once, the later one has the greater token\n");
    output::print(&text)?;
    Ok(Ending::Code(0))
}

/// Adds the connections that it makes to `opened`.
async fn examine(
    args: &DoctorArgs,
    backend: &Backend,
    opened: &mut Vec<LockManager>,
) -> Result<Health, ExitError> {
    let locks = match backend.connect().await {
        Ok(locks) => locks,
        Err(failure) if failure.is_of_the_backend() && !failure.passing => {
            // It answers, and refuses.
            let what = failure.sentence.unwrap_or_default();
            let advice = "no lock can be taken before that is mended".to_owned();
            let refused = Finding::new(Severity::Problem, what, advice);
            return Ok(Health::well("unknown").with(refused));
        }
        Err(failure) => return Err(failure),
    };
    opened.push(locks.clone());
    let Health { server, findings, .. } = locks.health().await?;
    let tried = match args.read_only {
        true => Vec::new(),
        false => try_members(backend, opened).await?,
    };
    // What was tried weighs more than what was read.
    Ok(tried.into_iter().chain(findings).fold(Health::well(server), Health::with))
}

/// Tries locks on each of the backends that this one is made of.
async fn try_members(
    backend: &Backend,
    opened: &mut Vec<LockManager>,
) -> Result<Vec<Finding>, ExitError> {
    let members = backend.members()?;
    let mut all = Vec::new();
    for member in &members {
        let found = try_one(member, opened).await.unwrap_or_else(|error| vec![untried(&error)]);
        all.extend(found.into_iter().map(|mut finding| {
            finding.what = member.named(&finding.what);
            match members.len() {
                1 => finding,
                _ => finding.at(&member.url_without_passwords()),
            }
        }));
    }
    Ok(all)
}

/// Between two connections: within one, a lock is handed over without a message.
async fn try_one(member: &Backend, opened: &mut Vec<LockManager>) -> Result<Vec<Finding>, Error> {
    let mut pair = Vec::new();
    for _ in 0..2 {
        let locks = member.connect_again().await?;
        opened.push(locks.clone());
        pair.push(locks);
    }
    pair[0].probe(&pair[1]).await
}

fn untried(error: &Error) -> Finding {
    let (severity, advice) = match error.is_retryable() {
        true => (Severity::Note, "ask again once it answers"),
        false => (Severity::Problem, "no lock can be taken there before that is mended"),
    };
    let what = format!("locks could not be tried: {error}");
    Finding::new(severity, what, advice)
}

fn worst(health: &Health) -> Option<Severity> {
    health.findings.iter().map(|finding| finding.severity).max()
}

fn report(backend: &Backend, health: &Health) -> String {
    let (shown, server) = (printable(&backend.url_without_passwords()), printable(&health.server));
    let mut text = format!("backend  {shown}\nserver   {server}\n");
    for finding in &health.findings {
        let (style, severity) = match finding.severity {
            Severity::Note => (Style::Faint, "note"),
            Severity::Warning => (Style::Warning, "warning"),
            Severity::Problem => (Style::Bad, "PROBLEM"),
        };
        let severity = styled(style, &format!("{severity:8}"));
        let (what, advice) = (printable(&finding.what), printable(&finding.advice));
        text.push_str(&format!("{severity} {what}\n         {advice}\n"));
    }
    let (style, summary) = match worst(health) {
        None => (Style::Good, "all is well"),
        Some(Severity::Note) => (Style::Good, "all is well otherwise"),
        Some(Severity::Warning) => (Style::Warning, "locks work; see the warnings"),
        Some(Severity::Problem) => (Style::Bad, "locks do not work, or do not hold: see above"),
    };
    text.push_str(&format!("{}\n", styled(style, summary)));
    text
}
