//! The source files of the workspace's crates, without their tests: what `lines`, `words` and `check`
//! read. Tests are files named `tests.rs`, folders named `tests`, and whatever is `#[cfg(test)]`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::places::root;

/// A Rust, Lua or SQL file below the `src` of a crate.
pub(crate) struct SourceFile {
    /// Relative to the workspace.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// The tokens of a Rust file, tests included.
    tokens: Option<TokenStream>,
}

/// The folders of the workspace's members, as its manifest names them.
pub(crate) fn members() -> Result<Vec<String>, String> {
    let manifest = read(&root().join("Cargo.toml"))?;
    let list = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.ok_or("Cargo.toml names no members")?;
    Ok(list.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

/// The files below `src` of a crate, without those that are tests.
pub(crate) fn of_crate(name: &str) -> Result<Vec<SourceFile>, String> {
    let mut paths = Vec::new();
    collect(&root().join(name).join("src"), &mut paths)?;
    paths.sort();
    let mut files = Vec::new();
    let mut test_modules = Vec::new();
    for path in paths {
        let file = SourceFile::read(&path)?;
        test_modules.extend(file.test_modules());
        files.push(file);
    }
    let is_test = |path: &Path| test_modules.iter().any(|test| path.starts_with(test));
    files.retain(|file| !is_test(&file.path.with_extension("")));
    Ok(files)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            collect(&path, paths)?;
        } else if name != "tests.rs"
            && [".rs", ".lua", ".sql"].iter().any(|end| name.ends_with(end))
        {
            paths.push(path);
        }
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl SourceFile {
    fn read(path: &Path) -> Result<Self, String> {
        Self::new(path.strip_prefix(root()).unwrap_or(path), read(path)?)
    }

    pub(crate) fn new(path: &Path, text: String) -> Result<Self, String> {
        let is_rust = path.extension().is_some_and(|end| end == "rs");
        let parsed = is_rust.then(|| text.parse::<TokenStream>()).transpose();
        let tokens = parsed.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path: path.to_owned(), text, tokens })
    }

    pub(crate) fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// The number of lines with code: no blank ones, no comments, no tests.
    pub(crate) fn code_lines(&self) -> usize {
        let Some(tokens) = &self.tokens else {
            return self.text.lines().filter(|line| !without_comment(line).is_empty()).count();
        };
        let lines: Vec<_> = self.text.lines().collect();
        let mut found = BTreeSet::new();
        each(tokens, &lines, &mut |first, last| found.extend(first..=last));
        found.iter().filter(|line| !lines[**line - 1].trim().is_empty()).count()
    }

    /// The tokens without those of tests and of doc comments; none where the file is not Rust.
    pub(crate) fn tokens(&self) -> TokenStream {
        self.tokens.as_ref().map(rebuilt).unwrap_or_default()
    }

    /// What a file in Lua or SQL has besides comments; nothing where it is Rust.
    pub(crate) fn statements(&self) -> String {
        let lines = self.text.lines().map(without_comment);
        if self.tokens.is_some() { String::new() } else { lines.collect::<Vec<_>>().join("\n") }
    }

    /// The comments.
    pub(crate) fn comments(&self) -> String {
        let sign = if self.tokens.is_some() { "//" } else { "--" };
        let of = |line: &str| {
            let at = if line.trim_start().starts_with(sign) {
                line.find(sign)
            } else {
                line.find(&format!(" {sign} "))
            };
            at.map(|at| line[at..].trim_start_matches(['/', '-', '!', ' ']).to_owned())
        };
        self.text.lines().filter_map(of).collect::<Vec<_>>().join(" ")
    }

    /// Where the files of modules are that only tests have, without their extension.
    fn test_modules(&self) -> Vec<PathBuf> {
        let mut names = Vec::new();
        if let Some(tokens) = &self.tokens {
            without_tests(tokens, &mut names);
        }
        names.iter().map(|name| module_folder(&self.path).join(name)).collect()
    }
}

/// The folder that has the modules which a file declares.
pub(crate) fn module_folder(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default();
    let folder = path.parent().unwrap_or(path);
    match stem.to_str() {
        Some("mod" | "lib" | "main") => folder.to_owned(),
        _ => folder.join(stem),
    }
}

fn without_comment(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with("--") { "" } else { line }
}

/// The tokens of one level, without what is `#[cfg(test)]`; and the names of modules without a body
/// that are left out with it.
fn without_tests(tokens: &TokenStream, modules: &mut Vec<String>) -> Vec<TokenTree> {
    let all: Vec<_> = tokens.clone().into_iter().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        if is_cfg_test(&all[at..]) {
            let end = at + 2 + item_length(&all[at + 2..]);
            let item: Vec<_> = all[at + 2..end].iter().map(ToString::to_string).collect();
            if let [.., word, name, end] = item.as_slice() {
                modules.extend((word == "mod" && end == ";").then(|| name.clone()));
            }
            // Its doc comment goes with it, and other attributes before.
            while is_attribute(&kept[kept.len().saturating_sub(2)..]) {
                kept.truncate(kept.len() - 2);
            }
            at = end;
        } else {
            kept.push(all[at].clone());
            at += 1;
        }
    }
    kept
}

/// Whether `#[cfg(test)]` begins here.
fn is_cfg_test(tokens: &[TokenTree]) -> bool {
    let text = |token: &TokenTree| token.to_string().split_whitespace().collect::<String>();
    is_attribute(tokens) && text(&tokens[1]) == "[cfg(test)]"
}

