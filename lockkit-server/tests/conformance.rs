//! The service, over SQLite: all cases, each through a server of its own on a file of its own.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_http::HttpDriver;
use lockkit_server::{Listen, Service};
use lockkit_sql::SqliteDriver;
use tokio::sync::OnceCell;

struct Served {
    folder: tempfile::TempDir,
    url: OnceCell<String>,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { folder, url: OnceCell::new() }
    }

    async fn serve(&self) -> Result<String, Error> {
        let file = self.folder.path().join("locks.db");
        let driver = SqliteDriver::connect(&format!("sqlite:{}", file.display())).await?;
        let service = Service::new(Arc::new(driver))?;
        let io = |e| Error::permanent("lab", e);
        let listener = "127.0.0.1:0".parse::<Listen>()?.open().await.map_err(io)?;
        let url = listener.place().map_err(io)?.to_string();
        tokio::spawn(lockkit_server::serve(listener, service, std::future::pending()));
        Ok(url)
    }
}

#[async_trait]
impl Harness for Served {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = self.url.get_or_try_init(|| self.serve()).await?;
        Ok(Arc::new(HttpDriver::connect(url).await?))
    }
}

lockkit_conformance::suite!(Served::new());
