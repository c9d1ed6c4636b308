//! `cargo xtask lines`: how much code there is, what of it has to be right for exclusion and tokens,
//! which files are small or large, and import circles. Fails where there is a circle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::circles;
use crate::mutants;
use crate::sources::{self, SourceFile};

/// What an aim is set for: core, compose and the drivers.
const COUNTED: [&str; 7] = [
    "lockkit-core",
    "lockkit-compose",
    "lockkit-redis",
    "lockkit-sql",
    "lockkit-zk",
    "lockkit-etcd",
    "lockkit-store",
];

/// The trusted base: `FILE or FOLDER/` in each line, below a heading for its part.
const TRUSTED: &str = include_str!("../trusted.txt");

const MAX_LINES: usize = 500;
/// Shorter files are listed: each should have a reason to be a file.
const FEW_LINES: usize = 40;

/// The chore.
pub(crate) fn run(_: &[String]) -> Result<ExitCode, String> {
    let mut files = BTreeMap::new();
    for member in sources::members()? {
        files.insert(member.clone(), sources::of_crate(&member)?);
    }
    let mut sum = 0;
    println!("lines of code (Rust, Lua, SQL below src; no blank lines, comments, tests)");
    for name in COUNTED {
        let code: usize = files[name].iter().map(SourceFile::code_lines).sum();
        sum += code;
        println!("{code:>8}  {name}");
    }
    println!("{sum:>8}  core, compose and drivers");
    let mut all = 0;
    println!("\nlines with comments, without tests");
    for (name, files) in &files {
        let lines: usize = files.iter().map(SourceFile::lines).sum();
        all += lines;
        println!("{lines:>8}  {name}");
    }
    println!("{all:>8}  the workspace");
    print_trusted(&files.values().flatten().collect::<Vec<_>>())?;
    println!("\nfiles below {FEW_LINES} lines");
    for file in files.values().flatten().filter(|file| file.lines() < FEW_LINES) {
        println!("{:>8}  {} ({} of code)", file.lines(), file.path.display(), file.code_lines());
    }
    let mut is_circular = false;
    println!("\nimport circles");
    for (name, files) in &files {
        for circle in circles::of(files) {
            is_circular = true;
            println!("  {name}:");
            for edge in circles::edges_within(files, &circle) {
                println!("    {edge}");
            }
        }
    }
    Ok(if is_circular { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_trusted(files: &[&SourceFile]) -> Result<(), String> {
    println!("\nthe trusted base: lines of code that have to be right for exclusion and tokens");
    let mutants = mutants::files()?;
    let mut sums = (0, 0);
    for (part, paths) in trusted()? {
        let in_part = |path: &Path| paths.iter().any(|start| path.starts_with(start));
        let found: Vec<_> = files.iter().filter(|file| in_part(&file.path)).collect();
        let code: usize = found.iter().map(|file| file.code_lines()).sum();
        let changes = mutants.iter().filter(|file| in_part(Path::new(file))).count();
        println!("{code:>8}  {part}: {} files, {changes} mutants", found.len());
        sums = (sums.0 + code, sums.1 + changes);
    }
    println!("{:>8}  in all, {} mutants of {}", sums.0, sums.1, mutants.len());
    Ok(())
}

/// The parts of the trusted base, each with its files and folders, all of which exist.
fn trusted() -> Result<Vec<(String, Vec<String>)>, String> {
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for line in TRUSTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_suffix(':'), parts.last_mut()) {
            (Some(part), _) => parts.push((part.to_owned(), Vec::new())),
            (None, Some((_, paths))) => paths.push(line.trim().to_owned()),
            (None, None) => return Err(format!("trusted.txt: no part above {line}")),
        }
    }
    let missing: Vec<_> = parts
        .iter()
        .flat_map(|(_, paths)| paths)
        .filter(|path| !crate::places::root().join(path).exists())
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        return Err(format!("trusted.txt names what is not there: {}", missing.join(", ")));
    }
    Ok(parts)
}

/// What is wrong with the sizes of files, and the circles between them.
pub(crate) fn wrong() -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for member in sources::members()? {
        let files = sources::of_crate(&member)?;
        found.extend(files.iter().filter(|file| file.lines() > MAX_LINES).map(|file| {
            format!("{} has {} lines, more than {MAX_LINES}", file.path.display(), file.lines())
        }));
        found.extend(circular(&member, &files));
    }
    trusted().map(|_| found)
}

/// The import circles of a crate, in a line each.
fn circular(member: &str, files: &[SourceFile]) -> Vec<String> {
    let line = |circle: Vec<PathBuf>| {
        let edges = circles::edges_within(files, &circle).join("; ");
        format!("{member}: files that import each other: {edges}")
    };
    circles::of(files).into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_files_import_each_other_in_a_circle() {
        for member in sources::members().expect("they are listed") {
            let files = sources::of_crate(&member).expect("they are read");
            let found = circular(&member, &files);
            assert!(found.is_empty(), "{found:#?}");
        }
    }

    #[test]
    fn the_files_of_the_trusted_base_exist() {
        let parts = super::trusted().expect("each is there");
        assert!(parts.iter().all(|(_, paths)| !paths.is_empty()), "{parts:?}");
    }
}
