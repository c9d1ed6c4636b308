//! `cargo xtask mutants [--check] [WORD|FROM-TO…]`: makes the changes of `mutants.txt` one after the
//! other, and runs the test that must fail for each. Says which survived. May change no file but those,
//! and leaves them as they were.
//!
//! Only the package of the test is built. No server is started beforehand: a test starts those that it
//! needs. Changes of one crate follow each other, so that the crates below it are built once.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output};

use crate::places::root;
use crate::{failures, install};

/// How the runner ends when a test has failed; anything else, such as no test, is no conviction.
const TESTS_FAILED: i32 = 100;
/// Its profile: it ends with the first test that fails.
const PROFILE: &str = "mutants";

const LIST: &str = include_str!("../mutants.txt");

/// A change of the code that a test must notice.
#[derive(Debug, Default)]
struct Mutant {
    /// Its position in the list, from 1.
    number: usize,
    what: String,
    file: String,
    from: String,
    to: String,
    test: String,
    /// Why nothing notices it, where that is known.
    survives: String,
}

/// The chore. With `--check` it only looks whether each change can be made. Words choose those in whose
/// description or file one of them stands, numbers (`300-311`) those of the list from one to the other.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mutants = mutants()?;
    for mutant in &mutants {
        mutant.changed()?;
    }
    if arguments.iter().any(|word| word == "--check") {
        println!("{} changes can be made", mutants.len());
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen: Vec<_> = mutants.iter().filter(|m| m.is_named_by(arguments)).collect();
    chosen.sort_by_key(|m| (m.file.split('/').next(), &m.test));
    install::all()?;
    build_examples(&chosen)?;
    let mut survivors = 0;
    for mutant in chosen {
        let (word, by) = match (mutant.noticed_by(), mutant.survives.is_empty()) {
            (Err(why), _) => ("ERROR", format!(": {why}")),
            (Ok(Some(by)), true) => ("noticed", by),
            (Ok(Some(by)), false) => ("noticed, though the list says that it survives", by),
            (Ok(None), true) => ("SURVIVED", String::new()),
            (Ok(None), false) => ("survived, as the list says", String::new()),
        };
        println!("{} {word}: {} ({}){by}", mutant.number, mutant.what, mutant.file);
        survivors += usize::from(matches!(word, "SURVIVED" | "ERROR"));
    }
    println!("{survivors} survived without a reason, or could not be tried");
    Ok(if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Mutant {
    fn path(&self) -> PathBuf {
        root().join(&self.file)
    }

    /// The file as it is, and with the change.
    fn changed(&self) -> Result<(String, String), String> {
        let error = |error: String| format!("{}: {}: {error}", self.what, self.file);
        let text = std::fs::read_to_string(self.path()).map_err(|e| error(e.to_string()))?;
        match text.matches(&self.from).count() {
            1 => Ok((text.clone(), text.replace(&self.from, &self.to))),
            found => Err(error(format!("stands there {found} times, not once: {}", self.from))),
        }
    }

    fn is_named_by(&self, words: &[String]) -> bool {
        let names_it =
            |word: &String| match word.split_once('-').map(|(a, b)| (a.parse(), b.parse())) {
                Some((Ok(from), Ok(to))) => (from..=to).contains(&self.number),
                _ => self.what.contains(word) || self.file.contains(word),
            };
        words.is_empty() || words.iter().any(names_it)
    }

    /// Makes the change, runs the test, takes the change back; says which test has failed, if one has.
    /// A change that does not compile is an error, not one that was noticed.
    fn noticed_by(&self) -> Result<Option<String>, String> {
        let (before, after) = self.changed()?;
        let _restored = Restored { path: self.path(), before };
        std::fs::write(self.path(), after).map_err(|e| format!("{}: {e}", self.file))?;
        let (chore, builds, fails_fast): (&[&str], _, _) = match self.file.split('/').nth(1) {
            Some("python") => (&["xtask", "python"], "--collect-only", Some("--exitfirst")),
            Some("typescript") => (&["xtask", "typescript"], "--build", None),
            _ => (&["nextest", "run"], "--no-run", None),
        };
        let run = |more| output(chore, self.test.split(' ').chain(more));
        let built = run(Some(builds))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(format!("it does not compile, or has no test:\n{said}"));
        }
        failures::forget(PROFILE);
        let ended = run(fails_fast)?.status;
        let by = failures::all(PROFILE).into_iter().map(|failure| failure.test).collect::<Vec<_>>();
        match ended.code() {
            Some(0) => Ok(None),
            Some(TESTS_FAILED) => Ok(Some(format!(" by {}", by.join(", ")))),
            Some(_) if chore[0] == "xtask" => Ok(Some(String::new())),
            _ => Err(format!("no test was run: {ended}")),
        }
    }
}

/// Builds the programs that tests start, which are examples of the packages and of the lab: a test that is
/// chosen by its name would not have them.
fn build_examples(chosen: &[&Mutant]) -> Result<(), String> {
    let words = chosen.iter().flat_map(|mutant| mutant.test.split(' '));
    let has_examples = |package: &&str| root().join(package).join("examples").is_dir();
    let mut packages: BTreeSet<_> = words.filter(has_examples).collect();
    if !packages.is_empty() {
        packages.insert("lockkit-lab");
    }
    for package in packages {
        let built = output(&["build", "--examples", "--package"], [package].into_iter())?;
        if !built.status.success() {
            return Err(String::from_utf8_lossy(&built.stderr).into_owned());
        }
    }
    Ok(())
}

fn output<'a>(chore: &[&str], arguments: impl Iterator<Item = &'a str>) -> Result<Output, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).env("NEXTEST_PROFILE", PROFILE).args(chore).args(arguments);
    command.output().map_err(|error| format!("{command:?}: {error}"))
}

