//! Names that this process found to be used by nobody else, for which the swift way is tried first.
//! A wrong memory costs a round trip, nothing else. No I/O.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::server::dialect::Arg;

/// More than this are forgotten.
const MOST: usize = 4_096;

/// The names, by their key.
#[derive(Debug, Default)]
pub(super) struct Memory {
    names: Mutex<HashSet<Vec<u8>>>,
    is_off: AtomicBool,
}

impl Memory {
    /// Whether the key in front of these arguments is one of them.
    pub(super) fn is_known(&self, args: &[Arg<'_>]) -> bool {
        self.names().contains(&key(args))
    }

    /// From here on there is no swift way.
    pub(super) fn learns_nothing(&self) {
        self.is_off.store(true, Ordering::Relaxed);
    }

    pub(super) fn learn(&self, args: &[Arg<'_>]) {
        if self.is_off.load(Ordering::Relaxed) {
            return;
        }
        let mut names = self.names();
        if names.len() >= MOST {
            names.clear();
        }
        names.insert(key(args));
    }

    pub(super) fn forget(&self, args: &[Arg<'_>]) {
        self.names().remove(&key(args));
    }

    /// Nothing panics while it holds this lock, so what is poisoned is sound.
    fn names(&self) -> MutexGuard<'_, HashSet<Vec<u8>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Namespace, space and name; no namespace contains a NUL.
fn key(args: &[Arg<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    for arg in args.iter().take(3) {
        match arg {
            Arg::Bytes(bytes) => key.extend_from_slice(bytes),
            Arg::Int(number) => key.extend_from_slice(&[0, *number as u8]),
            _ => {}
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(namespace: &'static str, space: i64, name: &'static str) -> [Arg<'static>; 3] {
        [Arg::Bytes(namespace.as_bytes()), Arg::Int(space), Arg::Bytes(name.as_bytes())]
    }

    #[test]
    fn what_differs_in_any_part_is_another_name() {
        let memory = Memory::default();
        memory.learn(&of("a", 0, "b"));
        assert!(memory.is_known(&of("a", 0, "b")));
        for other in [of("a", 1, "b"), of("ab", 0, ""), of("a", 0, "B"), of("", 0, "ab")] {
            assert!(!memory.is_known(&other), "{other:?}");
        }
        memory.forget(&of("a", 0, "b"));
        assert!(!memory.is_known(&of("a", 0, "b")));
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let memory = Memory::default();
        for i in 0..3 * MOST {
            let name = i.to_string();
            memory.learn(&[Arg::Bytes(b"a"), Arg::Int(0), Arg::Bytes(name.as_bytes())]);
        }
        assert!(memory.names().len() <= MOST);
    }
}
