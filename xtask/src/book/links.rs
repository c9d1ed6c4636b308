//! Links in pages and in what is made of them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// All files below a folder, but for what is built or hidden.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !path.is_dir() {
            found.push(path);
        } else if name != "target" && name != "node_modules" && !name.starts_with('.') {
            found.extend(files(&path)?);
        }
    }
    found.sort();
    Ok(found)
}

/// A path without `..`, which need not exist.
pub(super) fn flat(path: &Path) -> PathBuf {
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

/// A page with other targets in its `[text](target)`, where `instead` gives some. Blocks of code, and
/// `code`, where brackets mean something else, stay.
pub(super) fn replaced(page: &str, mut instead: impl FnMut(&str) -> Option<String>) -> String {
    let mut made = String::new();
    let mut fenced = false;
    for line in page.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence {
            made.push_str(line);
            continue;
        }
        for (part, text) in line.split('`').enumerate() {
            if part > 0 {
                made.push('`');
            }
            match part % 2 {
                0 => made.push_str(&in_prose(text, &mut instead)),
                _ => made.push_str(text),
            }
        }
    }
    made
}

fn in_prose(text: &str, instead: &mut impl FnMut(&str) -> Option<String>) -> String {
    let mut parts = text.split("](");
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        let link = instead(link).unwrap_or_else(|| link.to_owned());
        let end = if part.contains(')') { ")" } else { "" };
        made = made + "](" + &link + end + rest;
    }
    made
}

/// What stands between `begin` and the next quotation mark.
fn between<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
}

/// The links of a built book that lead nowhere.
pub(super) fn broken_in_html(book: &Path) -> io::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for path in files(book)? {
        // The first is all pages in one, for printing; the other has a base of its own.
        let other = path.ends_with("print.html") || path.ends_with("404.html");
        if !other && path.extension().is_some_and(|end| end == "html") {
            pages.insert(path.clone(), fs::read_to_string(path)?);
        }
    }
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for link in between(text, " href=\"").filter(|link| !link.contains(':')) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => flat(&page.parent().unwrap_or(book).join(path)),
            };
            let there = pages.get(&target);
            let headed = || there.is_none_or(|text| between(text, " id=\"").any(|id| id == anchor));
            if !target.exists() || !(anchor.is_empty() || headed()) {
                wrong.push(format!("{}: {link} leads nowhere", page.display()));
            }
        }
    }
    Ok(wrong)
}
