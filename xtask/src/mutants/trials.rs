//! Tries mutants: builds those of functions once, and makes the others one by one. May not read the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use super::copy::{Edited, Programs, WorkingCopy};
use super::schemata::{self, Rewritten};
use super::selection::Selection;
use super::{Kind, Mutant, texts};
use crate::places::root;
use crate::{python, sources, typescript};

/// How long the tests of a client may take: a mutant can make them wait for ever.
const TESTING: Duration = Duration::from_secs(300);

/// The copy with all mutants of functions, built, and how it behaves without any.
pub(super) struct Trials {
    copy: WorkingCopy,
    /// The texts of the copy that have room for their changes.
    texts: BTreeMap<String, String>,
    /// The mutants that are chosen when a program runs.
    chosen_at_run_time: BTreeSet<usize>,
    /// The tests that fail without a mutant: they convict none.
    failing: Vec<String>,
    /// The tests of clients that pass without one.
    passing: Mutex<BTreeSet<String>>,
}

/// The names of the tests that failed; none where the mutant survived.
pub(super) type Verdict = Result<Option<Vec<String>>, String>;

impl Trials {
    /// Builds the copy, without those mutants of functions that do not compile beside the function.
    pub(super) fn new(all: &[Mutant]) -> Result<Self, String> {
        let copy = WorkingCopy::new();
        let mut unfit = BTreeSet::new();
        loop {
            let (functions, texts) = contents(all, &unfit)?;
            let rewritten = functions.iter().map(|(file, it)| (file.clone(), it.text.clone()));
            copy.write(&rewritten.chain(texts.clone()).collect())?;
            let Err(said) = copy.build() else {
                let bodies = functions.values().flat_map(|file| &file.bodies);
                let chosen_at_run_time = bodies.flat_map(|body| body.numbers.clone()).collect();
                let (failing, passing) = (Vec::new(), Mutex::default());
                return Ok(Self { copy, texts, chosen_at_run_time, failing, passing });
            };
            let found: Vec<_> = errors(&said, &functions).collect();
            if found.is_empty() {
                return Err(format!("the mutants do not compile:\n{said}"));
            }
            eprintln!("made one by one, as they do not compile with the others: {found:?}");
            unfit.extend(found);
        }
    }

    /// Runs the tests of these mutants without a mutant; returns those that fail.
    pub(super) fn run_unchanged(&mut self, mutants: &[&Mutant]) -> Result<&[String], String> {
        let of_rust = mutants.iter().filter(|mutant| !mutant.kind().is_of_a_client());
        let filters: BTreeSet<_> =
            of_rust.map(|mutant| format!("({})", Selection::new(&mutant.test).filter())).collect();
        if !filters.is_empty() {
            let filter = filters.into_iter().collect::<Vec<_>>().join(" | ");
            self.failing = self.copy.failing(&filter)?;
        }
        Ok(&self.failing)
    }

    /// Whether the mutant cannot be tried with what is built.
    pub(super) fn needs_a_build(&self, mutant: &Mutant) -> bool {
        mutant.kind() == Kind::Function && !self.chosen_at_run_time.contains(&mutant.number)
    }

    /// Tries the mutant with what is built.
    pub(super) fn verdict(&self, mutant: &Mutant) -> Verdict {
        let list = self.copy.list_of(Programs::Everything);
        match mutant.kind() {
            Kind::Function => {
                self.run(list, mutant, Some((schemata::CHOICE, &mutant.number.to_string())))
            }
            Kind::Text => self.with_text(mutant),
            Kind::File => {
                let _edited = self.edited(mutant)?;
                self.run(list, mutant, None)
            }
            Kind::Python | Kind::TypeScript => self.of_client(mutant),
        }
    }

    /// Builds the mutant by itself, and tries it.
    pub(super) fn verdict_by_itself(&self, mutant: &Mutant) -> Verdict {
        let _edited = self.edited(mutant)?;
        self.copy.build_part(&Selection::new(&mutant.test))?;
        self.run(self.copy.list_of(Programs::Part), mutant, None)
    }

    fn edited(&self, mutant: &Mutant) -> Result<Edited, String> {
        Edited::new(self.copy.path(&mutant.file), &mutant.changed()?)
    }

    fn run(&self, list: &Path, mutant: &Mutant, choice: Option<(&str, &str)>) -> Verdict {
        let selection = Selection::new(&mutant.test);
        let mut filter = selection.filter();
        for failing in &self.failing {
            let mut words = failing.split(' ');
            let (program, name) = (words.next().unwrap_or_default(), words.next());
            let name = name.unwrap_or_default();
            filter += &format!(" & not (binary_id(={program}) & test(={name}))");
        }
        let environment: Vec<_> = selection.environment.into_iter().chain(choice).collect();
        let failed = self.copy.run(list, &filter, &environment)?;
        Ok((!failed.is_empty()).then_some(failed))
    }

