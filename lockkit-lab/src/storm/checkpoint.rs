//! A storm for consumers: processes that take turns at a stream of numbered events and keep how far
//! they are in a register, under the fence of their lock. They are killed, frozen and cut off; the
//! judge then looks for an event that was lost, or done twice, in the checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::LockManager;
use lockkit_core::capabilities::Fault;

use super::client::Orders;
use super::plan::{PlannedFault, StormPlan};
use super::processes::Processes;
use super::{FaultInjector, Storm, StormSetup};

/// The lock that consumers take turns at.
pub(super) const LOCK: &str = "storm/consumer";

/// The register that has the checkpoint.
pub(super) const REGISTER: &str = "storm/checkpoint";

/// How far the events are done, and what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The first event that is not done.
    pub next: u64,
    /// What came of all before it, in their order: another one when one is left out or done twice.
    pub digest: u64,
}

impl Checkpoint {
    /// The checkpoint after the first so many events.
    pub fn after(events: u64) -> Self {
        let mut checkpoint = Self::default();
        checkpoint.take(events);
        checkpoint
    }

    /// Does the next so many events.
    pub fn take(&mut self, events: u64) {
        for _ in 0..events {
            let event = (self.next ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            self.digest = self.digest.wrapping_mul(0x94d0_49bb_1331_11eb).wrapping_add(event);
            self.next += 1;
        }
    }

    /// As the register has it.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.next.to_be_bytes(), self.digest.to_be_bytes()].concat()
    }

    /// As [`to_bytes`](Self::to_bytes) wrote it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (next, digest) = bytes.split_first_chunk()?;
        let digest = u64::from_be_bytes(digest.try_into().ok()?);
        Some(Self { next: u64::from_be_bytes(*next), digest })
    }
}

/// One attempt of a consumer to store a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// How far the events were done before.
    pub from: u64,
    /// How far they are done with this.
    pub to: u64,
    /// The lock's token.
    pub token: u64,
    /// Under which version it was stored; `None` when the answer was not a yes, or never came.
    pub version: Option<u64>,
}

/// What is wrong with a history of checkpoints that ended with `last`. Empty: nothing.
pub fn judge(attempts: &[Attempt], last: Checkpoint) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut stored = BTreeMap::new();
    let mut unsure = BTreeSet::new();
    for attempt in attempts {
        match attempt.version {
            None => drop(unsure.insert((attempt.from, attempt.to))),
            Some(version) => {
                if let Some(other) = stored.insert(version, *attempt) {
                    wrong.push(format!("{attempt:?} and {other:?} have one version"));
                }
            }
        }
    }
    let (mut done, mut token) = (0, 0);
    for attempt in stored.values() {
        if attempt.from < done {
            wrong.push(format!("done twice: the events from {} to {done}", attempt.from));
        } else if !reaches(&unsure, done, attempt.from) {
            wrong.push(format!("lost: the events from {done} to {}", attempt.from));
        }
        if attempt.token < token {
            wrong.push(format!("{attempt:?} was stored after one with token {token}"));
        }
        (done, token) = (attempt.to, attempt.token);
    }
    if last.next < done || !reaches(&unsure, done, last.next) {
        wrong.push(format!("{done} events were done, and the checkpoint says {}", last.next));
    }
    if last != Checkpoint::after(last.next) {
        wrong.push(format!("the checkpoint is not what comes of {} events", last.next));
    }
    wrong
}

/// Whether attempts of unknown end may have led from one place to the other.
fn reaches(unsure: &BTreeSet<(u64, u64)>, from: u64, to: u64) -> bool {
    let mut reached = BTreeSet::from([from]);
    // Attempts go forward: in the order of their beginnings, one look at each is enough.
    for (begin, end) in unsure.range((from, 0)..) {
        if reached.contains(begin) {
            reached.insert(*end);
        }
    }
    reached.contains(&to)
}

/// What came of a storm of consumers.
#[derive(Clone, Debug)]
pub struct ConsumerResult {
    /// How many events are done.
    pub events: u64,
    /// How many attempts to store a checkpoint were answered with yes, and how many were not.
    pub stored: usize,
    /// See [`stored`](Self::stored).
    pub unsure: usize,
    /// How many turns, by their tokens, stored something.
    pub turns: usize,
    /// How many faults struck.
    pub faults: usize,
    /// What is wrong. Empty: nothing.
    pub wrong: Vec<String>,
}

