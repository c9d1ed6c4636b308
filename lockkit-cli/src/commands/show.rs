//! `show`: one lock, with its queue; `watch`: the same after each change, until interrupted.

use futures_util::StreamExt;
use futures_util::stream::select_all;
use lockkit::state::LockState;
use lockkit::{Error, LockManager, Name, Space};

use crate::args::BackendArgs;
use crate::args::inspect::{ShowArgs, Subject, WatchArgs};
use crate::backend::Backend;
use crate::exit::ExitError;
use crate::output::{self, Style, printable, styled};
use crate::run::leftovers::{self, Leftovers};
use crate::view::{StateView, json};
use crate::{acquire, describe};

pub(crate) async fn show(args: &ShowArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.subject.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let states = states_to_print(&locks, &args.subject).await;
    acquire::close(&locks).await;
    for (state, leftovers) in states? {
        print(&state, &leftovers, args.json)?;
    }
    Ok(0)
}

/// `watch`: a backend that is out of reach for a time does not end it, since the library retries.
pub(crate) async fn watch(args: &WatchArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.subject.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let spaces = spaces(&args.subject).iter().enumerate();
    let mut states = select_all(spaces.map(|(at, space)| {
        let states = locks.watch(*space, &args.subject.name).enumerate();
        // A name is seldom that of a lock and of a semaphore: the second is shown once it is used.
        states
            .filter(move |(n, state)| std::future::ready(at == 0 || *n > 0 || is_used(state)))
            .map(|(_, state)| state)
            .boxed()
    }));
    while let Some(state) = states.next().await {
        print(&state?, &Leftovers::new(), args.json)?;
    }
    Ok(0)
}

/// Whether a watched state has claims, or is an error.
fn is_used(state: &Result<LockState, Error>) -> bool {
    state.as_ref().map_or(true, |state| !state.queue.is_empty())
}

/// The states to show, with what was left behind under each.
async fn states_to_print(
    locks: &LockManager,
    subject: &Subject,
) -> Result<Vec<(LockState, Leftovers)>, ExitError> {
    let mut shown = Vec::new();
    for state in in_use(states(locks, subject).await?) {
        let leftovers = leftovers::of(locks, &state).await;
        shown.push((state, leftovers));
    }
    Ok(shown)
}

/// A state, for people or programs.
pub(crate) fn print(
    state: &LockState,
    leftovers: &Leftovers,
    as_json: bool,
) -> Result<(), ExitError> {
    match as_json {
        true => output::print_line(json(&StateView::of(state).with(leftovers))?),
        false => output::print(&text(state, leftovers)),
    }
}

/// The spaces in which the name is looked for.
pub(crate) fn spaces(subject: &Subject) -> &'static [Space] {
    match (subject.lock, subject.semaphore) {
        (true, _) => &[Space::Lock],
        (_, true) => &[Space::Semaphore],
        _ => &[Space::Lock, Space::Semaphore],
    }
}

/// The lock and the semaphore of that name, as asked for.
pub(crate) async fn states(
    locks: &LockManager,
    subject: &Subject,
) -> Result<Vec<LockState>, ExitError> {
    let mut states = Vec::new();
    for space in spaces(subject) {
        states.push(locks.inspect(*space, &subject.name).await?);
    }
    Ok(states)
}

/// Those in use; the first one when none is.
fn in_use(mut states: Vec<LockState>) -> Vec<LockState> {
    if states.iter().any(|state| !state.queue.is_empty()) {
        states.retain(|state| !state.queue.is_empty());
    }
    states.truncate(states.iter().filter(|state| !state.queue.is_empty()).count().max(1));
    states
}

/// The state for people.
fn text(state: &LockState, leftovers: &Leftovers) -> String {
    let subject = describe::subject(state.space(), state.name().as_str());
    let mut lines = vec![match (state.holders().count(), state.waiters().count()) {
        (0, 0) => format!("{subject} is free"),
        (holders, 0) => format!("{subject}: held by {holders}, nobody waits"),
        (holders, waiters) => format!("{subject}: held by {holders}, waiting: {waiters}"),
    }];
    for s in &state.queue {
        let role = if s.holds() { "holds" } else { "waits" };
        lines.push(format!("  {role}  {}", describe::claim(s)));
        if let Some(processes) = leftovers.get(&s.token) {
            lines.push(format!("         its command ended and left behind: {processes}"));
        }
    }
    if let Some(record) = &state.last_break {
        lines.push(format!("  last broken {record}"));
    }
    let mut lines = lines.into_iter().map(|line| printable(&line) + "\n");
    let first = lines.next().unwrap_or_default();
    styled(Style::Bold, first.trim_end()) + "\n" + &lines.collect::<String>()
}
