//! `cargo xtask words`: holds the libraries to the words of `docs/design/glossary.md`. Identifiers are
//! read from the syntax of the code, phrases from comments and docs.

mod identifiers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::places::root;
use crate::sources;
use identifiers::Identifiers;

const GLOSSARY: &str = "docs/design/glossary.md";
/// Types here have the names of what they send, or of what they are for threads.
const MIRRORS: [&str; 3] =
    ["lockkit-http/src/wire", "lockkit/src/blocking", "lockkit/src/blocking.rs"];

/// The chore.
pub(crate) fn run(_: &[String]) -> Result<ExitCode, String> {
    let wrong = wrong()?;
    for line in &wrong {
        println!("{line}");
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is wrong, in a line each.
pub(crate) fn wrong() -> Result<Vec<String>, String> {
    let line = |(key, (place, times)): (String, (String, usize))| {
        format!("{key} ({times} times, {place}): see {GLOSSARY}")
    };
    Ok(findings()?.into_iter().map(line).collect())
}

/// The lists of the glossary that programs read.
#[derive(Debug, Default)]
struct Rules {
    /// In no identifier, as one of its words.
    words: BTreeSet<String>,
    /// What may have them nevertheless, as a whole identifier or as a part of one.
    allowed: BTreeSet<String>,
    /// Not an identifier by themselves.
    names: BTreeSet<String>,
    /// Not a type by themselves: they do not say what of.
    types: BTreeSet<String>,
    /// In no comment and no page.
    phrases: Vec<String>,
}

impl Rules {
    fn read() -> Result<Self, String> {
        Self::parse(&sources::read(&root().join(GLOSSARY))?)
    }

    fn parse(page: &str) -> Result<Self, String> {
        let mut rules = Self::default();
        let blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split_once("```"));
        for line in blocks.flat_map(|(block, _)| block.lines()) {
            let (list, items) = line.split_once(':').ok_or(format!("no list: {line}"))?;
            let items = || items.split_whitespace().map(str::to_owned);
            match list {
                "words" => rules.words.extend(items()),
                "allowed" => rules.allowed.extend(items()),
                "names" => rules.names.extend(items()),
                "types" => rules.types.extend(items()),
                "phrase" => rules.phrases.push(items().collect::<Vec<_>>().join(" ")),
                _ => return Err(format!("no such list: {list}")),
            }
        }
        Ok(rules)
    }

    fn forbids(&self, identifier: &str) -> bool {
        let mut words = format!("_{}_", words_of(identifier).join("_"));
        for allowed in &self.allowed {
            words = words.replace(&format!("_{allowed}_"), "_");
        }
        self.names.contains(identifier) || words.split('_').any(|word| self.words.contains(word))
    }
}

/// The words of an identifier, in lower case: of `in_flight` or `InFlight`, `in` and `flight`.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase() || letter.is_numeric();
        if letter != '_' {
            words.last_mut().into_iter().for_each(|word| word.extend(letter.to_lowercase()));
        }
    }
    words
}

/// How often a text has a phrase as whole words.
fn count(text: &str, phrase: &str) -> usize {
    let is_end = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric());
    text.match_indices(phrase)
        .filter(|(at, _)| {
            is_end(text[..*at].chars().next_back())
                && is_end(text[at + phrase.len()..].chars().next())
        })
        .count()
}

/// What breaks the rules: the exception it would need, and where it was first seen and how often.
type Findings = BTreeMap<String, (String, usize)>;

fn findings() -> Result<Findings, String> {
    let rules = Rules::read()?;
    let mut found = Findings::new();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |key: String, place: String, times: usize| {
        let entry = found.entry(key).or_insert((place, 0));
        entry.1 += times;
    };
    for library in libraries()? {
        for file in sources::of_crate(&library)? {
            let place = file.path.display().to_string();
            let identifiers = Identifiers::of(&file)?;
            for name in identifiers.types.iter().filter(|name| rules.types.contains(*name)) {
                add(format!("type {name}"), place.clone(), 1);
            }
            for name in identifiers.all.iter().filter(|name| rules.forbids(name)) {
                add(format!("name {name}"), place.clone(), 1);
            }
            let mirrors = MIRRORS.iter().any(|folder| file.path.starts_with(folder));
            for name in identifiers.public_types.into_iter().filter(|_| !mirrors) {
                types.entry(name).or_default().push(place.clone());
            }
            phrases(&rules, &file.comments(), &place, &mut add);
        }
    }
    // Each crate may have an alias of `Result` with its own error.
    types.remove("Result");
    for (name, places) in types.into_iter().filter(|(_, places)| places.len() > 1) {
        add(format!("twice {name}"), places.join(", "), places.len());
    }
    for page in pages()? {
        let place = page.strip_prefix(root()).unwrap_or(&page).display().to_string();
        phrases(&rules, &prose(&sources::read(&page)?), &place, &mut add);
    }
    Ok(found)
}

fn phrases(rules: &Rules, text: &str, place: &str, add: &mut impl FnMut(String, String, usize)) {
    let text = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    for phrase in &rules.phrases {
        let times = count(&text, phrase);
        let allowed: usize = rules
            .allowed
            .iter()
            .map(|name| name.replace('_', " "))
            .filter(|plain| plain.contains(phrase.as_str()))
            .map(|plain| count(&text, &plain))
            .sum();
        if times > allowed {
            add(format!("phrase {phrase}"), place.to_owned(), times - allowed);
        }
    }
}

/// The crates with a library, but for what is not published and has no users.
fn libraries() -> Result<Vec<String>, String> {
    let mut members = sources::members()?;
    members.retain(|name| root().join(name).join("src/lib.rs").exists() && name != "examples");
    Ok(members)
}

/// The pages of the workspace: docs, and what stands beside the crates.
fn pages() -> Result<Vec<PathBuf>, String> {
    let mut found = crate::book::pages(&root().join("docs"))?;
    found.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    for member in sources::members()? {
        found.extend(Some(root().join(member).join("README.md")).filter(|page| page.exists()));
    }
    found.retain(|page| !page.ends_with(GLOSSARY));
    Ok(found)
}

/// A page without its code.
fn prose(page: &str) -> String {
    let text = page.split("```").step_by(2).collect::<String>();
    text.split('`').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# G\n\n```text\nwords: flight runway\nallowed: in_flight\nnames: line\n\
                        types: Kind\nphrase: flight\nphrase: of late\n```\n";

    #[test]
    fn the_libraries_and_the_docs_keep_to_the_glossary() {
        let wrong = wrong().expect("the code is read");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn words_are_found_in_identifiers() {
        let rules = Rules::parse(PAGE).expect("it has lists");
        for wrong in ["flight_size", "MaxFlight", "runway", "line"] {
            assert!(rules.forbids(wrong), "{wrong}");
        }
        for right in
            ["in_flight", "requests_in_flight", "InFlightLimit", "flighty", "first_line", "Kind"]
        {
            assert!(!rules.forbids(right), "{right}");
        }
        assert_eq!(words_of("HTTPOk2Go"), ["httpok2", "go"]);
    }

    #[test]
    fn phrases_are_found_in_text() {
        let rules = Rules::parse(PAGE).expect("it has lists");
        let mut found = Vec::new();
        let text = "Two flights\nof late, and a Flight; three in flight. A flight of\nlate.";
        phrases(&rules, text, "a.rs", &mut |key, _, times| found.push((key, times)));
        assert_eq!(found, [("phrase flight".to_owned(), 2), ("phrase of late".to_owned(), 2)]);
        assert_eq!(prose("a `b` c\n```\nd\n```\ne"), "a  c\n\ne");
    }
}
