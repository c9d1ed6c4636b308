//! `ls`: the locks in use, or the registers that have a value.

use std::pin::pin;

use futures_util::TryStreamExt;
use lockkit::state::{LockState, RegisterState};
use lockkit::{LockManager, Name, Token};
use serde::Serialize;

use crate::args::BackendArgs;
use crate::args::inspect::LsArgs;
use crate::backend::Backend;
use crate::exit::ExitError;
use crate::output::{self, Style, printable, styled};
use crate::view::{StateView, json};
use crate::{acquire, describe};

const LOCKS: [&str; 8] = ["NAME", "SPACE", "MODE", "TOKEN", "HELD BY", "FOR", "WAITING", "NOTE"];
const REGISTERS: [&str; 4] = ["NAME", "VERSION", "TOKEN", "BYTES"];

/// A register as JSON. Stable: programs read it.
#[derive(Serialize)]
struct RegisterView<'a> {
    /// Where registers of several namespaces are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
    version: u64,
    /// The highest that any write bore.
    token: Option<Token>,
    /// The length of the value.
    bytes: usize,
    /// Why it cannot be read, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<&'a str>,
}

/// What is listed, in its namespace.
type Under<T> = Vec<(String, T)>;

pub(crate) async fn ls(args: &LsArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    if !args.beginning.is_empty() {
        Name::new(&args.beginning)?;
    }
    if args.all_namespaces && backend.namespace.is_some() {
        return Err(ExitError::usage(
            "--all-namespaces and --namespace exclude each other: use one",
        ));
    }
    let backend = Backend::choose(backend)?;
    let locks = backend.connect().await?;
    let listed = match args.registers {
        true => registers(args, &locks).await,
        false => states(args, &locks).await,
    };
    acquire::close(&locks).await;
    let listed = listed?;
    match (args.json, listed.rows.is_empty()) {
        (true, _) => output::print_line(listed.json)?,
        (false, true) => output::note(nothing(args, &backend)),
        (false, false) => output::print(&table(args, &listed))?,
    }
    Ok(0)
}

/// What was found, for programs and for people.
struct Listed {
    json: String,
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

async fn states(args: &LsArgs, locks: &LockManager) -> Result<Listed, ExitError> {
    let mut found: Under<LockState> = Vec::new();
    for (namespace, locks) in managers(args, locks).await? {
        let some: Vec<_> = locks.admin().list(&args.beginning).try_collect().await?;
        found.extend(some.into_iter().map(|state| (namespace.clone(), state)));
    }
    found.retain(|(_, state)| wanted(args, state));
    found.sort_by(|(p, a), (q, b)| (p, a.name(), a.space()).cmp(&(q, b.name(), b.space())));
    let views: Vec<_> = found
        .iter()
        .map(|(namespace, state)| StateView::of(state).under(namespace_column(args, namespace)))
        .collect();
    let rows = found.iter().map(|(namespace, state)| row(args, namespace, state_cells(state)));
    Ok(Listed { json: json(&views)?, titles: &LOCKS, rows: rows.collect() })
}

async fn registers(args: &LsArgs, locks: &LockManager) -> Result<Listed, ExitError> {
    let mut found: Under<RegisterState> = Vec::new();
    for (namespace, locks) in managers(args, locks).await? {
        let some: Vec<_> = locks.admin().registers(&args.beginning).try_collect().await?;
        found.extend(some.into_iter().map(|state| (namespace.clone(), state)));
    }
    found.sort_by(|(p, a), (q, b)| (p, &a.name).cmp(&(q, &b.name)));
    let views: Vec<_> = found
        .iter()
        .map(|(namespace, it)| RegisterView {
            namespace: namespace_column(args, namespace),
            name: it.name.as_str(),
            version: it.version.0,
            token: it.token,
            bytes: it.bytes,
            damaged: it.damaged.as_deref(),
        })
        .collect();
    let rows = found.iter().map(|(namespace, it)| {
        let token = it.token.map_or(String::new(), |token| token.to_string());
        let cells = match &it.damaged {
            Some(why) => [format!("damaged: {why}"), String::new(), String::new()],
            None => [it.version.0.to_string(), token, it.bytes.to_string()],
        };
        row(args, namespace, [it.name.as_str().to_owned()].into_iter().chain(cells))
    });
    Ok(Listed { json: json(&views)?, titles: &REGISTERS, rows: rows.collect() })
}

/// A manager of each namespace that is asked for, over the same connections.
async fn managers(args: &LsArgs, locks: &LockManager) -> Result<Under<LockManager>, ExitError> {
    if !args.all_namespaces {
        return Ok(vec![(String::new(), locks.clone())]);
    }
    let mut managers = Vec::new();
    let mut namespaces = pin!(locks.admin().namespaces());
    while let Some(namespace) = namespaces.try_next().await? {
        let settings = locks.settings().clone().namespace(namespace.as_str());
        let manager = LockManager::with(locks.driver().clone(), settings)?;
        managers.push((namespace.as_str().to_owned(), manager));
    }
    Ok(managers)
}

fn wanted(args: &LsArgs, state: &LockState) -> bool {
    let long = |over| state.holders().any(|s| s.held_for.is_some_and(|held| held > over));
    args.held_over.is_none_or(long) && (!args.waiting || state.waiters().next().is_some())
}

fn nothing(args: &LsArgs, backend: &Backend) -> String {
    let namespace = match (args.all_namespaces, backend.namespace()) {
        (true, _) => "in any namespace".to_owned(),
        (false, "") => "without a namespace".to_owned(),
        (false, namespace) => format!("in the namespace {namespace:?}"),
    };
    match args.registers {
        true => format!(
            "no such register has a value in {} {namespace}",
            backend.url_without_passwords()
        ),
        false => format!(
            "nothing of that kind is in use in {} {namespace}",
            backend.url_without_passwords()
        ),
    }
}

/// The namespace, where it tells something.
fn namespace_column<'a>(args: &LsArgs, namespace: &'a str) -> Option<&'a str> {
    args.all_namespaces.then_some(namespace)
}

fn row(args: &LsArgs, namespace: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    let namespace = namespace_column(args, namespace).map(|namespace| match namespace {
        "" => "-".to_owned(),
        namespace => namespace.to_owned(),
    });
    namespace.into_iter().chain(cells).map(|cell| printable(&cell)).collect()
}

fn table(args: &LsArgs, listed: &Listed) -> String {
    let namespace = args.all_namespaces.then_some("NAMESPACE");
    let titles: Vec<_> = namespace.iter().chain(listed.titles).map(|it| (*it).to_owned()).collect();
    let rows = || std::iter::once(&titles).chain(&listed.rows);
    let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for row in rows() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        let title = text.is_empty();
        text.push_str(&if title { styled(Style::Bold, line) } else { line.to_owned() });
        text.push('\n');
    }
    text
}

fn state_cells(state: &LockState) -> [String; 8] {
    let first = state.queue.first();
    let others = state.holders().count().saturating_sub(1);
    let holder = first.map_or(String::new(), |s| match others {
        0 => s.identity.to_string(),
        n => format!("{} +{n}", s.identity),
    });
    [
        state.name().as_str().to_owned(),
        state.space().to_string(),
        first.map_or(String::new(), |s| describe::mode(s.mode)),
        first.map_or(String::new(), |s| s.token.to_string()),
        holder,
        first.and_then(|s| s.held_for).map_or(String::new(), describe::duration),
        state.waiters().count().to_string(),
        match &state.damaged {
            Some(why) => format!("damaged: {why}"),
            None => first.and_then(|s| s.note.clone()).unwrap_or_default(),
        },
    ]
}
