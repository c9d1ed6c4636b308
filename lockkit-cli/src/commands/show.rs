//! `show`: one lock, with everybody in its line.

use lockkit::state::LockState;
use lockkit::{Name, Space};

use crate::args::ShowArgs;
use crate::backend::Backend;
use crate::exit::Failure;
use crate::output::{self, printable};
use crate::view::{StateView, json};
use crate::{phrase, take};

pub(crate) async fn show(args: &ShowArgs) -> Result<u8, Failure> {
    Name::new(&args.name)?;
    let locks = Backend::choose(&args.backend)?.connect().await?;
    let state = locks.inspect(space(args.semaphore), &args.name).await;
    take::close(&locks).await;
    let state = state?;
    match args.json {
        true => output::print_line(json(&StateView::of(&state))?)?,
        false => output::print(&text(&state))?,
    }
    Ok(0)
}

/// The space that a flag `--semaphore` means.
pub(crate) fn space(semaphore: bool) -> Space {
    match semaphore {
        true => Space::Semaphore,
        false => Space::Lock,
    }
}

/// The state for people.
pub(crate) fn text(state: &LockState) -> String {
    let subject = phrase::subject(state.space(), state.name().as_str());
    let mut lines = vec![match (state.holders().count(), state.waiters().count()) {
        (0, 0) => format!("{subject} is free"),
        (holders, 0) => format!("{subject}: held by {holders}, nobody waits"),
        (holders, waiters) => format!("{subject}: held by {holders}, waiting: {waiters}"),
    }];
    lines.extend(state.line.iter().map(|s| {
        let role = if s.holds() { "holds" } else { "waits" };
        format!("  {role}  {}", phrase::standing(s))
    }));
    if let Some(record) = &state.last_break {
        lines.push(format!("  last broken {record}"));
    }
    lines.into_iter().map(|line| printable(&line) + "\n").collect()
}
