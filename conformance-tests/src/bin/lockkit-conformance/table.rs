//! The forms in which results are printed.

use lockkit::Capabilities;
use lockkit_conformance::broken::Caught;
use lockkit_conformance::{Case, Outcome, Report, promises, semantics};
use serde_json::json;

/// One line a case.
pub(crate) fn cases(cases: &[Case]) {
    for case in cases {
        println!("{:<12} {}", case.group, case.name);
    }
}

/// For people at a terminal.
pub(crate) fn plain(capabilities: &Capabilities, reports: &[Report]) {
    for report in reports {
        let (word, why) = words(&report.outcome);
        println!("{word:<4} {:>6} ms  {}{}", report.millis, report.case, after(": ", why));
    }
    println!("\n{}", summary(capabilities, reports));
}

/// For documents.
pub(crate) fn markdown(capabilities: &Capabilities, reports: &[Report]) {
    println!("| group | case | {} |\n| --- | --- | --- |", capabilities.backend);
    for report in reports {
        let (word, why) = words(&report.outcome);
        let why = why.replace('|', "\\|").replace('\n', " ");
        println!("| {} | `{}` | {word}{} |", report.group, report.case, after(": ", &why));
    }
    println!("\n{}\n", summary(capabilities, reports));
    let line = semantics::row_with(capabilities.backend, capabilities, reports);
    println!("{}{line}\n{}", semantics::heading(), semantics::footnotes());
    let faults = promises::table(&[(capabilities.backend, capabilities)]);
    println!("{faults}\n{}", promises::FOOTNOTE);
}

/// For programs.
pub(crate) fn json(capabilities: &Capabilities, reports: &[Report]) {
    let all = json!({ "capabilities": capabilities, "cases": reports });
    println!("{all:#}");
}

/// One line a broken driver.
pub(crate) fn broken(caught: &Caught, outcome: &Outcome) {
    let (word, why) = match outcome {
        Outcome::Failed(why) => ("caught", why.lines().next().unwrap_or_default()),
        _ => ("ESCAPED", ""),
    };
    println!(
        "{word:<7} {:?}: {}\n        {}{}",
        caught.bug,
        caught.says,
        caught.by,
        after(": ", why)
    );
}

fn words(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Passed => ("pass", ""),
        Outcome::Failed(why) => ("FAIL", why),
        Outcome::NotApplicable(why) => ("n/a", why),
    }
}

fn after(separator: &str, text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("{separator}{text}"),
    }
}

fn summary(capabilities: &Capabilities, reports: &[Report]) -> String {
    let count = |wanted: &str| reports.iter().filter(|r| words(&r.outcome).0 == wanted).count();
    format!(
        "{}: {} passed, {} failed, {} not applicable",
        capabilities.backend,
        count("pass"),
        count("FAIL"),
        count("n/a")
    )
}
