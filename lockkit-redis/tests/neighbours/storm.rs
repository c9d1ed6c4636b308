//! Clients of both kinds at one lock, which are killed and paused, whose connections are closed and whose
//! keys are deleted: no two hold at once while each keeps its lease.
//!
//! A second or six in the tests; `LOCKKIT_STORM_SECONDS=60` for a minute.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkit_core::{LockManager, Settings};
use lockkit_redis::RedisDriver;
use rand::prelude::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::{Place, STYLES, packages};

const URL: &str = "LOCKKIT_TEST_URL";
const NAMESPACE: &str = "LOCKKIT_TEST_NAMESPACE";
const NAME: &str = "LOCKKIT_TEST_NAME";
const FILE: &str = "LOCKKIT_TEST_FILE";
/// Of both kinds.
const LEASE: Duration = Duration::from_millis(1_200);

/// On the clock that Python's `monotonic_ns` reads, too.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The part of a child: takes and gives back until it is killed, and writes when it held. By itself, a round
/// on a server of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_takes_and_gives_back() {
    let Ok(url) = std::env::var(URL) else {
        let place = Place::new("set-nx").await;
        let locks = place.locks(LEASE).await;
        locks.mutex(&place.name).lock().await.unwrap().release().await.unwrap();
        return assert_eq!(place.left().await, -2);
    };
    let var = |name| std::env::var(name).unwrap();
    let driver = RedisDriver::connect(&url).await.unwrap();
    let settings = Settings::default().namespace(var(NAMESPACE)).ttl(LEASE).wait_ttl(LEASE);
    let locks = LockManager::with(std::sync::Arc::new(driver), settings).unwrap();
    let mut file = OpenOptions::new().append(true).create(true).open(var(FILE)).unwrap();
    let mut say = |line: String| file.write_all(line.as_bytes()).unwrap();
    let mutex = locks.mutex(var(NAME));
    let mut rng = StdRng::from_os_rng();
    loop {
        let wanted = now();
        let Ok(guard) = mutex.lock().await else { continue };
        // The guard is asked after the clock was read: what it says counts from a later moment.
        let until = |at: u64| at + guard.remaining().as_nanos() as u64;
        let at = now();
        say(format!("wait {}\nenter {at} {}\n", at - wanted, until(at)));
        let holds = *[2, 10, 30, 700, 2_500].choose(&mut rng).unwrap();
        let end = Instant::now() + Duration::from_millis(holds);
        while Instant::now() < end && guard.is_valid() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let at = now();
            say(format!("until {at} {}\n", until(at)));
        }
        say(format!("leave {}\n", now()));
        let _ = guard.release().await;
        tokio::time::sleep(Duration::from_millis(*[0, 5, 20].choose(&mut rng).unwrap())).await;
    }
}

/// One client of a storm.
struct Client {
    child: Child,
    is_ours: bool,
}

impl Client {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The clients of a storm, and what is done to them.
struct Scene<'a> {
    place: &'a Place,
    folder: PathBuf,
    clients: Vec<Client>,
    files: usize,
    /// When the key was deleted by hand.
    deleted: Vec<(u64, u64)>,
}

impl Scene<'_> {
    fn start(&mut self, is_ours: bool) {
        self.files += 1;
        let side = if is_ours { "lockkit" } else { "neighbour" };
        let file = self.folder.join(format!("{side}-{}", self.files));
        File::create(&file).unwrap();
        let mut command = match is_ours {
            true => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", "storm::a_child_takes_and_gives_back", "--nocapture"]);
                command.env(URL, self.place.url(self.place.style)).env(NAME, &self.place.name);
                command.env(NAMESPACE, &self.place.namespace).env(FILE, &file);
                command
            }
            false => {
                let lease = LEASE.as_millis().to_string();
                let work = ["storm", &lease, file.to_str().unwrap()];
                self.place.neighbour(&work).into_std()
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.clients.push(Client { child: command.spawn().unwrap(), is_ours });
    }

    async fn disturb(&mut self, rng: &mut StdRng) {
        let client = rng.random_range(0..self.clients.len());
        match rng.random_range(0..5) {
            0 => {
                let is_ours = self.clients.swap_remove(client).is_ours;
                self.start(is_ours);
            }
            1 | 2 => {
                self.clients[client].signal(Signal::STOP);
                let pause = rng.random_range(200..2_500);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.clients[client].signal(Signal::CONT);
            }
            3 => {
                self.place.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            }
            _ => {
                let before = now();
                self.place.ask(&["DEL", &self.place.name]).await;
                self.deleted.push((before, now()));
            }
        }
    }
}

/// When a client held by what it knew: until it gave back, or its lease ended.
#[derive(Clone, Debug)]
struct Held {
    side: String,
    from: u64,
    until: u64,
}