impl Storm {
    /// Runs consumers in the place of clients; `tasks` and `locks` of the storm are of no account. `look` reaches the same backend, past all faults.
    pub async fn run_consumers(
        &self,
        stage: &StormSetup,
        look: &LockManager,
    ) -> io::Result<ConsumerResult> {
        std::fs::create_dir_all(&self.folder)?;
        let orders = Orders {
            seed: self.seed,
            lasts: self.lasts,
            client: 0,
            tasks: 1,
            locks: 0,
            hot: false,
            ttl: self.ttl,
            wait_ttl: self.wait_ttl,
            registers: ([127, 0, 0, 1], 0).into(),
            folder: self.folder.clone(),
        };
        let processes = Processes::start(self, &stage.url, "storm-consumer", &orders)?;
        let plan = StormPlan::new(self, &stage.injector.faults());
        let faults = plan.faults.len();
        inject_all(plan, self.lasts, &processes, &stage.injector).await?;
        processes.join(self.lasts + Duration::from_secs(120)).await?;
        // The one that comes last: only a lease can be in its way.
        let guard = look.mutex(LOCK).lock().await.map_err(io::Error::other)?;
        let entry = look.register(REGISTER).load().await.map_err(io::Error::other)?;
        drop(guard.release().await);
        let last = entry.map_or(Some(Checkpoint::default()), |e| Checkpoint::from_bytes(&e.value));
        let last = last.ok_or_else(|| io::Error::other("the checkpoint is not one"))?;
        let attempts = attempts(&self.folder)?;
        let tokens: BTreeSet<_> =
            attempts.iter().filter(|a| a.version.is_some()).map(|a| a.token).collect();
        let stored = attempts.iter().filter(|a| a.version.is_some()).count();
        Ok(ConsumerResult {
            events: last.next,
            stored,
            unsure: attempts.len() - stored,
            turns: tokens.len(),
            faults,
            wrong: judge(&attempts, last),
        })
    }
}

async fn inject_all(
    plan: StormPlan,
    lasts: Duration,
    processes: &Processes,
    injector: &Arc<dyn FaultInjector>,
) -> io::Result<()> {
    let begun = tokio::time::Instant::now();
    for PlannedFault { at, lasts, fault, target } in plan.faults {
        tokio::time::sleep_until(begun + at).await;
        match fault {
            Fault::ClientDies => processes.kill(target)?,
            Fault::ClientPaused => processes.freeze(target, lasts).await?,
            _ => {
                let target = injector.aim(fault, &[LOCK.to_owned()]).await;
                injector.inject(fault, lasts, &target).await;
            }
        }
    }
    tokio::time::sleep_until(begun + lasts).await;
    Ok(())
}

/// What the consumers wrote down: `try OP FROM TO TOKEN`, and `yes OP VERSION`.
fn attempts(folder: &Path) -> io::Result<Vec<Attempt>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "attempts") {
            all.extend(parse(&std::fs::read_to_string(path)?));
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Vec<Attempt> {
    let mut attempts = BTreeMap::new();
    // A line that a killed process did not finish has not been acted upon.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |i: usize| words.get(i).and_then(|word| word.parse::<u64>().ok());
        match (words.first(), number(1), number(2), number(3), number(4)) {
            (Some(&"try"), Some(op), Some(from), Some(to), Some(token)) => {
                attempts.insert(op, Attempt { from, to, token, version: None });
            }
            (Some(&"yes"), Some(op), version @ Some(_), ..) => {
                if let Some(attempt) = attempts.get_mut(&op) {
                    attempt.version = version;
                }
            }
            _ => {}
        }
    }
    attempts.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(from: u64, to: u64, token: u64, version: u64) -> Attempt {
        Attempt { from, to, token, version: Some(version) }
    }

    fn unsure(from: u64, to: u64) -> Attempt {
        Attempt { from, to, token: 1, version: None }
    }

    #[test]
    fn turns_that_follow_each_other_are_fine_also_where_an_answer_was_lost() {
        let history = [stored(0, 3, 1, 1), unsure(3, 5), unsure(5, 6), stored(6, 9, 2, 4)];
        assert_eq!(judge(&history, Checkpoint::after(9)), [""; 0]);
        let ends_unsure = [stored(0, 3, 1, 1), unsure(3, 5)];
        assert_eq!(judge(&ends_unsure, Checkpoint::after(5)), [""; 0]);
        assert_eq!(judge(&ends_unsure, Checkpoint::after(3)), [""; 0]);
    }

    #[test]
    fn what_is_lost_or_done_twice_or_stale_is_found() {
        let twice = [stored(0, 3, 1, 1), stored(1, 4, 2, 2)];
        assert!(judge(&twice, Checkpoint::after(4))[0].contains("done twice"));
        let lost = [stored(0, 3, 1, 1), stored(5, 6, 2, 2)];
        assert!(judge(&lost, Checkpoint::after(6))[0].contains("lost"));
        let back = [stored(0, 3, 1, 1), stored(3, 6, 1, 2)];
        assert!(judge(&back, Checkpoint::after(3))[0].contains("6 events were done"));
        let stale = [stored(0, 3, 2, 1), stored(3, 6, 1, 2)];
        assert!(judge(&stale, Checkpoint::after(6))[0].contains("with token 2"));
        let mut skipped = Checkpoint::after(2);
        skipped.next += 1;
        assert!(judge(&[stored(0, 3, 1, 1)], skipped)[0].contains("what comes of"));
    }

    #[test]
    fn a_checkpoint_and_an_attempt_survive_their_writing() {
        let checkpoint = Checkpoint::after(7);
        assert_eq!(Checkpoint::from_bytes(&checkpoint.to_bytes()), Some(checkpoint));
        let text = "try 1 0 3 9\nyes 1 4\ntry 2 3 5 9\nno 2\ntry 3 3 5 10\nyes 3";
        assert_eq!(parse(text)[0], stored(0, 3, 9, 4));
        assert_eq!(parse(text).iter().filter(|a| a.version.is_none()).count(), 2);
    }
}
