//! Which backend gives the tokens, and under which token each claim of a list holds.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use lockkit_core::driver::{LockDriver, locked};
use lockkit_core::state::LockState;
use lockkit_core::{Error, Namespace, Token};

use super::MirrorDriver;
use super::marks::{self, Mark};

impl MirrorDriver {
    /// The token base of the new backend, as it is now.
    pub(super) async fn base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let base = self.new.namespace_counter(namespace).await?;
        self.bases().insert(namespace.clone(), base);
        Ok(base)
    }

    fn bases(&self) -> MutexGuard<'_, HashMap<Namespace, u64>> {
        locked(&self.bases)
    }

    /// The same, as last read, if it ever was.
    pub(super) async fn base_last_read(&self, namespace: &Namespace) -> Result<u64, Error> {
        let known = self.bases().get(namespace).copied();
        match known {
            Some(base) => Ok(base),
            None => self.base(namespace).await,
        }
    }

    /// The backend that gives the tokens while this is the base, and the other one.
    pub(super) fn giving(&self, base: u64) -> (&Arc<dyn LockDriver>, &Arc<dyn LockDriver>) {
        match base {
            0 => (&self.old, &self.new),
            _ => (&self.new, &self.old),
        }
    }

    /// A list as the backend shows it that gives the tokens, and under which token each claim in it
    /// holds: of those that hold since before the tokens were taken over, the old backend knows.
    pub(super) async fn tokens_in(
        &self,
        state: &LockState,
        base: u64,
    ) -> Result<Vec<Token>, Error> {
        if base == 0 {
            return Ok(state.line.iter().map(|standing| standing.token).collect());
        }
        let marks = state.line.iter().filter_map(Mark::of);
        let old = match marks.into_iter().any(Mark::bears_old_token) {
            true => self.old.inspect(&state.key).await?.line,
            false => Vec::new(),
        };
        Ok(state.line.iter().map(|standing| marks::token_of(standing, base, &old)).collect())
    }

    pub(super) async fn with_tokens(
        &self,
        mut state: LockState,
        base: u64,
    ) -> Result<LockState, Error> {
        let tokens = self.tokens_in(&state, base).await?;
        for (standing, token) in state.line.iter_mut().zip(tokens) {
            standing.token = token;
            standing.unmark();
        }
        Ok(state)
    }
}
