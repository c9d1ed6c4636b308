//! What the docs say of backends is what their drivers say.

use std::sync::Arc;

use lockkit_conformance::promises;
use lockkit_core::MemoryDriver;
use lockkit_core::compose::{QuorumDriver, QuorumOptions};
use lockkit_core::driver::LockDriver;
use lockkit_sql::SqliteDriver;

#[tokio::test]
async fn the_semantics_page_has_the_table_of_promises_as_the_drivers_state_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let (memory, sqlite) = (MemoryDriver::new(), SqliteDriver::connect(&url).await.unwrap());
    let table = promises::markdown(&[memory.capabilities(), sqlite.capabilities()]);
    let members: Vec<Arc<dyn LockDriver>> =
        (0..3).map(|_| Arc::new(MemoryDriver::new()) as Arc<dyn LockDriver>).collect();
    let quorum = QuorumDriver::new(members, QuorumOptions::default()).unwrap();
    let of_quorum = promises::markdown(&[quorum.capabilities()]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).unwrap();
    for table in [table, of_quorum] {
        assert!(page.contains(&table), "put this table into docs/semantics.md:\n\n{table}");
    }
}
