//! Storms of two kinds of clients at one lock, those of lockkit and [neighbours](lockkit_core::driver::Gate),
//! and their judge: no two hold at once while each keeps its lease.
//!
//! Clients are processes, which the storm pauses and kills. Each writes to a file of its own when it held, on
//! the machine's monotonic clock; a program in another language writes the same lines:
//!
//! | line | means |
//! | --- | --- |
//! | `wait NS` | the acquire that follows took so long |
//! | `enter T UNTIL` | at `T` it held, by what it knew until `UNTIL` |
//! | `until T UNTIL` | the same, later: its lease was renewed, or has ended when `UNTIL` is not after `T` |
//! | `leave T` | it gives back |

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkit_core::LockManager;
use rand::prelude::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::Proxy;

/// The lease of both kinds of clients.
pub const LEASE: Duration = Duration::from_millis(1_200);
/// The variable with the file of a client.
pub const FILE: &str = "LOCKKIT_NEIGHBOURS_FILE";

/// Nanoseconds of the machine's monotonic clock.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether this process is a client of a storm, which is to live until it is killed.
pub fn is_client() -> bool {
    std::env::var_os(FILE).is_some()
}

/// The file to which this client writes when it held.
#[derive(Debug)]
pub struct Diary(File);

impl Diary {
    /// Of this process: see [`is_client`].
    ///
    /// # Panics
    ///
    /// If the storm named no file, or it cannot be written.
    pub fn of_this_process() -> Self {
        let file = std::env::var_os(FILE).expect("the storm names a file");
        Self(OpenOptions::new().append(true).create(true).open(file).expect("a file"))
    }

    fn write(&mut self, lines: &str) {
        self.0.write_all(lines.as_bytes()).expect("a file that can be written");
    }

    /// Held since a request that was sent at `wanted`; by what is known until `until`.
    pub fn enters(&mut self, wanted: u64, until: u64) {
        let at = now();
        self.write(&format!("wait {}\nenter {at} {until}\n", at - wanted));
    }

    /// Gives back from now on.
    pub fn leaves(&mut self) {
        self.write(&format!("leave {}\n", now()));
    }
}

/// The life of a client of lockkit: takes and gives back.
///
/// # Cancel safety
///
/// If the future is dropped, the lock is released in the background.
pub async fn live(locks: &LockManager, name: &str) -> ! {
    let (mut diary, mut rng) = (Diary::of_this_process(), StdRng::from_os_rng());
    let mutex = locks.mutex(name);
    loop {
        let wanted = now();
        let Ok(guard) = mutex.lock().await else { continue };
        // The guard is asked after the clock was read: what it says counts from a later moment.
        let until = |at: u64| at + guard.remaining().as_nanos() as u64;
        diary.enters(wanted, until(now()));
        let holds = *[2, 10, 30, 700, 4_000].choose(&mut rng).expect("one of them");
        let end = Instant::now() + Duration::from_millis(holds);
        while Instant::now() < end && guard.is_valid() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let at = now();
            diary.write(&format!("until {at} {}\n", until(at)));
        }
        diary.leaves();
        let _ = guard.release().await;
        pause(&mut rng, [0, 5, 20]).await;
    }
}

/// Between two locks of a client, in milliseconds.
async fn pause(rng: &mut StdRng, pauses: [u64; 3]) {
    let pause = *pauses.choose(rng).expect("one of them");
    tokio::time::sleep(Duration::from_millis(pause)).await;
}

