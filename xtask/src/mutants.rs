//! `cargo xtask mutants [--check] [WORD|FROM-TO…]`: makes the changes of `mutants.txt`, and runs the test
//! that must fail for each. Says which survived. Changes nothing in the workspace: it works on a copy.
//!
//! Changes of functions are built all at once, and the environment chooses one when a test runs; changed
//! texts are put into the programs. What cannot be tried like this is built by itself, at the end: other
//! changes of Rust, and what survived, since a program may have been started without the environment.
//! No server is started beforehand: a test starts those that it needs.

mod copy;
mod schemata;
mod selection;
mod texts;
mod trials;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::places::root;
use crate::{install, sources};
use trials::{Trials, Verdict};

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

/// How a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Function,
    Text,
    /// What is read when the test runs.
    File,
    Python,
    TypeScript,
}

impl Kind {
    fn is_of_a_client(self) -> bool {
        matches!(self, Self::Python | Self::TypeScript)
    }
}

/// The chore. With `--check` it only looks whether each change can be made. Words choose those in whose
/// description or file one of them stands, numbers (`300-311`) those of the list from one to the other;
/// they are tried in the order of the words.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mutants = mutants()?;
    for mutant in &mutants {
        mutant.changed()?;
    }
    if arguments.iter().any(|word| word == "--check") {
        println!("{} changes can be made", mutants.len());
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen: Vec<_> = mutants.iter().filter(|m| m.order(arguments).is_some()).collect();
    chosen.sort_by_key(|mutant| mutant.order(arguments));
    install::all()?;
    let mut trials = Trials::new(&mutants)?;
    for test in trials.run_unchanged(&chosen)? {
        eprintln!("{test} fails without a mutant, so it counts for none");
    }
    let survivors = tried(&trials, chosen);
    println!("{survivors} survived without a reason, or could not be tried");
    Ok(if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tries these, two at once, and the rest by themselves; counts the survivors.
fn tried<'a>(trials: &Trials, mutants: Vec<&'a Mutant>) -> usize {
    let (alone, together): (Vec<_>, Vec<_>) =
        mutants.into_iter().partition(|mutant| trials.needs_a_build(mutant));
    // Changed files are there for all tests: one at a time of each kind.
    let of_kinds = |kinds: &[Kind]| {
        let of_them = together.iter().copied().filter(|mutant| kinds.contains(&mutant.kind()));
        Mutex::new(of_them.collect::<Vec<_>>().into_iter())
    };
    let built = of_kinds(&[Kind::Function, Kind::Text]);
    let edited = [&[Kind::File, Kind::Python][..], &[Kind::TypeScript]].map(of_kinds);
    let (alone, survivors) = (Mutex::new(alone), Mutex::new(0));
    let work = |queue: &Mutex<std::vec::IntoIter<&'a Mutant>>| {
        let next = || locked(queue, Iterator::next);
        while let Some(mutant) = next() {
            let verdict = trials.verdict(mutant);
            let may_be_missed = matches!(mutant.kind(), Kind::Function | Kind::Text)
                && matches!(verdict, Ok(None))
                && mutant.survives.is_empty();
            match may_be_missed {
                true => {
                    eprintln!("{} survived so far, and will be built by itself", mutant.number);
                    locked(&alone, |alone| alone.push(mutant));
                }
                false => locked(&survivors, |sum| *sum += usize::from(mutant.report(verdict))),
            }
        }
    };
    thread::scope(|scope| {
        let (work, built) = (&work, &built);
        for edited in &edited {
            scope.spawn(move || {
                work(built);
                work(edited);
            });
        }
    });
    let alone = alone.into_inner().unwrap_or_else(PoisonError::into_inner);
    let bad = alone.iter().filter(|mutant| mutant.report(trials.verdict_by_itself(mutant))).count();
    bad + survivors.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn locked<T, R>(of_all: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
    work(&mut of_all.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Mutant {
    fn kind(&self) -> Kind {
        let end = Path::new(&self.file).extension().and_then(|end| end.to_str());
        match (self.file.split('/').nth(1), end) {
            (Some("python"), _) => Kind::Python,
            (Some("typescript"), _) => Kind::TypeScript,
            (_, Some("rs")) => Kind::Function,
            (_, Some("sql" | "lua")) => Kind::Text,
            _ => Kind::File,
        }
    }

    /// The file with the change.
    fn changed(&self) -> Result<String, String> {
        let error = |error: String| format!("{}: {}: {error}", self.what, self.file);
        let text = sources::read(&root().join(&self.file)).map_err(error)?;
        match text.matches(&self.from).count() {
            1 => Ok(text.replace(&self.from, &self.to)),
            found => Err(error(format!("stands there {found} times, not once: {}", self.from))),
        }
    }

    /// Where it is in the order of the words; none where no word chooses it.
    fn order(&self, words: &[String]) -> Option<usize> {
        let names_it =
            |word: &String| match word.split_once('-').map(|(a, b)| (a.parse(), b.parse())) {
                Some((Ok(from), Ok(to))) => (from..=to).contains(&self.number),
                _ => self.what.contains(word) || self.file.contains(word),
            };
        if words.is_empty() { Some(0) } else { words.iter().position(names_it) }
    }

    /// Prints what became of it; says whether that is wrong.
    fn report(&self, verdict: Verdict) -> bool {
        let by = |tests: Vec<String>| format!(" by {}", tests.join(", "));
        let (word, more) = match (verdict, self.survives.is_empty()) {
            (Err(why), _) => ("ERROR", format!(": {why}")),
            (Ok(Some(tests)), true) => ("noticed", by(tests)),
            (Ok(Some(tests)), false) => {
                ("noticed, though the list says that it survives", by(tests))
            }
            (Ok(None), true) => ("SURVIVED", String::new()),
            (Ok(None), false) => ("survived, as the list says", String::new()),
        };
        println!("{} {word}: {} ({}){more}", self.number, self.what, self.file);
        matches!(word, "SURVIVED" | "ERROR")
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
        let order = |words: &[&str]| {
            mutant.order(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!([order(&[]), order(&["old-"]), order(&["1-3", "9-12"])], [0, 0, 1].map(Some));
        assert_eq!([order(&["10-12"]), order(&["9"])], [None; 2]);
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
