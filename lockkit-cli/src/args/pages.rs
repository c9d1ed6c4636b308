//! Every `lockkit` command line in the documentation and in `examples` can be parsed.

use std::fs;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::str::Chars;

use clap::Parser;

use super::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The blocks of a page with commands, `console` without its output.
fn blocks(page: &str) -> String {
    let mut kept = String::new();
    let mut kind = None;
    let mut goes_on = false;
    for line in page.lines() {
        match (line.strip_prefix("```"), kind) {
            (Some(begun), None) => kind = Some(begun),
            (Some(_), Some(_)) => kind = None,
            (None, Some("console")) if goes_on || line.starts_with("$ ") => {
                goes_on = line.ends_with('\\');
                kept += line.trim_start_matches("$ ");
                kept.push('\n');
            }
            (None, Some("sh" | "crontab" | "ini")) => {
                kept += line;
                kept.push('\n');
            }
            _ => {}
        }
    }
    kept
}

/// The text up to this letter, behind which it goes on; nothing if the letter does not come.
fn up_to(end: char, letters: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut ahead = letters.clone();
    let text: String = ahead.by_ref().take_while(|letter| *letter != end).collect();
    let whole = letters.clone().any(|letter| letter == end);
    whole.then(|| {
        *letters = ahead;
        text
    })
}

/// The words of a command, up to what ends it in a shell: an operator, a comment, or the end of the
/// quotes or brackets around it.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => match up_to(letter, &mut letters) {
                Some(text) => word.get_or_insert_default().push_str(&text),
                None => break,
            },
            '\\' if letters.peek() == Some(&'\n') => drop(letters.next()),
            '\\' => word.get_or_insert_default().extend(letters.next()),
            '$' if letters.peek() == Some(&'(') => match up_to(')', &mut letters) {
                Some(text) => word.get_or_insert_default().push_str(&text),
                None => break,
            },
            ' ' => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\n' | ';' | '|' | '&' | '<' | '>' | ')' => break,
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// The command lines of lockkit in a text of commands.
fn lines(commands: &str) -> Vec<Vec<String>> {
    let begins = commands.match_indices("lockkit ").map(|(at, _)| at);
    let alone = begins.filter(|at| {
        commands[..*at]
            .chars()
            .next_back()
            .is_none_or(|before| matches!(before, ' ' | '\n' | '(' | '\'' | '"'))
    });
    alone.map(|at| words(&commands[at..])).collect()
}

/// Subcommands of features that are not compiled in. Built with `lab`, none is missing.
fn is_missing(subcommand: &str) -> bool {
    match subcommand {
        "top" => cfg!(not(feature = "top")),
        "serve" => cfg!(not(feature = "serve")),
        "compare" => cfg!(not(feature = "compare")),
        "storm" | "judge" => cfg!(not(feature = "lab")),
        _ => false,
    }
}

#[test]
fn every_command_line_in_the_documentation_is_one() {
    let mut pages = vec![root().join("README.md"), root().join("lockkit-cli/README.md")];
    files(&root().join("docs"), &mut pages);
    files(&root().join("examples/systemd"), &mut pages);
    files(&root().join("examples/recipes"), &mut pages);
    files(&root().join("examples/kubernetes"), &mut pages);
    let mut seen = 0;
    let mut wrong = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        let of_lists = text.lines().filter_map(|line| line.trim().strip_prefix("command: "));
        let of_lists = of_lists.filter_map(|list| serde_json::from_str::<Vec<String>>(list).ok());
        let of_lists = of_lists.filter(|list| list.first().is_some_and(|word| word == "lockkit"));
        let commands = match end {
            "md" => blocks(&text),
            "service" | "sh" => text.clone(),
            _ => String::new(),
        };
        for line in lines(&commands).into_iter().chain(of_lists) {
            seen += 1;
            let missing = line.get(1).is_some_and(|subcommand| is_missing(subcommand));
            if let Err(error) = Cli::try_parse_from(&line)
                && !missing
            {
                wrong.push(format!("{}: {line:?}\n{error}", path.display()));
            }
        }
    }
    assert!(seen > 60, "only {seen} were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_line_ends_where_a_shell_ends_it() {
    let page = "```console\n$ x=$(lockkit get \"a b\") || y\nlockkit run\n```\n\n```sh\n\
        lockkit run 'a b' -c 'lockkit ls; true' # c\neval \"$(lockkit hold \\\n  d)\"\n```\n";
    let found = lines(&blocks(page));
    let expected: [&[&str]; 4] = [
        &["lockkit", "get", "a b"],
        &["lockkit", "run", "a b", "-c", "lockkit ls; true"],
        &["lockkit", "ls"],
        &["lockkit", "hold", "d"],
    ];
    assert_eq!(found, expected);
    assert!(Cli::try_parse_from(["lockkit", "run", "--trie", "a", "b"]).is_err());
}
