//! A service over SQLite: all cases, each through two servers on a file of its own.

mod site;

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Worker};
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_sql::SqliteDriver;
use site::Site;

struct Served {
    folder: tempfile::TempDir,
    site: Site,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { folder, site: Site::default() }
    }
}

#[async_trait]
impl Harness for Served {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = format!("sqlite:{}", self.folder.path().join("locks.db").display());
        let backend = || async { Ok(Arc::new(SqliteDriver::connect(&url).await?) as Arc<_>) };
        self.site.driver(backend).await
    }

    fn worker(&self) -> Option<Worker> {
        let program = lockkit_lab::worker::example("http_worker");
        Some(Worker { program, url: self.site.url(0)? })
    }
}

lockkit_conformance::suite!(Served::new());
