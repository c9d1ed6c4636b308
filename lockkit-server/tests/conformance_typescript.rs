//! The client in `clients/typescript` on real Node: the cases that its operations allow, each through
//! two servers over SQLite. Its program for that is built by `cargo xtask typescript`, and
//! `cargo xtask test` leaves these cases out, and says so, where that cannot be done.

mod site;
mod typescript;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_sql::SqliteDriver;
use site::Site;
use tokio::sync::OnceCell;
use typescript::{Program, TypescriptDriver};

/// A process of Node, with a client for each driver.
struct InTypescript {
    folder: tempfile::TempDir,
    site: Site,
    program: OnceCell<Arc<Program>>,
    turn: AtomicUsize,
}

impl InTypescript {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let turn = AtomicUsize::new(0);
        Self { folder, site: Site::default(), program: OnceCell::new(), turn }
    }
}

#[async_trait]
impl Harness for InTypescript {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = format!("sqlite:{}", self.folder.path().join("locks.db").display());
        let backend = || async { Ok(Arc::new(SqliteDriver::connect(&url).await?) as Arc<_>) };
        let rust = self.site.driver(backend).await?;
        // Every other client asks the other server first.
        let servers = self.site.url(self.turn.fetch_add(1, Ordering::Relaxed));
        let servers = servers.ok_or_else(|| Error::config("the servers have started"))?;
        let program = self.program.get_or_try_init(Program::start).await?;
        let client = Program::client(program, servers).await?;
        Ok(Arc::new(TypescriptDriver::new(client, rust)))
    }
}

/// The name by which `cargo xtask test` leaves them out.
mod in_typescript {
    use super::InTypescript;

    lockkit_conformance::suite!(InTypescript::new());
}
