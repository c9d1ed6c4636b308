//! The pages: every link leads somewhere, and every page is in the book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All files below a folder that end like this.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files(&path, end, found);
            }
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(folder, ".md", &mut found);
    assert!(!found.is_empty(), "{} has pages", folder.display());
    found
}

/// A page without its blocks of code and its `code`, where brackets mean something else.
fn prose(text: &str) -> String {
    let mut lines = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines.split('`').step_by(2).collect()
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let behind = prose.split("](").skip(1);
    behind.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// The anchors of a page's headings, as mdBook and code hosts make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |letter: char| letter.is_alphanumeric() || " -_".contains(letter);
        let plain = heading.trim().to_lowercase();
        let anchor: String = plain.chars().filter(|letter| kept(*letter)).collect();
        let anchor = anchor.replace(' ', "-");
        let again = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|one| !found.contains(one));
        found.extend(free);
    }
    found
}

/// A path without `..`, which need not exist.
fn flat(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts.into_iter().collect()
}

/// What is wrong with a link of a page, if anything.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => flat(&page.parent().unwrap().join(path)),
    };
    let at = || format!("{}: {link}", page.strip_prefix(root()).unwrap_or(page).display());
    if !target.exists() {
        return Some(format!("{} leads nowhere", at()));
    }
    if anchor.is_empty() || target.extension().is_none_or(|end| end != "md") {
        return None;
    }
    let there = if target == page { text.to_owned() } else { fs::read_to_string(&target).unwrap() };
    (!anchors(&there).contains(anchor)).then(|| format!("{}: there is no such heading", at()))
}

#[test]
fn every_link_of_every_page_leads_somewhere() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in pages(&root()) {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            seen += 1;
            wrong.extend(broken(&page, &text, &link));
        }
    }
    assert!(seen > 100, "only {seen} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_link_to_a_missing_page_or_heading_is_found() {
    let page = root().join("docs/README.md");
    let text =
        "# One\n\n[a](#one) [b](#two) [c](semantics.md#tickets) [d](semantics.md#no) [e](no.md)";
    let wrong: Vec<_> = links(text).iter().filter_map(|link| broken(&page, text, link)).collect();
    let of = |link: &str| format!("docs/README.md: {link}");
    let expected = [
        of("#two: there is no such heading"),
        of("semantics.md#no: there is no such heading"),
        of("no.md leads nowhere"),
    ];
    assert_eq!(wrong, expected);
    assert_eq!(links("`[x](y)` ```\n"), Vec::<String>::new());
    assert!(anchors("## Is a `run` fair?\n## Is a run fair?").contains("is-a-run-fair-1"));
}

#[test]
fn every_page_is_in_the_book_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut listed: Vec<_> = links(&summary).iter().map(|link| docs.join(link)).collect();
    let mut pages = pages(&docs);
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    listed.sort();
    pages.sort();
    assert_eq!(listed, pages);
}
