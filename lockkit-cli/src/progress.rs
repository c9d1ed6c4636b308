//! `--progress`: what this process waits for, on stderr, at each change and every 10 s at most.

use std::convert::Infallible;
use std::io::{self, Write};
use std::time::Duration;

use clap::ValueEnum;
use futures_util::StreamExt;
use lockkit::state::LockState;
use lockkit::{LockManager, NeighbourWait, Space};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::view::{StateView, json};
use crate::{describe, note, outage, output};

/// In which form progress is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressFormat {
    /// A sentence a line
    Text,
    /// JSON, one object a line: that of `watch --json`, and `progress`
    Json,
}

/// The longest time without a line.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// How often it looks whether the backend answers.
const LOOK: Duration = Duration::from_millis(250);

/// What is known while a lock is waited for.
pub(crate) struct Progress<'a> {
    format: ProgressFormat,
    space: Space,
    name: &'a str,
    began: Instant,
}

/// What a line of JSON says of the one who waits.
#[derive(Serialize)]
struct ProgressView<'a> {
    /// `waiting`, or `held` while a least hold is waited for.
    phase: &'static str,
    /// The position among those that wait, from 1; null while that is not known, and when it holds.
    position: Option<usize>,
    /// `neighbour` where it was granted, and a client of another library has the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// How long that one's lease lasts yet, where the backend tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    /// How long this process has waited.
    waiting_for_ms: u64,
    /// For how long the lock stays held yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_for_ms: Option<u64>,
    /// Why nothing is known now: the backend does not answer, or refuses.
    error: Option<&'a str>,
}

/// A line of `watch --json` with the progress of one that waits.
#[derive(Serialize)]
struct ProgressLine<'a> {
    #[serde(flatten)]
    state: StateView<'a>,
    progress: ProgressView<'a>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(format: ProgressFormat, space: Space, name: &'a str, began: Instant) -> Self {
        Self { format, space, name, began }
    }

    /// Reports until it is dropped.
    pub(crate) async fn report(&self, locks: &LockManager) -> Infallible {
        let mut states = locks.watch(self.space, self.name).boxed();
        let (mut state, mut error, mut said) = (None::<LockState>, None::<String>, None::<String>);
        let mut last = Instant::now();
        loop {
            let silent = tokio::select! {
                next = states.next() => match next {
                    Some(Ok(next)) => {
                        (state, error) = (Some(next), None);
                        false
                    }
                    failed => {
                        error = failed.and_then(Result::err).map(|error| error.to_string());
                        sleep(Duration::from_secs(1)).await;
                        states = locks.watch(self.space, self.name).boxed();
                        false
                    }
                },
                () = sleep(LOOK) => true,
            };
            let trouble = outage::sentence(locks).or_else(|| error.clone());
            // The time that an outage lasts is no change of it.
            let gist = match (&trouble, &state) {
                (Some(_), _) => Some("trouble".to_owned()),
                (None, _) if self.neighbour(locks).is_some() => Some("neighbour".to_owned()),
                (None, Some(state)) => self.gist(state),
                (None, None) => None,
            };
            let changed = gist != said;
            if gist.is_some() && (changed || (silent && last.elapsed() >= INTERVAL)) {
                self.say(state.as_ref(), self.neighbour(locks), trouble.as_deref());
                last = Instant::now();
            }
            if gist.is_some() || said.is_some() {
                said = gist;
            }
        }
    }

    /// Says why it waits where nothing is known of the lock.
    pub(crate) fn trouble(&self, why: &str) {
        self.say(None, None, Some(why));
    }

    /// Says that the lock stays held although its command has ended.
    pub(crate) fn stays(&self, rest: Duration) {
        let rest_ms = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        match self.format {
            ProgressFormat::Text => output::fail(format!(
                "{} stays held for {} more (--at-least); this waits for it, since its lease cannot be left \
                 to the backend",
                self.subject(),
                describe::duration(rest)
            )),
            ProgressFormat::Json => {
                let progress = ProgressView {
                    phase: "held",
                    position: None,
                    reason: None,
                    remaining_ms: None,
                    waiting_for_ms: 0,
                    held_for_ms: Some(rest_ms),
                    error: None,
                };
                self.print_json(&StateView::unknown(self.name, self.space), progress);
            }
        }
    }

    /// What a line says, but for the times in it; `None` when this process does not wait in that state.
    fn gist(&self, state: &LockState) -> Option<String> {
        let position = self.position(state);
        if position.is_none() && !self.holds(state) {
            return None;
        }
        let holders: Vec<_> = state.holders().map(|it| it.token.to_string()).collect();
        Some(format!("{position:?} of {} behind {holders:?}", state.waiters().count()))
    }

    /// The wait for a client of another library, which comes once the claim was granted.
    fn neighbour(&self, locks: &LockManager) -> Option<NeighbourWait> {
        (self.space == Space::Lock).then(|| locks.neighbour_wait(self.name))?
    }

    fn say(
        &self,
        state: Option<&LockState>,
        neighbour: Option<NeighbourWait>,
        trouble: Option<&str>,
    ) {
        let waited = self.began.elapsed();
        let position = match neighbour {
            Some(_) => Some(1),
            None => state.and_then(|state| self.position(state)),
        };
        let remaining = neighbour.and_then(|it| it.remaining);
        if self.format == ProgressFormat::Json {
            let progress = ProgressView {
                phase: "waiting",
                position,
                reason: neighbour.map(|_| "neighbour"),
                remaining_ms: remaining.and_then(|left| u64::try_from(left.as_millis()).ok()),
                waiting_for_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                held_for_ms: None,
                error: trouble,
            };
            let unknown = StateView::unknown(self.name, self.space);
            return self.print_json(&state.map_or(unknown, StateView::of), progress);
        }
        let mut text = format!("waiting for {} for {}", self.subject(), describe::duration(waited));
        match (trouble, state, position) {
            (Some(trouble), _, _) => text.push_str(&format!(": {trouble}")),
            (None, _, _) if neighbour.is_some() => {
                text.push_str(": position 1, held by a neighbour (a client of another library)");
                if let Some(left) = remaining {
                    text.push_str(&format!(
                        ", whose lease lasts {} more",
                        describe::duration(left)
                    ));
                }
            }
            (None, Some(state), Some(position)) => {
                text.push_str(&format!(": position {position} of {}", state.waiters().count()));
                if let Some(holders) = describe::holders(state) {
                    text.push_str(&format!(", held by {holders}"));
                }
            }
            // Of slots: the permit is there.
            _ => text.push_str(": the lease of a holder that died still runs"),
        }
        output::fail(text);
    }

    fn print_json(&self, state: &StateView<'_>, progress: ProgressView<'_>) {
        if let Ok(text) = json(&ProgressLine { state: state.clone(), progress }) {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    fn position(&self, state: &LockState) -> Option<usize> {
        Some(state.waiters().position(|it| note::is_this_process(&it.identity))? + 1)
    }

    fn holds(&self, state: &LockState) -> bool {
        state.holders().any(|it| note::is_this_process(&it.identity))
    }

    fn subject(&self) -> String {
        describe::subject(self.space, self.name)
    }
}