fn is_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(sign), TokenTree::Group(attribute), ..] = tokens else {
        return false;
    };
    sign.as_char() == '#' && attribute.delimiter() == Delimiter::Bracket
}

/// How many tokens the item, statement, field or variant has that begins here.
fn item_length(tokens: &[TokenTree]) -> usize {
    const ITEMS: [&str; 9] =
        ["mod", "fn", "impl", "struct", "enum", "trait", "macro_rules", "async", "unsafe"];
    const STATEMENTS: [&str; 5] = ["use", "const", "static", "type", "let"];
    let mut words = tokens.iter().filter_map(|token| match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    });
    let kind = words.find(|word| word != "pub").unwrap_or_default();
    let is_item = ITEMS.contains(&kind.as_str());
    let is_end = |token: &TokenTree| match token {
        TokenTree::Punct(sign) if sign.as_char() == ';' => true,
        TokenTree::Punct(sign) if sign.as_char() == ',' => {
            !is_item && !STATEMENTS.contains(&kind.as_str())
        }
        TokenTree::Group(group) => is_item && group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    tokens.iter().position(is_end).map_or(tokens.len(), |end| end + 1)
}

/// Whether a doc comment begins here: it has become an attribute.
fn is_doc_comment(tokens: &[TokenTree], lines: &[&str]) -> bool {
    let Some(TokenTree::Punct(sign)) = tokens.first().filter(|_| tokens.len() > 1) else {
        return false;
    };
    let start = sign.span().start();
    let text = lines.get(start.line.wrapping_sub(1)).and_then(|line| line.get(start.column..));
    sign.as_char() == '#' && text.is_none_or(|text| text.starts_with('/'))
}

/// How many tokens a doc comment is: `#`, or `#!`, and a group.
fn doc_length(tokens: &[TokenTree]) -> usize {
    1 + tokens.iter().position(|token| matches!(token, TokenTree::Group(_))).unwrap_or(0)
}

/// Calls `found` with the first and the last line of each token of code.
fn each(tokens: &TokenStream, lines: &[&str], found: &mut impl FnMut(usize, usize)) {
    let kept = without_tests(tokens, &mut Vec::new());
    let mut at = 0;
    while at < kept.len() {
        if is_doc_comment(&kept[at..], lines) {
            at += doc_length(&kept[at..]);
            continue;
        }
        match &kept[at] {
            TokenTree::Group(group) => {
                for span in [group.span_open(), group.span_close()] {
                    found(span.start().line, span.start().line);
                }
                each(&group.stream(), lines, found);
            }
            token => found(token.span().start().line, token.span().end().line),
        }
        at += 1;
    }
}

fn rebuilt(tokens: &TokenStream) -> TokenStream {
    let kept = without_tests(tokens, &mut Vec::new());
    kept.into_iter()
        .map(|token| match token {
            TokenTree::Group(group) => {
                TokenTree::Group(Group::new(group.delimiter(), rebuilt(&group.stream())))
            }
            token => token,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> SourceFile {
        SourceFile::new(Path::new("a/src/b.rs"), text.to_owned()).expect("it is Rust")
    }

    #[test]
    fn comments_blank_lines_and_tests_are_not_code() {
        let file = rust(
            "//! What it is.\n\n/// Doc.\n#[derive(Debug)]\npub struct A {\n    // Why.\n    /// Doc.\n    \
             b: u8, // why\n    #[cfg(test)]\n    c: u8,\n}\n\n/* more\n text */\nconst T: &str = \"x\n\n\
             // y\";\n\n/// Doc.\n#[cfg(test)]\nuse std::{fs, io};\n\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n\
             #[cfg(test)]\npub(crate) mod more_tests;\n",
        );
        // The derive, the struct's three lines, two of the text.
        assert_eq!(file.code_lines(), 6);
        assert_eq!(file.lines(), 28);
        assert_eq!(file.test_modules(), [Path::new("a/src/b/more_tests")]);
        assert!(!file.tokens().to_string().contains("mod tests"));
        assert!(
            file.comments().starts_with("What it is. Doc. Why. Doc. why"),
            "{}",
            file.comments()
        );
    }

    #[test]
    fn code_in_functions_is_counted_line_by_line() {
        let file = rust(
            "fn f<A, B>(\n    a: A,\n) -> B {\n    #[cfg(test)]\n    tell(&a, 1);\n    g(\"//\")\n}\n",
        );
        assert_eq!(file.code_lines(), 5);
    }

    #[test]
    fn lua_and_sql_have_their_own_comments() {
        let file = |name: &str| {
            let text = "-- what\n\nlocal a = 1 -- why\n  -- more\nreturn a\n".to_owned();
            SourceFile::new(Path::new(name), text).expect("it is read")
        };
        assert_eq!(file("a.lua").code_lines(), 2);
        assert_eq!(file("a.sql").comments(), "what why more");
        assert_eq!(file("a.sql").statements().lines().count(), 5);
    }

    #[test]
    fn every_member_has_files_without_tests() {
        for member in members().expect("the manifest is read") {
            let files = of_crate(&member).expect("its files are read");
            assert!(files.iter().all(|file| !file.path.ends_with("tests.rs")), "{member}");
        }
        let xtask = of_crate("xtask").expect("its files are read");
        assert!(xtask.iter().any(|file| file.path.ends_with("sources.rs")));
    }
}