/// A file that is as it was when this is dropped.
struct Restored {
    path: PathBuf,
    before: String,
}

impl Drop for Restored {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.path, &self.before) {
            eprintln!("{} has still the change in it: {error}", self.path.display());
        }
    }
}

/// The file of each change.
pub(crate) fn files() -> Result<Vec<String>, String> {
    Ok(mutants()?.into_iter().map(|mutant| mutant.file).collect())
}

/// Reads the list.
fn mutants() -> Result<Vec<Mutant>, String> {
    let blocks = LIST.split("\n\n").filter(|block| !block.starts_with('#'));
    let numbered = |(number, block): (usize, &str)| {
        parse(block.trim_end()).map(|mutant| Mutant { number, ..mutant })
    };
    (1..).zip(blocks).map(numbered).collect()
}

fn parse(block: &str) -> Result<Mutant, String> {
    let mut mutant = Mutant::default();
    let mut last = String::new();
    for line in block.lines() {
        let field = line.split_once(": ").filter(|(name, _)| mutant.field(name).is_some());
        let (name, text) = match field {
            Some((name, text)) => (name.to_owned(), text.to_owned()),
            // One more line of what began above.
            None => (last.clone(), format!("\n{line}")),
        };
        mutant.field(&name).ok_or_else(|| format!("no field: {line}"))?.push_str(&text);
        last = name;
    }
    let all = [&mutant.what, &mutant.file, &mutant.from, &mutant.to, &mutant.test];
    match all.iter().all(|field| !field.is_empty()) {
        true => Ok(mutant),
        false => Err(format!("something is missing: {block}")),
    }
}

impl Mutant {
    fn field(&mut self, name: &str) -> Option<&mut String> {
        Some(match name {
            "what" => &mut self.what,
            "file" => &mut self.file,
            "from" => &mut self.from,
            "to" => &mut self.to,
            "test" => &mut self.test,
            "survives" => &mut self.survives,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_chosen_by_a_word_or_by_their_numbers() {
        let mutant =
            Mutant { number: 9, what: "an old-fashioned one".to_owned(), ..Mutant::default() };
        let is_named_by = |words: &[&str]| {
            mutant.is_named_by(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert!(is_named_by(&[]) && is_named_by(&["old-"]) && is_named_by(&["1-3", "9-12"]));
        assert!(!is_named_by(&["10-12"]) && !is_named_by(&["9"]));
    }

    #[test]
    fn a_change_may_have_several_lines() {
        let mutant =
            parse("what: a\nfile: b\nfrom: c\n  d: e\nto: f\ntest: -p g").expect("it is whole");
        assert_eq!(mutant.from, "c\n  d: e");
        assert_eq!((mutant.to.as_str(), mutant.survives.as_str()), ("f", ""));
        assert!(parse("what: a\nfile: b").is_err());
    }
}
