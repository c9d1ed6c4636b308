//! What the docs say of backends is what their drivers say.

use lockkit_conformance::promises;
use lockkit_core::MemoryDriver;
use lockkit_core::driver::LockDriver;
use lockkit_sql::SqliteDriver;

#[tokio::test]
async fn the_semantics_page_has_the_table_of_promises_as_the_drivers_state_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let (memory, sqlite) = (MemoryDriver::new(), SqliteDriver::connect(&url).await.unwrap());
    let table = promises::markdown(&[memory.capabilities(), sqlite.capabilities()]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&table), "put this table into docs/semantics.md:\n\n{table}");
}
