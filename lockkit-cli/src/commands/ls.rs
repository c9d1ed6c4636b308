//! `ls`: the locks in use.

use futures_util::StreamExt;
use lockkit::Name;
use lockkit::state::LockState;

use crate::args::BackendArgs;
use crate::args::look::LsArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output::{self, Style, printable, styled};
use crate::view::{StateView, json};
use crate::{phrase, take};

pub(crate) async fn ls(args: &LsArgs, backend: &BackendArgs) -> Result<u8, Failure> {
    if !args.beginning.is_empty() {
        Name::new(&args.beginning)?;
    }
    let backend = Backend::choose(backend)?;
    let locks = backend.connect().await?;
    let mut states = Vec::new();
    {
        let mut all = std::pin::pin!(locks.list(&args.beginning));
        while let Some(state) = all.next().await {
            states.push(state?);
        }
    }
    take::close(&locks).await;
    states.retain(|state| wanted(args, state));
    states.sort_by(|a, b| (a.name(), a.space()).cmp(&(b.name(), b.space())));
    if args.json {
        let views: Vec<_> = states.iter().map(StateView::of).collect();
        output::print_line(json(&views)?)?;
    } else if states.is_empty() {
        let prefix = match backend.prefix() {
            "" => "without a prefix".to_owned(),
            prefix => format!("with the prefix {prefix:?}"),
        };
        output::note(format!("nothing of that kind is in use in {} {prefix}", backend.shown()));
    } else {
        output::print(&table(&states))?;
    }
    Ok(0)
}

fn wanted(args: &LsArgs, state: &LockState) -> bool {
    let long = |over| state.holders().any(|s| s.held_for.is_some_and(|held| held > over));
    args.held_over.is_none_or(long) && (!args.waiting || state.waiters().next().is_some())
}

fn table(states: &[LockState]) -> String {
    let titles = ["NAME", "SPACE", "MODE", "TOKEN", "HELD BY", "FOR", "WAITING", "NOTE"];
    let mut rows = vec![titles.map(str::to_owned)];
    rows.extend(states.iter().map(row));
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        let title = text.is_empty();
        text.push_str(&if title { styled(Style::Bold, line) } else { line.to_owned() });
        text.push('\n');
    }
    text
}

fn row(state: &LockState) -> [String; 8] {
    let first = state.line.first();
    let others = state.holders().count().saturating_sub(1);
    let holder = first.map_or(String::new(), |s| match others {
        0 => s.identity.to_string(),
        n => format!("{} +{n}", s.identity),
    });
    [
        state.name().as_str().to_owned(),
        state.space().to_string(),
        first.map_or(String::new(), |s| phrase::mode(s.mode)),
        first.map_or(String::new(), |s| s.token.to_string()),
        holder,
        first.and_then(|s| s.held_for).map_or(String::new(), phrase::duration),
        state.waiters().count().to_string(),
        first.and_then(|s| s.note.clone()).unwrap_or_default(),
    ]
    .map(|cell| printable(&cell))
}
