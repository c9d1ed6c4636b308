//! The table of faults that a service answers with, as the `'static` one that
//! [`Capabilities`](lockkit_core::Capabilities) hold. There are as many tables as backends, so each
//! is kept once, for good.

use std::sync::{Mutex, PoisonError};

use lockkit_core::capabilities::{Fault, Guarantee};

type Table = [(Fault, Guarantee)];

static TABLES: Mutex<Vec<&'static Table>> = Mutex::new(Vec::new());

/// The table with this content.
pub(crate) fn kept(table: &Table) -> &'static Table {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = tables.iter().find(|known| **known == table) {
        return known;
    }
    let new: &'static Table = table.to_vec().leak();
    tables.push(new);
    new
}