    /// Runs copies of the programs that have the text, with the change in it.
    fn with_text(&self, mutant: &Mutant) -> Verdict {
        let text = self.texts.get(&mutant.file).ok_or("it is not in the copy")?;
        let selection = Selection::new(&mutant.test);
        let (mut list, programs) = self.copy.programs()?;
        let mut patched = Removed(Vec::new());
        for (id, path) in programs {
            let to = path.with_extension(format!("mutant{}", mutant.number));
            if selection.has(&id) && texts::patch(&path, &to, text, mutant)? {
                list = list.replace(&quoted(&path), &quoted(&to));
                patched.0.push(to);
            }
        }
        let Some(first) = patched.0.first() else { return Ok(None) };
        let its_list = first.with_extension(format!("mutant{}.json", mutant.number));
        std::fs::write(&its_list, list).map_err(|error| error.to_string())?;
        patched.0.push(its_list.clone());
        self.run(&its_list, mutant, None)
    }

    fn of_client(&self, mutant: &Mutant) -> Verdict {
        let run = || match mutant.kind() {
            Kind::Python => self.in_python(mutant),
            _ => self.in_typescript(mutant),
        };
        let key = format!("{:?} {}", mutant.kind(), mutant.test);
        if !self.passing().contains(&key) {
            if let Some(failed) = run()? {
                return Err(format!("its tests fail without it: {}", failed.join(", ")));
            }
            self.passing().insert(key);
        }
        let _edited = self.edited(mutant)?;
        run()
    }

    fn passing(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.passing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn in_python(&self, mutant: &Mutant) -> Verdict {
        let mut tests = python::tests();
        tests.args(["--exitfirst"]).args(mutant.test.split(' '));
        tests.current_dir(self.copy.path("clients/python"));
        tests.env("LOCKKIT_BIN", self.copy.command_that_was_built());
        let ended = tests.output().map_err(|error| format!("{tests:?}: {error}"))?;
        let said = String::from_utf8_lossy(&ended.stdout);
        let failed = said.lines().filter_map(|line| line.strip_prefix("FAILED "));
        match ended.status.code() {
            Some(0) => Ok(None),
            Some(1) => Ok(Some(failed.map(str::to_owned).collect())),
            _ => Err(format!("no test was run: {}\n{said}", ended.status)),
        }
    }

    fn in_typescript(&self, mutant: &Mutant) -> Verdict {
        let client = self.copy.path("clients/typescript");
        let packages = client.join("node_modules");
        if !packages.exists() {
            typescript::ensure()?;
            std::os::unix::fs::symlink(root().join("clients/typescript/node_modules"), packages)
                .map_err(|error| error.to_string())?;
        }
        let files: Vec<_> = mutant.test.split(' ').map(str::to_owned).collect();
        let in_client = |mut command: Command| {
            command.current_dir(&client).stdout(std::process::Stdio::null());
            command.env("LOCKKIT_BIN", self.copy.command_that_was_built());
            typescript::finish(&mut command, TESTING)
        };
        in_client(typescript::checks()).map_err(|why| format!("it does not compile: {why}"))?;
        Ok(in_client(typescript::tests(&files)).err().map(|_| files))
    }
}

/// Files that are removed when this is dropped.
struct Removed(Vec<std::path::PathBuf>);

impl Drop for Removed {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

/// What the copy has instead of files with mutants: Rust with all but those that are unfit, and texts
/// with room.
type Contents = (BTreeMap<String, Rewritten>, BTreeMap<String, String>);

fn contents(all: &[Mutant], unfit: &BTreeSet<usize>) -> Result<Contents, String> {
    let mut of_files = BTreeMap::<_, Vec<&Mutant>>::new();
    for mutant in all.iter().filter(|mutant| !unfit.contains(&mutant.number)) {
        of_files.entry((mutant.kind(), &mutant.file)).or_default().push(mutant);
    }
    let (mut functions, mut others) = (BTreeMap::new(), BTreeMap::new());
    for ((kind, file), mutants) in of_files {
        let text = sources::read(&root().join(file))?;
        match kind {
            Kind::Function => {
                let rewritten = schemata::rewrite(&text, &mutants);
                let rewritten = rewritten.map_err(|error| format!("{file}: {error}"))?;
                functions.insert(file.clone(), rewritten);
            }
            Kind::Text => drop(others.insert(file.clone(), texts::with_room(&text, &mutants))),
            _ => {}
        }
    }
    Ok((functions, others))
}

/// The mutants in whose bodies the compiler found errors: `FILE:LINE:COLUMN: error: …`.
fn errors(said: &str, functions: &BTreeMap<String, Rewritten>) -> impl Iterator<Item = usize> {
    let lines = said.lines().filter(|line| line.contains(": error"));
    let found = lines.filter_map(|line| {
        let mut parts = line.split(':');
        let file = functions.get(parts.next()?)?;
        Some(file.at(parts.next()?.parse().ok()?).to_vec())
    });
    found.flatten().collect::<BTreeSet<_>>().into_iter()
}
