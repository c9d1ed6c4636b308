//! Import circles between the files of a crate. An edge is a path from `crate` or `super`, in an import
//! or anywhere else; it leads to the file that defines what the path names, so re-exports make no edges
//! and are followed. What a module uses of its own children is no edge: a child may use its parent.
//! Tests are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::sources::SourceFile;

/// A module with a file of its own.
#[derive(Default)]
struct Module {
    path: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Imports and re-exports: the name, and what it stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths that it uses, without re-exports.
    uses: Vec<Vec<String>>,
}

impl Module {
    fn outward(&self) -> impl Iterator<Item = &Vec<String>> {
        let is_outward = |first: &String| first == "crate" || first == "super";
        self.uses.iter().filter(move |path| path.first().is_some_and(is_outward))
    }
}

/// The circles between a crate's files: each a group of files that all need each other.
pub(crate) fn of(files: &[SourceFile]) -> Vec<Vec<PathBuf>> {
    let modules = modules(files);
    let mut edges = vec![BTreeSet::new(); modules.len()];
    for (from, module) in modules.iter().enumerate() {
        for path in module.outward() {
            edges[from].extend(resolve(&modules, from, path, 0).filter(|to| *to != from));
        }
    }
    groups(&edges)
        .into_iter()
        .map(|group| group.into_iter().map(|at| modules[at].path.clone()).collect())
        .collect()
}

fn modules(files: &[SourceFile]) -> Vec<Module> {
    let rust = files.iter().filter(|file| file.path.extension().is_some_and(|end| end == "rs"));
    let mut found: Vec<_> = rust.map(module).collect();
    let folders: BTreeMap<_, _> = found
        .iter()
        .enumerate()
        .map(|(at, module)| (crate::sources::module_folder(&module.path), at))
        .collect();
    for at in 0..found.len() {
        let path = found[at].path.clone();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = match stem.as_str() {
            "lib" | "main" => continue,
            "mod" => path.parent().unwrap_or(&path).to_owned(),
            _ => path.with_extension(""),
        };
        let parent = own.parent().and_then(|folder| folders.get(folder)).copied();
        let name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(parent) = parent.filter(|parent| *parent != at) {
            found[at].parent = Some(parent);
            found[parent].children.insert(name, at);
        }
    }
    found
}

fn module(file: &SourceFile) -> Module {
    let mut module = Module { path: file.path.clone(), ..Module::default() };
    read(&file.tokens(), &mut module);
    module
}

/// Takes imports and paths out of tokens.
fn read(tokens: &TokenStream, module: &mut Module) {
    let tokens: Vec<_> = tokens.clone().into_iter().collect();
    let mut at = 0;
    let mut is_public = false;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if *word == "use" => {
                let end = at + tokens[at..].iter().position(is_semicolon).unwrap_or(1);
                import(&tokens[at + 1..end.max(at + 1)], &mut Vec::new(), is_public, module);
                at = end;
            }
            TokenTree::Ident(word) if *word == "pub" => {
                is_public = true;
                at += 1;
                continue;
            }
            // `pub(crate)`
            TokenTree::Group(group) if is_public && group.delimiter() == Delimiter::Parenthesis => {
            }
            TokenTree::Ident(_) => {
                let path = path_at(&tokens[at..]);
                at += 3 * (path.len() - 1);
                if path.len() > 1 {
                    module.uses.push(path);
                }
            }
            TokenTree::Group(group) => read(&group.stream(), module),
            _ => {}
        }
        is_public = is_public && matches!(&tokens.get(at), Some(TokenTree::Group(_)));
        at += 1;
    }
}

fn is_semicolon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(sign) if sign.as_char() == ';')
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(sign)) if sign.as_char() == ':')
}

/// `a::b::c`, as far as it goes.
fn path_at(tokens: &[TokenTree]) -> Vec<String> {
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        path.push(word.to_string());
        if !(is_colon(tokens.get(at + 1)) && is_colon(tokens.get(at + 2))) {
            break;
        }
        at += 3;
    }
    path
}

/// One tree of a `use`.
fn import(tokens: &[TokenTree], prefix: &mut Vec<String>, is_public: bool, module: &mut Module) {
    let path = path_at(tokens);
    let rest = &tokens[(3 * path.len()).min(tokens.len())..];
    let before = prefix.len();
    prefix.extend(path);
    match rest.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(sign) if sign.as_char() == ',');
            for tree in inner.split(is_comma).filter(|tree| !tree.is_empty()) {
                import(tree, prefix, is_public, module);
            }
        }
        Some(TokenTree::Punct(sign)) if sign.as_char() == '*' => {
            module.uses.extend((!is_public).then(|| prefix.clone()));
        }
        _ => {
            // `{self}` names the module, `as` another name.
            let ends_in_self = prefix.len() > 1 && prefix.last().is_some_and(|word| word == "self");
            prefix.truncate(prefix.len() - usize::from(ends_in_self));
            let other = tokens.iter().rev().find_map(|token| match token {
                TokenTree::Ident(word) => Some(word.to_string()),
                _ => None,
            });
            let name = other.filter(|name| name != "self").or_else(|| prefix.last().cloned());
            module.imports.insert(name.unwrap_or_default(), prefix.clone());
            module.uses.extend((!is_public).then(|| prefix.clone()));
        }
    }
    prefix.truncate(before);
}