/// The life of a neighbour, which tries, holds for half its lease at most, and gives back. `lease` is `None` where
/// it ends with the process.
///
/// # Cancel safety
///
/// If the future is dropped, it may hold.
pub async fn live_beside(
    lease: Option<Duration>,
    mut tries: impl AsyncFnMut() -> bool,
    mut gives: impl AsyncFnMut(),
) -> ! {
    let (mut diary, mut rng) = (Diary::of_this_process(), StdRng::from_os_rng());
    let mut wanted = now();
    loop {
        let sent = now();
        if !tries().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        diary.enters(wanted, lease.map_or(u64::MAX, |lease| sent + lease.as_nanos() as u64));
        let holds = *[2, 10, 30, 600].choose(&mut rng).expect("one of them");
        tokio::time::sleep(Duration::from_millis(holds)).await;
        diary.leaves();
        gives().await;
        // Long ones, too: lockkit tries more seldom.
        pause(&mut rng, [0, 20, 500]).await;
        wanted = now();
    }
}

/// One client of a storm.
struct StormClient {
    child: Child,
    is_ours: bool,
    file: PathBuf,
}

impl StormClient {
    /// Whether it holds by what it wrote last.
    fn holds(&self) -> bool {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().last().is_some_and(|line| line.starts_with(['e', 'u']))
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for StormClient {
    fn drop(&mut self) {
        let at = now();
        let _ = self.child.kill();
        let _ = self.child.wait();
        // It holds nothing any more; a lock that is the session's has ended, too.
        let file = OpenOptions::new().append(true).open(&self.file);
        let _ = file.map(|mut file| file.write_all(format!("\nkilled {at}\n").as_bytes()));
    }
}

/// A fault took from clients what they had, which they know later.
#[derive(Clone, Copy, Debug)]
struct Excuse {
    before: u64,
    after: u64,
    taken_from: TakenFrom,
}

/// From which clients a fault takes the lock that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenFrom {
    /// From none.
    NoClient,
    /// From one of lockkit's.
    Lockkit,
    /// From any.
    Anybody,
}

/// Two clients of each kind, and what is done to them.
pub struct NeighbourStorm<'a> {
    folder: tempfile::TempDir,
    clients: Vec<StormClient>,
    files: usize,
    start: &'a dyn Fn(bool) -> Command,
    excused: Vec<Excuse>,
    rng: StdRng,
}

