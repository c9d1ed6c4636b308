//! Measurements of lockkit beside bare calls of equal effect: `cargo bench` in this folder.
//!
//! Machines are noisy, so the figures that matter are ratios within one run: [`ratio`] takes turns
//! between two ways of doing a thing and prints the ratio of their medians.

use std::time::Instant;

/// Rounds of each way.
const ROUNDS: usize = 15;

/// Runs `ours` and `bare` in turn, so many times a round, and prints how their rates compare:
/// 1.0 is as fast as the bare way, 0.5 takes twice as long.
pub async fn ratio(
    what: &str,
    times: u32,
    mut ours: impl AsyncFnMut(),
    mut bare: impl AsyncFnMut(),
) -> f64 {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
