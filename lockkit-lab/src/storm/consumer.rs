//! What a consumer does in a storm: takes its turn, goes on from the checkpoint, stores how far it
//! is under the fence of its lock, and writes down each attempt before it makes it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use lockkit_core::{Guard, LockManager, Precondition};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, timeout_at};

use super::checkpoint::{Checkpoint, LOCK, REGISTER};
use super::client::Orders;

/// Consumes until its time is over.
pub async fn run(locks: LockManager, orders: Orders) -> io::Result<()> {
    let path = orders.folder.join(format!("consumer-{}.attempts", orders.client));
    let notes = OpenOptions::new().create(true).append(true).open(path)?;
    let rng = StdRng::seed_from_u64(orders.seed ^ (u64::from(orders.client) << 32));
    let end = Instant::now() + orders.lasts;
    let mut consumer = Consumer { locks, notes, rng, ttl: orders.ttl, op: 0 };
    while Instant::now() < end {
        let lock = consumer.locks.mutex(LOCK).ttl(orders.ttl);
        match timeout_at(end, lock.lock()).await {
            Ok(Ok(guard)) => consumer.turn(guard, end).await?,
            Ok(Err(_)) => sleep(Duration::from_millis(50)).await,
            Err(_) => {}
        }
    }
    let quick = tokio::time::timeout(orders.longest() * 2, consumer.locks.shutdown()).await;
    drop(quick); // a backend that is away does not delay this
    Ok(())
}

struct Consumer {
    locks: LockManager,
    notes: File,
    rng: StdRng,
    ttl: Duration,
    op: u64,
}

impl Consumer {
    /// Some batches of events, until something goes wrong or others are to have their turn.
    async fn turn(&mut self, guard: Guard, end: Instant) -> io::Result<()> {
        let register = self.locks.register(REGISTER);
        let Ok(loaded) = register.load().await else { return Ok(()) };
        let mut expect = Precondition::from(&loaded);
        let known =
            loaded.map_or(Some(Checkpoint::default()), |e| Checkpoint::from_bytes(&e.value));
        let mut checkpoint = known.ok_or_else(|| io::Error::other("the checkpoint is not one"))?;
        for _ in 0..self.rng.random_range(1..30) {
            let Ok(token) = guard.token() else { break };
            let mut next = checkpoint;
            next.take(self.rng.random_range(1..5));
            self.op += 1;
            let op = self.op;
            let (from, to) = (checkpoint.next, next.next);
            self.note(&format!("try {op} {from} {to} {token}"))?;
            match register.compare_and_store_with(&guard, expect, next.to_bytes()).await {
                Ok(version) => {
                    self.note(&format!("yes {op} {}", version.0))?;
                    (expect, checkpoint) = (Precondition::Version(version), next);
                }
                Err(error) => {
                    self.note(&format!("no {op} {error}"))?;
                    break;
                }
            }
            let pause = match self.rng.random_range(0..40) {
                0 => self.ttl.mul_f64(self.rng.random_range(0.5..1.4)), // needs renewing
                _ => Duration::from_micros(self.rng.random_range(0..5000)),
            };
            sleep(pause).await;
            if Instant::now() > end {
                break;
            }
        }
        match self.rng.random_range(0..4) {
            0 => drop(guard),
            _ => drop(guard.release().await),
        }
        Ok(())
    }

    /// In one write, so that a killed process leaves whole lines, or none.
    fn note(&mut self, line: &str) -> io::Result<()> {
        self.notes.write_all(format!("{line}\n").as_bytes())
    }
}
