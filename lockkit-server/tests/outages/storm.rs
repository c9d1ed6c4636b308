//! A storm of a few seconds: clients through two servers and past them, on one backend, while servers
//! and clients are killed and frozen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::LockManager;
use lockkit_core::capabilities::Fault;
use lockkit_lab::storm::{Saboteur, Stage, Storm};
use lockkit_lab::{Kind, Server};
use lockkit_redis::RedisDriver;

use crate::process::ServerProcess;

/// Strikes at the servers of a service in turn. Their backend is left alone.
struct AtServers {
    servers: [ServerProcess; 2],
    turn: AtomicUsize,
    _backend: Server,
}

#[async_trait]
impl Saboteur for AtServers {
    fn faults(&self) -> Vec<Fault> {
        vec![Fault::ServerRestarts, Fault::ServerStandsStill]
    }

    async fn strike(&self, fault: Fault, lasts: Duration) {
        let server = &self.servers[self.turn.fetch_add(1, Ordering::Relaxed) % 2];
        match fault {
            Fault::ServerStandsStill => {
                server.freeze();
                tokio::time::sleep(lasts).await;
                server.thaw();
            }
            _ => {
                server.kill();
                tokio::time::sleep(lasts).await;
                server.start_again();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_through_two_servers_and_past_them_are_acquitted() {
    let backend = Server::start(Kind::Redis).await.unwrap();
    let direct = backend.url();
    let servers = [(); 2].map(|()| ServerProcess::start(&direct));
    let [first, second] = servers.each_ref().map(ServerProcess::address);
    let through = |a, b| format!("http://{a},{b}?timeout=300ms");
    let url = format!("{} {} {direct}", through(first, second), through(second, first));
    let turn = AtomicUsize::new(0);
    let saboteur = Arc::new(AtServers { servers, turn, _backend: backend });
    let stage = Stage { url, direct, saboteur };
    let mut storm = Storm::brief(lockkit_lab::worker::example("http_worker"));
    (storm.processes, storm.lasts) = (4, storm.lasts.max(Duration::from_secs(12)));
    let look = |url: String, settings| async move {
        LockManager::with(Arc::new(RedisDriver::connect(&url).await?), settings)
    };
    let report = storm.acquitted(stage, look).await;
    assert!(report.count("granted") > 0 && report.count("faults") > 0, "{report:?}");
}
