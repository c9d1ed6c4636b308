//! What `top` knows, and what keys do to it. No terminal, no backend, no clock: the same looks and
//! keys always lead to the same state.

use std::cmp::Reverse;
use std::time::Duration;

use lockkit::driver::BreakMode;
use lockkit::state::{ClaimState, LockState};
use lockkit::{Space, Token};

use super::changes::{Changes, Id, id};
use super::keys::Key;
use crate::describe;

/// The state of the view.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) backend: String,
    pub(super) namespace: String,
    /// Names begin with this.
    pub(super) beginning: String,
    /// Name, holder or note contain this.
    pub(super) text: String,
    pub(super) order: SortKey,
    pub(super) view: View,
    pub(super) prompt: Option<Prompt>,
    /// What became of the last break.
    pub(super) message: Option<Result<String, String>>,
    /// Why the last look failed.
    pub(super) error: Option<String>,
    /// `None` before the first look.
    states: Option<Vec<LockState>>,
    changes: Changes,
    /// The chosen lock, and which row it was in: the row stays when the lock is gone.
    chosen: Option<Id>,
    row: usize,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All locks.
    List,
    /// The line of one, with the chosen place in it.
    Line { id: Id, at: usize },
}

/// What is being asked of the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Beginning(String),
    Text(String),
    Break(Target),
    /// The explanation of the keys.
    Keys,
}

/// A claim to break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) space: Space,
    pub(super) name: String,
    pub(super) token: Token,
    pub(super) whose: String,
    pub(super) force: BreakMode,
}

/// What a key asks others to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    /// Ask the backend for the names that begin with this.
    Ask(String),
    Break(Target),
}

/// What stands first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    Age,
    LongestWait,
    Waiters,
    Changes,
    Name,
}

/// A lock in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) state: &'a LockState,
    /// How long its longest holder holds it.
    pub(super) held_for: Option<Duration>,
    pub(super) waiters: usize,
    pub(super) longest_wait: Option<Duration>,
    /// Grants a minute.
    pub(super) rate: f64,
}

/// Sums over the rows that are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) locks: usize,
    pub(super) holders: usize,
    pub(super) waiters: usize,
    pub(super) longest_wait: Option<Duration>,
    pub(super) rate: f64,
}

impl Model {
    pub(super) fn new(backend: String, namespace: &str, beginning: &str) -> Self {
        Self {
            backend,
            namespace: namespace.to_owned(),
            beginning: beginning.to_owned(),
            text: String::new(),
            order: SortKey::Age,
            view: View::List,
            prompt: None,
            message: None,
            error: None,
            states: None,
            changes: Changes::default(),
            chosen: None,
            row: 0,
        }
    }

    /// Takes in what is in use at this time, counted from any beginning.
    pub(super) fn update(&mut self, states: Vec<LockState>, at: Duration) {
        self.error = None;
        self.changes.update(&states, at);
        self.states = Some(states);
        self.keep_the_choice();
    }

    /// The last look failed: what was seen before stays.
    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Tells what became of a break.
    pub(super) fn tell(&mut self, outcome: Result<String, String>) {
        self.message = Some(outcome);
    }

    /// Whether anything was seen yet.
    pub(super) fn has_looked(&self) -> bool {
        self.states.is_some()
    }

