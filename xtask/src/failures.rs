//! The tests that failed in the last run, each with the command that runs it alone. The runner writes a
//! report, as `.config/nextest.toml` asks it to.

use std::fs;
use std::path::PathBuf;

use crate::places;

fn report() -> PathBuf {
    places::target().join("nextest/default/junit.xml")
}

/// Removes the report of an earlier run.
pub(crate) fn forget() {
    let _ = fs::remove_file(report());
}

/// A command for each test that failed.
pub(crate) fn commands() -> Vec<String> {
    of_report(&fs::read_to_string(report()).unwrap_or_default())
}

fn of_report(report: &str) -> Vec<String> {
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
                found.push(format!("cargo xtask test -p {which} -- --exact {name}"));
            }
        }
    }
    found
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
            <testcase name="cluster::line_02" time="0.1"><failure type="test failure"/></testcase>
            </testsuite><testsuite name="lockkit-core" tests="1">
            <testcase name="queue::tests::a"><error/></testcase></testsuite>
            <testsuite name="xtask::bin/xtask"><testcase name="b"><failure/></testcase></testsuite>"#;
        let expected = [
            "cargo xtask test -p lockkit-redis --test redis -- --exact cluster::line_02",
            "cargo xtask test -p lockkit-core --lib -- --exact queue::tests::a",
            "cargo xtask test -p xtask --bin xtask -- --exact b",
        ];
        assert_eq!(of_report(report), expected);
    }
}
