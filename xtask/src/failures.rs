//! The tests that failed in the last run, each with its message and the command that runs it alone. The
//! runner writes a report, as `.config/nextest.toml` asks it to.

use std::fs;
use std::path::PathBuf;

use crate::places;

/// The most lines that are shown of a message.
const LINES: usize = 20;

/// A test that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Its name.
    pub(crate) test: String,
    /// Runs it alone.
    pub(crate) command: String,
    /// What it said, as far as the report has it.
    pub(crate) message: String,
}

/// The runner's profile.
pub(crate) fn profile() -> String {
    std::env::var("NEXTEST_PROFILE").unwrap_or_else(|_| "default".to_owned())
}

fn report(profile: &str) -> PathBuf {
    places::target().join("nextest").join(profile).join("junit.xml")
}

/// Removes the report of an earlier run.
pub(crate) fn forget(profile: &str) {
    let _ = fs::remove_file(report(profile));
}

/// The tests that failed.
pub(crate) fn all(profile: &str) -> Vec<Failure> {
    of_report(&fs::read_to_string(report(profile)).unwrap_or_default())
}

fn of_report(report: &str) -> Vec<Failure> {
    let mut found = Vec::new();
    for suite in report.split("<testsuite ").skip(1) {
        let program = attribute(suite, "name");
        for test in suite.split("<testcase ").skip(1) {
            if test.contains("<failure") || test.contains("<error") {
                let which = program.split_once("::").map_or_else(
                    || format!("{program} --lib"),
                    |(package, target)| match target.split_once('/') {
                        Some((kind, name)) => format!("{package} --{kind} {name}"),
                        None => format!("{package} --test {target}"),
                    },
                );
                let name = attribute(test, "name");
                let command = format!("cargo xtask test -p {which} -- --exact {name}");
                found.push(Failure { test: name.to_owned(), command, message: message(test) });
            }
        }
    }
    found
}

/// What the report says about a test that failed: the text of the failure, or its attribute.
fn message(test: &str) -> String {
    let element = ["<failure", "<error"].iter().find_map(|tag| test.split_once(tag));
    let Some((_, rest)) = element else { return String::new() };
    let Some((opening, body)) = rest.split_once('>') else { return String::new() };
    let body = body.split_once("</").map_or("", |(body, _)| body).trim();
    let text = match body {
        "" => attribute(opening, "message"),
        text => text,
    };
    let text = ["&lt;<", "&gt;>", "&quot;\"", "&apos;'", "&amp;&"].iter().fold(
        text.to_owned(),
        |text, pair| {
            let (escaped, plain) = pair.split_at(pair.len() - 1);
            text.replace(escaped, plain)
        },
    );
    text.lines().take(LINES).collect::<Vec<_>>().join("\n")
}

/// The value of an attribute of the element that begins here.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!("{name}=\"")).map_or("", |(_, rest)| rest);
    value.split_once('"').map_or(value, |(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_test_gets_its_command() {
        let report = r#"<testsuites><testsuite name="lockkit-redis::redis" tests="2">
            <testcase name="line_01" time="0.1"></testcase>
            <testcase name="cluster::line_02"><failure type="test failure">a &lt; b
at lib.rs:3</failure></testcase>
            </testsuite><testsuite name="lockkit-core" tests="1">
            <testcase name="queue::tests::a"><error message="no &quot;a&quot;"/></testcase></testsuite>
            <testsuite name="xtask::bin/xtask"><testcase name="b"><failure/></testcase></testsuite>"#;
        let expected = [
            ("-p lockkit-redis --test redis -- --exact cluster::line_02", "a < b\nat lib.rs:3"),
            ("-p lockkit-core --lib -- --exact queue::tests::a", "no \"a\""),
            ("-p xtask --bin xtask -- --exact b", ""),
        ]
        .map(|(arguments, message)| Failure {
            test: arguments.rsplit(' ').next().unwrap_or_default().to_owned(),
            command: format!("cargo xtask test {arguments}"),
            message: message.to_owned(),
        });
        assert_eq!(of_report(report), expected);
    }
}
