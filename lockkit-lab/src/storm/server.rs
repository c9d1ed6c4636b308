//! A fault injector for a server of the lab, with a proxy between it and its clients.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::{FaultInjector, Target};
use crate::proxy::{self, When};
use crate::{Data, Proxy, Server};

/// Strikes at a server and at the network before it.
#[derive(Debug)]
pub struct ServerInjector {
    server: Server,
    proxy: Proxy,
    faults: Vec<Fault>,
    /// How often connections were disturbed.
    disturbed: AtomicU32,
}

/// One of so many answers is lost, with its connection, while answers are lost.
const LOST_ANSWERS: [u64; 5] = [1, 7, 2, 19, 4];

impl ServerInjector {
    /// Strikes at this server, whose clients go through this proxy, with these faults out of
    /// `ConnectionCut`, `Partition`, `ServerPaused`, `ServerRestarts`, `WritesLost` and
    /// `DataLost`.
    pub fn new(server: Server, proxy: Proxy, faults: Vec<Fault>) -> Self {
        Self { server, proxy, faults, disturbed: AtomicU32::new(0) }
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// In turns: resets all connections; loses answers with their connections, one after the other, after
    /// the server has acted; loses all that the server says on connections that stay open.
    async fn disturb_connections(&self, lasts: Duration) {
        match self.disturbed.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => {
                let losing = async {
                    for answer in LOST_ANSWERS.into_iter().cycle() {
                        self.proxy
                            .fault(proxy::ProxyFault::Cut, When::Answer(answer))
                            .struck()
                            .await;
                    }
                };
                let _ = tokio::time::timeout(lasts, losing).await;
            }
            1 => {
                self.proxy.fault(proxy::ProxyFault::Mute, When::Now);
                tokio::time::sleep(lasts).await;
            }
            _ => drop(self.proxy.fault(proxy::ProxyFault::Cut, When::Now)),
        }
        self.heal().await;
    }

    async fn heal(&self) {
        if let Err(error) = self.proxy.heal().await {
            complain(&format!("the network was not healed: {error}"));
        }
    }

    async fn restart(&self, data: Data) {
        if let Err(error) = self.server.restart(data).await {
            complain(&format!("the server was not restarted: {error}"));
        }
    }
}

/// The storm goes on when a strike fails; its report shows what did not work afterwards.
fn complain(what: &str) {
    eprintln!("storm: {what}");
}

#[async_trait]
impl FaultInjector for ServerInjector {
    fn faults(&self) -> Vec<Fault> {
        self.faults.clone()
    }

    fn log(&self) -> String {
        self.server.log_tail()
    }

    async fn inject(&self, fault: Fault, lasts: Duration, _: &Target) {
        match fault {
            Fault::ServerPaused => {
                self.server.freeze().await;
                tokio::time::sleep(lasts).await;
                self.server.thaw();
            }
            Fault::ServerRestarts => self.restart(Data::Keep).await,
            Fault::WritesLost => {
                if let Err(error) = self.server.sync().await {
                    complain(&format!("the server's data was not kept: {error}"));
                }
                tokio::time::sleep(lasts).await;
                self.restart(Data::LoseUnsynced).await;
            }
            Fault::DataLost => self.restart(Data::Lose).await,
            Fault::ConnectionCut => self.disturb_connections(lasts).await,
            _ => {
                self.proxy.fault(proxy::ProxyFault::BlackHole, When::Now);
                tokio::time::sleep(lasts).await;
                self.heal().await;
            }
        }
    }
}
