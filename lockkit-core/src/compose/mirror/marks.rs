//! The marks by which a claim is found in both lists, and states as they are shown without them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::state::{LockState, Standing};
use crate::{Claim, Token};

/// What begins a claim's mark in its note.
const MARK: &str = " \u{21c4}";

/// The claim as the members see it: with a mark in its note, by which it is found in both lists when
/// it is to be broken. The mark tells nothing of the id.
pub(super) fn for_members(claim: &Arc<Claim>) -> Arc<Claim> {
    let mut hasher = DefaultHasher::new();
    claim.id.hash(&mut hasher);
    let mark = format!("{MARK}{:08x}", hasher.finish() as u32);
    let note = claim.note.as_deref().unwrap_or_default();
    Arc::new(Claim::clone(claim).with_note(Some(format!("{note}{mark}").into())))
}

/// The mark of a claim that came through a mirror.
pub(super) fn mark_of(standing: &Standing) -> Option<&str> {
    let note = standing.note.as_deref()?;
    note.rfind(MARK).map(|at| &note[at..])
}

/// As it is shown: with the base added to the tokens, and without marks.
pub(super) fn shown(mut state: LockState, base: u64) -> LockState {
    for standing in &mut state.line {
        let number = standing.token.get().saturating_add(base);
        standing.token = Token::new(number).unwrap_or(standing.token);
        if let Some(note) = &mut standing.note
            && let Some(at) = note.rfind(MARK)
        {
            note.truncate(at);
        }
        standing.note.take_if(|note| note.is_empty());
    }
    state
}