    /// The locks to show, in their order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let states = self.states.iter().flatten();
        let shown = states.filter(|state| has(state, &self.text));
        let mut rows: Vec<_> = shown.map(|state| self.row_of(state)).collect();
        rows.sort_by(|a, b| {
            let by_name = (a.state.name(), a.state.space()).cmp(&(b.state.name(), b.state.space()));
            let by = match self.order {
                SortKey::Age => Reverse(a.held_for).cmp(&Reverse(b.held_for)),
                SortKey::LongestWait => Reverse(a.longest_wait).cmp(&Reverse(b.longest_wait)),
                SortKey::Waiters => Reverse(a.waiters).cmp(&Reverse(b.waiters)),
                SortKey::Changes => b.rate.total_cmp(&a.rate),
                SortKey::Name => by_name,
            };
            by.then(by_name)
        });
        rows
    }

    fn row_of<'a>(&self, state: &'a LockState) -> Row<'a> {
        Row {
            state,
            held_for: state.holders().filter_map(|s| s.held_for).max(),
            waiters: state.waiters().count(),
            longest_wait: state.waiters().map(|s| s.queued_for).max(),
            rate: self.changes.rate(&id(state)),
        }
    }

    pub(super) fn sums(&self, rows: &[Row<'_>]) -> Sums {
        let everything = rows.len() == self.states.as_ref().map_or(0, Vec::len);
        Sums {
            locks: rows.len(),
            holders: rows.iter().map(|row| row.state.holders().count()).sum(),
            waiters: rows.iter().map(|row| row.waiters).sum(),
            longest_wait: rows.iter().filter_map(|row| row.longest_wait).max(),
            // Of locks that are free at the moment, too.
            rate: match everything {
                true => self.changes.total(),
                false => rows.iter().map(|row| row.rate).sum(),
            },
        }
    }

    /// Which of the rows is chosen.
    pub(super) fn chosen_row(&self, rows: &[Row<'_>]) -> Option<usize> {
        let same = |row: &Row<'_>| self.chosen.as_ref() == Some(&id(row.state));
        let last = rows.len().checked_sub(1)?;
        Some(rows.iter().position(same).unwrap_or_else(|| self.row.min(last)))
    }

    /// The lock whose line is shown; `None` when it is free, or none is.
    pub(super) fn selected_state(&self) -> Option<&LockState> {
        let View::Line { id: shown, .. } = &self.view else {
            return None;
        };
        self.states.iter().flatten().find(|state| id(state) == *shown)
    }

    /// What a key does.
    pub(super) fn press(&mut self, key: Key) -> Option<Effect> {
        if key == Key::Interrupt {
            return Some(Effect::Quit);
        }
        self.message = None;
        match self.prompt.take() {
            Some(prompt) => self.answer(prompt, key),
            None => self.command(key),
        }
    }

    fn answer(&mut self, prompt: Prompt, key: Key) -> Option<Effect> {
        match (prompt, key) {
            (Prompt::Break(target), Key::Char('y')) => return Some(Effect::Break(target)),
            (Prompt::Break(target), Key::Char('f')) => {
                return Some(Effect::Break(Target { force: BreakMode::Forced, ..target }));
            }
            (Prompt::Break(_), _) => self.message = Some(Ok("nothing was broken".to_owned())),
            (Prompt::Beginning(beginning), Key::Enter) => {
                self.beginning.clone_from(&beginning);
                self.changes.forget();
                self.states = None;
                return Some(Effect::Ask(beginning));
            }
            (Prompt::Beginning(beginning), key) => {
                self.prompt = edited(beginning, key).map(Prompt::Beginning);
            }
            (Prompt::Keys, _) => {}
            (Prompt::Text(text), Key::Enter) => self.text = text,
            (Prompt::Text(text), key) => {
                let text = edited(text, key);
                self.text = text.clone().unwrap_or_default();
                self.prompt = text.map(Prompt::Text);
                self.keep_the_choice();
            }
        }
        None
    }

    fn command(&mut self, key: Key) -> Option<Effect> {
        match (&self.view, key) {
            (_, Key::Char('q')) => return Some(Effect::Quit),
            (_, Key::Char('?')) => self.prompt = Some(Prompt::Keys),
            (_, Key::Char('b')) => self.prompt = self.target().map(Prompt::Break),
            (View::Line { .. }, Key::Escape | Key::Enter | Key::Erase) => self.view = View::List,
            (View::List, Key::Escape) => self.text.clear(),
            (View::List, Key::Enter) => {
                if let Some(id) = self.chosen.clone() {
                    self.view = View::Line { id, at: 0 };
                }
            }
            (View::List, Key::Char('/')) => self.prompt = Some(Prompt::Text(self.text.clone())),
            (View::List, Key::Char('p')) => {
                self.prompt = Some(Prompt::Beginning(self.beginning.clone()));
            }
            (View::List, Key::Char('s')) => self.order = self.order.next(),
            (_, key) => self.go(key),
        }
        None
    }

    /// Moves the choice.
    fn go(&mut self, key: Key) {
        let (at, count) = match &self.view {
            View::Line { at, .. } => {
                (*at, self.selected_state().map_or(0, |state| state.queue.len()))
            }
            View::List => {
                let rows = self.rows();
                (self.chosen_row(&rows).unwrap_or(0), rows.len())
            }
        };
        let last = count.saturating_sub(1);
        let to = match key {
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => at + 1,
            Key::PageUp => at.saturating_sub(10),
            Key::PageDown => at + 10,
            Key::First | Key::Char('g') => 0,
            Key::Last | Key::Char('G') => last,
            _ => return,
        };
        let to = to.min(last);
        match &mut self.view {
            View::Line { at, .. } => *at = to,
            View::List => {
                let chosen = self.rows().get(to).map(|row| id(row.state));
                (self.chosen, self.row) = (chosen, to);
            }
        }
    }

    /// Remembers which lock is chosen, so that it stays chosen when rows move.
    fn keep_the_choice(&mut self) {
        let rows = self.rows();
        let row = self.chosen_row(&rows);
        let chosen = row.map(|row| id(rows[row].state));
        (self.chosen, self.row) = (chosen, row.unwrap_or(0));
        let length = self.selected_state().map_or(0, |state| state.queue.len());
        if let View::Line { at, .. } = &mut self.view {
            *at = (*at).min(length.saturating_sub(1));
        }
    }

    /// The claim that a break would be about: the chosen one of a line, or a lock's first holder.
    fn target(&self) -> Option<Target> {
        let (state, at) = match &self.view {
            View::Line { at, .. } => (self.selected_state()?, *at),
            View::List => {
                let rows = self.rows();
                (rows.get(self.chosen_row(&rows)?)?.state, 0)
            }
        };
        let claim = state.queue.get(at)?;
        Some(Target {
            space: state.space(),
            name: state.name().as_str().to_owned(),
            token: claim.token,
            whose: whose(claim),
            force: BreakMode::Graceful,
        })
    }
}

impl SortKey {
    fn next(self) -> Self {
        match self {
            Self::Age => Self::LongestWait,
            Self::LongestWait => Self::Waiters,
            Self::Waiters => Self::Changes,
            Self::Changes => Self::Name,
            Self::Name => Self::Age,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::LongestWait => "longest wait",
            Self::Waiters => "waiters",
            Self::Changes => "changes",
            Self::Name => "name",
        }
    }
}

fn whose(claim: &ClaimState) -> String {
    match claim.held_for {
        Some(held) => format!("held by {} for {}", claim.identity, describe::duration(held)),
        None => {
            let waits = describe::duration(claim.queued_for);
            format!("{} waits for {waits}", claim.identity)
        }
    }
}

/// Whether the name has this, or one of its claims; capitals do not matter.
fn has(state: &LockState, text: &str) -> bool {
    let text = text.to_lowercase();
    let has = |place: &str| place.to_lowercase().contains(&text);
    has(state.name().as_str())
        || state
            .queue
            .iter()
            .any(|claim| has(&claim.identity.to_string()) || claim.note.as_deref().is_some_and(has))
}

/// The text as this key leaves it; `None` when the key ends the editing.
fn edited(mut text: String, key: Key) -> Option<String> {
    match key {
        Key::Char(c) => text.push(c),
        Key::Erase => {
            text.pop();
        }
        Key::Escape => return None,
        _ => {}
    }
    Some(text)
}