/// Reads the history of a client, and its longest wait.
fn history(file: &Path) -> (Vec<Held>, Vec<u64>) {
    let side = file.file_name().unwrap().to_str().unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let (mut held, mut waits): (Vec<Held>, Vec<u64>) = Default::default();
    // A client that is killed in the middle of a line leaves the rest of it out.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "wait" => waits.push(number(1)),
            "enter" => {
                let (from, until) = (number(1), number(2));
                held.push(Held { side: side.to_owned(), from, until });
            }
            "until" => {
                let last = held.last_mut().unwrap();
                // A guard that is valid no more says that nothing is left: it ended before.
                last.until =
                    if number(2) > number(1) { number(2) } else { last.until.min(number(1)) };
            }
            "leave" => {
                let last = held.last_mut().unwrap();
                last.until = last.until.min(number(1));
            }
            other => panic!("{other}"),
        }
    }
    (held, waits)
}

/// Two that held at once. Where the key was deleted, those whose key it was have kept no lease.
fn overlaps(held: &[Held], deleted: &[(u64, u64)]) -> Vec<(Held, Held)> {
    let mut held = held.to_vec();
    for one in &mut held {
        let first = deleted.iter().filter(|(_, after)| one.from <= *after && one.until > *after);
        if let Some((before, _)) = first.min() {
            one.until = one.until.min(*before);
        }
    }
    held.retain(|one| one.from < one.until);
    held.sort_by_key(|one| one.from);
    let mut found = Vec::new();
    let mut latest: Option<Held> = None;
    for one in held {
        if let Some(before) = latest.take() {
            if one.from < before.until {
                found.push((before.clone(), one.clone()));
            }
            latest = Some(if before.until > one.until { before } else { one });
        } else {
            latest = Some(one);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_hold_at_once_in_a_storm_with_pypi() {
    if packages().is_none() {
        return;
    }
    let seconds = std::env::var("LOCKKIT_STORM_SECONDS").ok().and_then(|it| it.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(6));
    for style in STYLES {
        let place = Place::new(style).await;
        // Its folder is the test's own, and goes with it.
        let folder = std::env::temp_dir().join(format!("lockkit-storm-{}", place.namespace));
        std::fs::create_dir_all(&folder).unwrap();
        let clients = Vec::new();
        let mut scene = Scene { place: &place, folder, clients, files: 0, deleted: Vec::new() };
        for is_ours in [true, true, false, false] {
            scene.start(is_ours);
        }
        let mut rng = StdRng::from_os_rng();
        let began = Instant::now();
        while began.elapsed() < length {
            tokio::time::sleep(Duration::from_millis(rng.random_range(200..900))).await;
            scene.disturb(&mut rng).await;
        }
        scene.clients.clear();
        let (mut all, mut counts) = (Vec::new(), BTreeMap::new());
        for file in std::fs::read_dir(&scene.folder).unwrap() {
            let (held, waits) = history(&file.unwrap().path());
            for one in &held {
                let kind = one.side.split('-').next().unwrap().to_owned();
                let (times, longest): &mut (usize, u64) = counts.entry(kind).or_default();
                *times += 1;
                *longest = (*longest).max(waits.iter().copied().max().unwrap_or_default());
            }
            all.extend(held);
        }
        for (side, (times, longest)) in &counts {
            let longest = Duration::from_nanos(*longest);
            println!("{style}: {side} held {times} times, and waited for {longest:?} at most");
        }
        let found = overlaps(&all, &scene.deleted);
        std::fs::remove_dir_all(&scene.folder).unwrap();
        assert_eq!(found.len(), 0, "{style}: two held at once: {:?}", found.first());
        for side in ["lockkit", "neighbour"] {
            assert!(counts.get(side).is_some_and(|(times, _)| *times > 0), "{style}: {counts:?}");
        }
    }
}

#[test]
fn the_judge_convicts_two_that_hold_at_once_and_forgives_a_deleted_key() {
    let held = |side: &str, from, until| Held { side: side.to_owned(), from, until };
    let apart = [held("lockkit-1", 10, 20), held("neighbour-2", 20, 30), held("lockkit-1", 31, 40)];
    assert!(overlaps(&apart, &[]).is_empty());
    let at_once = [held("lockkit-1", 10, 50), held("neighbour-2", 20, 30)];
    assert_eq!(overlaps(&at_once, &[]).len(), 1);
    assert!(overlaps(&at_once, &[(15, 16)]).is_empty());
    assert_eq!(overlaps(&at_once, &[(40, 41)]).len(), 1, "after it was too late");
    let in_a_row = [held("a-1", 10, 50), held("a-2", 20, 30), held("a-3", 40, 45)];
    assert_eq!(overlaps(&in_a_row, &[]).len(), 2);
}
