//! Measurements of lockkit beside bare calls of equal effect: `cargo bench` in this folder.
//!
//! Machines are noisy, so the figures that matter are ratios within one run: [`ratio`] takes turns
//! between two ways of doing a thing and prints the ratio of their medians, [`race`] does so with
//! any number of ways and of tasks.

mod durable;

use std::pin::Pin;
use std::time::Instant;

use tokio::task::JoinSet;

pub use durable::start_durable;

/// Rounds of each way.
fn rounds() -> usize {
    if is_brief() { 1 } else { 15 }
}

/// Whether to do just enough to see that everything runs: `BENCH_BRIEF=1`.
pub fn is_brief() -> bool {
    std::env::var_os("BENCH_BRIEF").is_some()
}

/// Runs `ours` and `bare` in turn, so many times a round, and prints how their rates compare:
/// 1.0 is as fast as the bare way, 0.5 takes twice as long.
pub async fn ratio(
    what: &str,
    times: u32,
    mut ours: impl AsyncFnMut(),
    mut bare: impl AsyncFnMut(),
) -> f64 {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let times = if is_brief() { times.min(20) } else { times };
    for _ in 0..rounds() {
        let begun = Instant::now();
        for _ in 0..times {
            ours().await;
        }
        first.push(f64::from(times) / begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        for _ in 0..times {
            bare().await;
        }
        second.push(f64::from(times) / begun.elapsed().as_secs_f64());
    }
    let (ours, bare) = (median(first), median(second));
    let ratio = ours / bare;
    println!("{what}: {ours:.0}/s beside {bare:.0}/s bare, ratio {ratio:.2}");
    ratio
}

/// One way of doing a thing.
pub struct Way {
    name: &'static str,
    round: Round,
}

type Round = Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = ()>>>>;

impl Way {
    /// Does the thing in so many tasks at once, which `each` tells apart by a number from 0 on.
    pub fn new<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        tasks: usize,
        each: impl Fn(usize) -> F + Clone + Send + 'static,
    ) -> Self {
        let round: Round = Box::new(move |times| {
            let each = each.clone();
            Box::pin(async move {
                let mut running = JoinSet::new();
                for task in 0..tasks {
                    let each = each.clone();
                    running.spawn(async move {
                        for _ in 0..times / tasks {
                            each(task).await;
                        }
                    });
                }
                running.join_all().await;
            })
        });
        Self { name, round }
    }

    /// Does it so many times in all.
    pub async fn round(&self, times: usize) {
        (self.round)(times).await;
    }
}

/// Runs all ways in turn, so many times a round, and prints the median rate of each, the ratio of
/// the first one's to it, and the time on a CPU that this process spent each time.
pub async fn race(what: &str, times: usize, ways: &[Way]) {
    race_at(what, times, ways, &[]).await;
}

/// The same, and the time on a CPU that these processes spent each time, which are the server's.
/// Neither depends much on what else the machine does.
pub async fn race_at(what: &str, times: usize, ways: &[Way], server: &[i32]) {
    let mut measured = vec![[const { Vec::new() }; 3]; ways.len()];
    let times = if is_brief() { times.min(64) } else { times };
    for _ in 0..rounds() {
        for (way, [rates, cpus, servers]) in ways.iter().zip(&mut measured) {
            let (begun, spent) = (Instant::now(), [cpu_seconds(), cpu_seconds_of(server)]);
            way.round(times).await;
            let each = |now: f64, before: f64| (now - before) * 1e6 / times as f64;
            rates.push(times as f64 / begun.elapsed().as_secs_f64());
            cpus.push(each(cpu_seconds(), spent[0]));
            servers.push(each(cpu_seconds_of(server), spent[1]));
        }
    }
    let medians: Vec<_> = measured.into_iter().map(|all| all.map(median)).collect();
    for (way, [rate, cpu, at_server]) in ways.iter().zip(&medians) {
        let (name, ratio) = (way.name, medians[0][0] / rate);
        print!("{what}: {name:<17} {rate:>8.0}/s, ratio {ratio:.2}; {cpu:.1} µs of CPU here");
        match server.is_empty() {
            true => println!(),
            false => println!(", {at_server:.1} µs at the server"),
        }
    }
}

/// What these processes have spent on all CPUs, in all their threads.
fn cpu_seconds_of(processes: &[i32]) -> f64 {
    let threads = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let spent = |thread: std::fs::DirEntry| -> Option<f64> {
        let told = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse().ok()
    };
    let spent: f64 = processes.iter().flat_map(threads).flatten().filter_map(spent).sum();
    spent / 1e9
}

/// What this process has spent on all CPUs.
fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The one in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