impl std::fmt::Debug for NeighbourStorm<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NeighbourStorm").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl<'a> NeighbourStorm<'a> {
    /// `start` makes the program of a client, of lockkit's if asked.
    ///
    /// # Panics
    ///
    /// If a client cannot be started.
    pub fn new(start: &'a dyn Fn(bool) -> Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (clients, excused, rng) = (Vec::new(), Vec::new(), StdRng::from_os_rng());
        let mut storm = Self { folder, clients, files: 0, start, excused, rng };
        [true, true, false, false].into_iter().for_each(|is_ours| storm.start(is_ours));
        storm
    }

    fn start(&mut self, is_ours: bool) {
        self.files += 1;
        let side = if is_ours { "lockkit" } else { "neighbour" };
        let file = self.folder.path().join(format!("{side}-{}", self.files));
        File::create(&file).expect("a file");
        let mut command = (self.start)(is_ours);
        command.env(FILE, &file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a program that starts");
        self.clients.push(StormClient { child, is_ours, file });
    }

    /// Lets the clients live for so long, and strikes again and again: kills one and starts another, pauses one
    /// of either kind, or does one of these many `faults` to the server. A fault says from whom it took a lock:
    /// that is not held against them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the storm goes on without faults until it is dropped.
    pub async fn rage(
        &mut self,
        length: Duration,
        faults: usize,
        mut fault: impl AsyncFnMut(usize) -> TakenFrom,
    ) {
        let began = Instant::now();
        for round in 0_usize.. {
            let pause = self.rng.random_range(200..900);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if began.elapsed() >= length {
                return;
            }
            match round % (3 + faults) {
                0 => self.pause_holder(true).await,
                1 => {
                    let chosen = self.rng.random_range(0..self.clients.len());
                    let is_ours = self.clients.swap_remove(chosen).is_ours;
                    self.start(is_ours);
                }
                2 => self.pause_holder(false).await,
                other => {
                    self.holder(true).await;
                    let before = now();
                    let taken_from = fault(other - 3).await;
                    self.excused.push(Excuse { before, after: now(), taken_from });
                }
            }
        }
    }

    /// Pauses a client of this kind, one that holds if there is one soon, for up to twice its lease.
    async fn pause_holder(&mut self, is_ours: bool) {
        let pause = LEASE.mul_f64(self.rng.random_range(0.2..2.2));
        let client = self.holder(is_ours).await;
        client.signal(Signal::STOP);
        tokio::time::sleep(pause).await;
        client.signal(Signal::CONT);
    }

    /// The client of this kind that holds, or any of them if none does soon.
    async fn holder(&self, is_ours: bool) -> &StormClient {
        let of_kind = || self.clients.iter().filter(|it| it.is_ours == is_ours);
        for _ in 0..100 {
            if let Some(holder) = of_kind().find(|client| client.holds()) {
                return holder;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        of_kind().next().expect("two of each kind")
    }

    /// Ends all, and judges what they wrote.
    ///
    /// # Panics
    ///
    /// If two held at once, or one kind of clients never did.
    pub fn judge(mut self, what: &str) {
        self.clients.clear();
        let (mut all, mut counts) = (Vec::new(), BTreeMap::new());
        for file in std::fs::read_dir(self.folder.path()).expect("the folder") {
            let (held, waits) = history(&file.expect("a file").path());
            for one in &held {
                let kind = one.side.split('-').next().unwrap_or_default().to_owned();
                let (times, longest): &mut (usize, u64) = counts.entry(kind).or_default();
                *times += 1;
                *longest = waits.iter().copied().fold(*longest, u64::max);
            }
            all.extend(held);
        }
        for (side, (times, longest)) in &counts {
            let longest = Duration::from_nanos(*longest);
            println!("{what}: {side} held {times} times, and waited for {longest:?} at most");
        }
        let found = overlaps(&all, &self.excused);
        let excuses = &self.excused;
        let first = found.first();
        assert_eq!(found.len(), 0, "{what}: two held at once: {first:?}; faults: {excuses:?}");
        assert_eq!(counts.len(), 2, "{what}: of one kind none ever held: {counts:?}");
    }
}

/// When a client held by what it knew: until it gave back, or its lease ended.
#[derive(Clone, Debug)]
struct Held {
    side: String,
    from: u64,
    until: u64,
}

/// Reads the history of a client, and its waits.
fn history(file: &Path) -> (Vec<Held>, Vec<u64>) {
    let side = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let text = std::fs::read_to_string(file).expect("a file that can be read");
    let (mut held, mut waits): (Vec<Held>, Vec<u64>) = Default::default();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let numbers: Vec<u64> = words[1..].iter().filter_map(|word| word.parse().ok()).collect();
        let last = held.last_mut();
        match (words[0], &numbers[..], last) {
            ("wait", [wait], _) => waits.push(*wait),
            ("enter", [from, until], _) => {
                held.push(Held { side: side.to_owned(), from: *from, until: *until });
            }
            // A guard that is valid no more says that nothing is left: it ended before.
            ("until", [at, until], Some(last)) => {
                last.until = if until > at { *until } else { last.until.min(*at) };
            }
            ("leave", [at], Some(last)) => last.until = last.until.min(*at),
            ("killed", [at], Some(last)) => last.until = last.until.min(*at),
            // One that was killed in the middle of a line leaves the rest of it out.
            _ => {}
        }
    }
    (held, waits)
}

/// Two that held at once, where no fault excuses it.
fn overlaps(held: &[Held], excused: &[Excuse]) -> Vec<(Held, Held)> {
    let mut held = held.to_vec();
    for one in &mut held {
        let excuses = excused.iter().filter(|it| match it.taken_from {
            TakenFrom::NoClient => false,
            TakenFrom::Lockkit => one.side.starts_with("lockkit"),
            TakenFrom::Anybody => true,
        });
        // It struck somewhere between.
        let of_this = excuses.filter(|it| one.from <= it.after && one.until > it.before);
        if let Some(before) = of_this.map(|it| it.before).min() {
            one.until = one.until.min(before);
        }
    }
    held.retain(|one| one.from < one.until);
    held.sort_by_key(|one| one.from);
    let mut found = Vec::new();
    let mut latest: Option<Held> = None;
    for one in held {
        let Some(before) = latest.take() else {
            latest = Some(one);
            continue;
        };
        if one.from < before.until {
            found.push((before.clone(), one.clone()));
        }
        latest = Some(if before.until > one.until { before } else { one });
    }
    found
}

/// A fault: answers come late, and then no request arrives for as long as a lease lasts, so that a guard which
/// counts from an answer outlives its lease; at last answers come when the lease is over that they tell of.
///
/// # Cancel safety
///
/// If the future is dropped, requests or answers go on coming late.
pub async fn late_answers(proxy: &Proxy) -> TakenFrom {
    let (none, over) = (Duration::ZERO, LEASE + Duration::from_millis(100));
    let phases =
        [(none, LEASE / 4, LEASE / 2), (2 * LEASE, LEASE / 4, LEASE), (none, over, 2 * LEASE)];
    for (to_server, to_client, length) in phases {
        proxy.latencies(to_server, to_client);
        tokio::time::sleep(length).await;
    }
    proxy.latencies(none, none);
    TakenFrom::NoClient
}

/// How long a storm is to be: a moment in the tests, `LOCKKIT_STORM_SECONDS=60` for a minute.
pub fn storm_length() -> Duration {
    let seconds = std::env::var("LOCKKIT_STORM_SECONDS").ok().and_then(|it| it.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

#[cfg(test)]
mod tests {
    use super::{Excuse, Held, TakenFrom, history, overlaps};

    #[test]
    fn the_judge_convicts_two_that_hold_at_once_and_forgives_what_a_fault_took() {
        let held = |side: &str, from, until| Held { side: side.to_owned(), from, until };
        let excuse = |before, after, taken_from| Excuse { before, after, taken_from };
        let (ours, any) = (TakenFrom::Lockkit, TakenFrom::Anybody);
        let apart =
            [held("lockkit-1", 10, 20), held("neighbour-2", 20, 30), held("lockkit-1", 31, 40)];
        assert!(overlaps(&apart, &[]).is_empty());
        let at_once = [held("lockkit-1", 10, 50), held("neighbour-2", 20, 30)];
        assert_eq!(overlaps(&at_once, &[]).len(), 1);
        assert!(overlaps(&at_once, &[excuse(15, 16, ours)]).is_empty());
        assert_eq!(overlaps(&at_once, &[excuse(40, 41, any)]).len(), 1, "after it was too late");
        let theirs = [held("neighbour-1", 10, 50), held("lockkit-2", 20, 30)];
        assert_eq!(overlaps(&theirs, &[excuse(15, 16, ours)]).len(), 1, "it took nothing of that");
        assert!(overlaps(&theirs, &[excuse(15, 16, any)]).is_empty());
        assert_eq!(overlaps(&theirs, &[excuse(15, 16, TakenFrom::NoClient)]).len(), 1);
        let in_a_row = [held("a-1", 10, 50), held("a-2", 20, 30), held("a-3", 40, 45)];
        assert_eq!(overlaps(&in_a_row, &[]).len(), 2);
    }

    #[test]
    fn a_history_ends_each_hold_with_the_last_that_was_known_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let file = folder.path().join("neighbour-1");
            std::fs::write(&file, text).unwrap();
            history(&file).0.iter().map(|it| (it.from, it.until)).collect::<Vec<_>>()
        };
        assert_eq!(read("wait 3\nenter 10 50\nuntil 20 60\nleave 30\n"), [(10, 30)]);
        assert_eq!(read("enter 10 50\nuntil 20 60\nuntil 55 55\n"), [(10, 55)]);
        assert_eq!(read("enter 10 50\nunt\nkilled 20\n"), [(10, 20)], "it ended with the process");
    }
}