/// The module that defines what a path of a module names; none if it is of another crate.
fn resolve(modules: &[Module], from: usize, path: &[String], depth: usize) -> Option<usize> {
    let (first, mut rest) = path.split_first()?;
    if depth > 8 {
        return None;
    }
    let root = |mut at: usize| {
        while let Some(parent) = modules[at].parent {
            at = parent;
        }
        at
    };
    let mut at = match first.as_str() {
        "crate" => root(from),
        "super" => modules[from].parent?,
        "self" => from,
        name => match modules[from].children.get(name) {
            Some(child) => *child,
            None => {
                let target = modules[from].imports.get(name).filter(|to| to.first() != Some(first));
                return resolve(modules, from, &[target?.as_slice(), rest].concat(), depth + 1);
            }
        },
    };
    while let Some((name, after)) = rest.split_first() {
        match (name.as_str(), modules[at].children.get(name)) {
            ("super", _) => at = modules[at].parent?,
            (_, Some(child)) => at = *child,
            _ => return Some(defined(modules, at, name, after, depth)),
        }
        rest = after;
    }
    Some(at)
}

/// The module that defines a name which a module has, perhaps from elsewhere.
fn defined(modules: &[Module], at: usize, name: &str, after: &[String], depth: usize) -> usize {
    if let Some(target) = modules[at].imports.get(name) {
        return resolve(modules, at, &[target.as_slice(), after].concat(), depth + 1).unwrap_or(at);
    }
    at
}

/// Groups of more than one node that all reach each other.
fn groups(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reach: Vec<_> = (0..edges.len()).map(|from| reachable(edges, from)).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for from in 0..edges.len() {
        let group: Vec<_> =
            reach[from].iter().copied().filter(|to| reach[*to].contains(&from)).collect();
        if group.len() > 1 && group.first() == Some(&from) {
            found.push(group);
        }
    }
    found
}

fn reachable(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(edges[at].iter().copied().filter(|to| found.insert(*to)));
    }
    found
}

/// The imports between files of a group, as `from -> to`: what can be cut.
pub(crate) fn edges_within(files: &[SourceFile], group: &[PathBuf]) -> Vec<String> {
    let modules = modules(files);
    let name = |path: &Path| {
        let parts: Vec<_> = path.iter().skip(2).map(|part| part.to_string_lossy()).collect();
        parts.join("/")
    };
    let mut found = BTreeSet::new();
    for (from, module) in modules.iter().enumerate().filter(|(_, m)| group.contains(&m.path)) {
        for path in module.outward() {
            let to = resolve(&modules, from, path, 0).filter(|to| *to != from);
            if let Some(to) = to.filter(|to| group.contains(&modules[*to].path)) {
                let what = path.last().map_or("", String::as_str);
                found.insert(format!(
                    "{} -> {}: {what}",
                    name(&module.path),
                    name(&modules[to].path)
                ));
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<PathBuf>> {
        let read = |(path, text): &(&str, &str)| {
            SourceFile::new(Path::new(path), (*text).to_owned()).expect("it is Rust")
        };
        of(&files.iter().map(read).collect::<Vec<_>>())
    }

    #[test]
    fn two_files_that_need_each_other_are_a_circle() {
        let root = ("a/src/lib.rs", "mod b;\nmod c;\npub use b::B;\npub(crate) use c::f;");
        let uses_c = ("a/src/b.rs", "use crate::{f, x::{self}};\npub struct B;\nfn g() { f(); }");
        let one_way = ("a/src/c.rs", "pub(crate) fn f() {}");
        assert!(circles(&[root, uses_c, one_way]).is_empty());
        let both_ways = ("a/src/c.rs", "pub(crate) fn f() { println!(\"{:?}\", super::B); }");
        let expected = vec![vec![PathBuf::from("a/src/b.rs"), PathBuf::from("a/src/c.rs")]];
        assert_eq!(circles(&[root, uses_c, both_ways]), expected);
        let in_tests =
            ("a/src/c.rs", "pub(crate) fn f() {}\n#[cfg(test)]\nmod tests { use crate::B; }");
        assert!(circles(&[root, uses_c, in_tests]).is_empty());
    }

    #[test]
    fn a_child_may_use_its_parent_but_not_two_siblings_each_other() {
        let root = ("a/src/lib.rs", "mod b;");
        let parent = ("a/src/b/mod.rs", "mod c;\nmod d;\npub(crate) struct B;\nfn f() { c::g() }");
        let child = ("a/src/b/c.rs", "use super::B as Other;\npub(super) fn g() {}");
        let sibling = ("a/src/b/d.rs", "use super::c;\npub(super) fn h() { c::g() }");
        assert!(circles(&[root, parent, child, sibling]).is_empty());
        let both = ("a/src/b/c.rs", "use super::{B, d::h};\npub(super) fn g() { h() }");
        assert_eq!(circles(&[root, parent, both, sibling]).len(), 1);
    }
}
