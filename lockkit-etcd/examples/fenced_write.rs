//! A write of the program's own, in the same etcd as the lock, that only the holder can make:
//! `cargo run -p lockkit-etcd --example fenced_write -- etcd://127.0.0.1:2379 127.0.0.1:2379`.

use std::error::Error;

use lockkit_core::{Fence, LockManager};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{Client, Txn, TxnOp};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "etcd://127.0.0.1:2379".to_owned());
    let member = arguments.next().unwrap_or_else(|| "127.0.0.1:2379".to_owned());
    let locks = LockManager::new(EtcdDriver::connect(&url).await?);
    let mut client = Client::connect([member], None).await?;

    let guard = locks.mutex("invoice/42").lock().await?;
    let mut held = Vec::new();
    guard.fence(&mut held).await?;
    // However long this takes, or this process stands still here: the write below is made while the
    // lock is held, or not at all.
    let write = Txn::new().when(held).and_then([TxnOp::put("invoice/42", "paid", None)]);
    if client.txn(write).await?.succeeded() {
        println!("written under token {}", guard.token()?);
    } else {
        println!("the lock was lost; nothing was written");
    }
    guard.release().await?;
    locks.shutdown().await;
    Ok(())
}
