//! The pages: every link leads somewhere, and every page is in the book.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::links::{flat, replaced};
use super::{outward, root};

fn pages(folder: &Path) -> Vec<PathBuf> {
    let found = super::pages(folder).unwrap();
    assert!(!found.is_empty(), "{} has pages", folder.display());
    found
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    replaced(text, |link| {
        found.push(link.to_owned());
        None
    });
    found
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

/// What is wrong with a link of a page, if anything.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    // Links with `::` are to Rust items, in pages that rustdoc includes and checks.
    if link.contains("://") || link.contains("::") {
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
    assert_eq!(links("`[x](y)`\n```\n[x](y)\n```\n"), Vec::<String>::new());
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

#[test]
fn a_link_out_of_the_book_leads_to_the_repository() {
    let page = root().join("docs/design/why.md");
    let text =
        "[a](../redis.md#keys) `[b](../../x)` [c](../../examples) ([d](../../Cargo.toml)) [e](#f)";
    let made = replaced(text, |link| outward(&page, link));
    let at = env!("CARGO_PKG_REPOSITORY");
    let expected = format!(
        "[a](../redis.md#keys) `[b](../../x)` [c]({at}/tree/main/examples) \
         ([d]({at}/blob/main/Cargo.toml)) [e](#f)"
    );
    assert_eq!(made, expected);
    assert_eq!(replaced(text, |_| None), text);
}

/// The four paragraphs with which the page of a backend begins.
fn in_short(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let (_, rest) = text.split_once("\n## In short\n").unwrap_or_else(|| panic!("{page}"));
    let paragraphs = rest.split("\n## ").next().unwrap().split("\n\n");
    paragraphs.map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

/// Runs of five words.
fn runs(text: &str) -> BTreeSet<Vec<&str>> {
    let words: Vec<_> = text.split_whitespace().collect();
    words.windows(5).map(<[&str]>::to_vec).collect()
}

#[test]
fn the_page_of_each_backend_begins_with_what_is_its_own() {
    const PAGES: [&str; 6] =
        ["redis.md", "sql.md", "etcd.md", "zookeeper.md", "quorum.md", "stores.md"];
    let pages = PAGES.map(in_short);
    for (page, paragraphs) in PAGES.iter().zip(&pages) {
        let heads = paragraphs.iter().filter_map(|one| one.split("**").nth(1));
        assert!(heads.eq(["Take it", "Needs", "Costs", "Breaks"]), "{page}: {paragraphs:?}");
        for other in PAGES.iter().zip(&pages).filter(|(other, _)| other != &page) {
            for (own, theirs) in paragraphs.iter().zip(other.1) {
                let shared: Vec<_> = runs(own).intersection(&runs(theirs)).cloned().collect();
                assert!(shared.is_empty(), "{page} and {}: {shared:?}", other.0);
            }
        }
    }
}
