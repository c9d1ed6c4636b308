//! A lock and its release through a lock service on the loopback address, beside the library on the
//! same backend.

use std::sync::Arc;

use lockkit::LockManager;
use lockkit_bench::Way;
use lockkit_lab::{Server, ServerKind};
use lockkit_server::{Listen, Service};

const TASKS: usize = 64;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    // A claim of a service outlives its server, so SQLite has it on disk before it answers. Here the
    // library waits for that as well.
    let file = folder.path().join("locks.db");
    let file = format!("sqlite:{}?durability=everything", file.display());
    compare("sqlite", &file).await;
    let redis = Server::start(ServerKind::Redis).await.unwrap();
    compare("redis", &redis.url()).await;
}

async fn compare(backend: &str, url: &str) {
    let library = lockkit::connect(url).await.unwrap();
    let service = Service::new(lockkit::connect(url).await.unwrap().driver().clone()).unwrap();
    let listener = "127.0.0.1:0".parse::<Listen>().unwrap().open().await.unwrap();
    let served = listener.address().unwrap().to_string();
    let server = tokio::spawn(lockkit_server::serve(listener, service, std::future::pending()));
    let through = lockkit::connect(&served).await.unwrap();
    let pair = async |locks: &LockManager| {
        locks.mutex("invoice/42").lock().await.unwrap().release().await.unwrap();
    };
    let what = format!("{backend}, one task through the service (bare: the library)");
    lockkit_bench::ratio(&what, 300, async || pair(&through).await, async || pair(&library).await)
        .await;

    let of = |locks: &LockManager| {
        let locks = locks.clone();
        move |task: usize| {
            let mutex = locks.mutex(format!("invoice/{task}"));
            async move { mutex.lock().await.unwrap().release().await.unwrap() }
        }
    };
    // Clients that share nothing, as programs of different hosts.
    let mut apart = Vec::new();
    for url in [url, &served] {
        let mut clients = Vec::new();
        for _ in 0..TASKS {
            clients.push(lockkit::connect(url).await.unwrap());
        }
        let clients = Arc::new(clients);
        apart.push(move |task: usize| {
            let mutex = clients[task].mutex(format!("invoice/{task}"));
            async move { mutex.lock().await.unwrap().release().await.unwrap() }
        });
    }
    let [library_apart, through_apart] = apart.try_into().ok().unwrap();
    let ways = [
        Way::new("library, one", TASKS, of(&library)),
        Way::new("service, one", TASKS, of(&through)),
        Way::new("library, 64", TASKS, library_apart),
        Way::new("service, 64", TASKS, through_apart),
    ];
    lockkit_bench::race(&format!("{backend}, 64 tasks"), 6_400, &ways).await;
    server.abort();
    library.shutdown().await;
    through.shutdown().await;
}
