//! The program of the conformance suite's other processes, on etcd: it locks, and is killed, frozen
//! and robbed of its clock. The tests start it.

use std::error::Error;
use std::ffi::OsString;
use std::sync::Arc;

use lockkit_conformance::{storm, worker};
use lockkit_core::{LockManager, Settings};
use lockkit_etcd::EtcdDriver;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == "storm-client" => {
            Ok(storm::client::serve(rest, connect, storm::client::run).await?)
        }
        Some((first, rest)) if first == "worker" => {
            let rest: Option<Vec<_>> = rest.iter().map(|w| w.to_str().map(str::to_owned)).collect();
            worker::run(&rest.ok_or("arguments are UTF-8")?, connect).await
        }
        _ => Err("suite_worker: worker … | storm-client …, as the suite calls it".into()),
    }
}

async fn connect(url: String, settings: Settings) -> Result<LockManager, lockkit_core::Error> {
    LockManager::with(Arc::new(EtcdDriver::connect(&url).await?), settings)
}
