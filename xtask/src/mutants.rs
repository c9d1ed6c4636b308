//! `cargo xtask mutants [--check] [WORD…]`: makes the changes of `mutants.txt` one after the other, and
//! runs the test that must fail for each. Says which survived. May change no file but those, and
//! leaves them as they were.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use crate::places::root;

const LIST: &str = include_str!("../mutants.txt");

/// A change of the code that a test must notice.
#[derive(Debug, Default)]
struct Mutant {
    what: String,
    file: String,
    from: String,
    to: String,
    test: String,
    /// Why nothing notices it, where that is known.
    survives: String,
}

/// The chore. With `--check` it only looks whether each change can be made; words choose those in
/// whose description or file one of them stands.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let mutants = mutants()?;
    for mutant in &mutants {
        mutant.changed()?;
    }
    if arguments.iter().any(|word| word == "--check") {
        println!("{} changes can be made", mutants.len());
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = |m: &&Mutant| {
        let named =
            |word: &String| m.what.contains(word.as_str()) || m.file.contains(word.as_str());
        arguments.is_empty() || arguments.iter().any(named)
    };
    let mut survivors = 0;
    for mutant in mutants.iter().filter(chosen) {
        let noticed = mutant.is_noticed()?;
        let word = match (noticed, mutant.survives.is_empty()) {
            (true, true) => "noticed",
            (true, false) => "noticed, though the list says that it survives",
            (false, true) => "SURVIVED",
            (false, false) => "survived, as the list says",
        };
        println!("{word}: {} ({})", mutant.what, mutant.file);
        survivors += usize::from(!noticed && mutant.survives.is_empty());
    }
    println!("{survivors} survived without a reason");
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

    /// Makes the change, runs the test, takes the change back. A change that does not compile is
    /// an error, not one that was noticed.
    fn is_noticed(&self) -> Result<bool, String> {
        let (before, after) = self.changed()?;
        let _restored = Restored { path: self.path(), before };
        std::fs::write(self.path(), after).map_err(|e| format!("{}: {e}", self.file))?;
        let (chore, looks) = match self.file.split('/').nth(1) {
            Some("python") => ("python", "--collect-only"),
            Some("typescript") => ("typescript", "--build"),
            _ => ("test", "--no-run"),
        };
        let test = |more: &[&str]| {
            let mut command = Command::new(env!("CARGO"));
            command.current_dir(root()).args(["xtask", chore]).args(self.test.split(' '));
            command.args(more).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().map_err(|e| format!("cargo xtask {chore}: {e}"))
        };
        if !test(&[looks])?.success() {
            return Err(format!("{}: the change does not compile", self.what));
        }
        Ok(!test(&[])?.success())
    }
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
    blocks.map(|block| parse(block.trim_end())).collect()
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
    fn a_change_may_have_several_lines() {
        let mutant =
            parse("what: a\nfile: b\nfrom: c\n  d: e\nto: f\ntest: -p g").expect("it is whole");
        assert_eq!(mutant.from, "c\n  d: e");
        assert_eq!((mutant.to.as_str(), mutant.survives.as_str()), ("f", ""));
        assert!(parse("what: a\nfile: b").is_err());
    }
}
