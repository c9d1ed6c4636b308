//! Which fault strikes when: random, and the same for the same seed.

use std::time::Duration;

use lockkit_core::capabilities::Fault;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Storm;

/// How long a storm begins without any fault.
const CALM: Duration = Duration::from_secs(1);

/// After how many strikes there is time for all that they did to be over.
const IN_A_ROW: usize = 8;

/// What is going to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormPlan {
    /// One after the other.
    pub faults: Vec<PlannedFault>,
}

/// A fault that strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// How long after the beginning.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// Which.
    pub fault: Fault,
    /// Which client process, where it strikes one.
    pub target: u32,
}

impl StormPlan {
    /// The plan for a storm in which, beside what strikes clients, these faults are to be had.
    pub fn new(storm: &Storm, faults: &[Fault]) -> Self {
        let mut rng = StdRng::seed_from_u64(storm.seed);
        let mut kinds = faults.to_vec();
        if storm.faults_at_clients {
            kinds.extend([Fault::ClientPaused, Fault::ClientDies]);
        }
        let mut faults = Vec::new();
        if kinds.is_empty() {
            return Self { faults };
        }
        // The last strikes end early enough for the storm to calm down. Before the first one, and
        // now and then, all is calm: what fails then has nothing to blame.
        let end = storm.lasts.saturating_sub(storm.ttl * 2);
        let mut at = CALM + Duration::from_millis(rng.random_range(200..800));
        while at < end {
            if faults.len() % IN_A_ROW == IN_A_ROW - 1 {
                at += storm.longest() * 2 + CALM;
            }
            let mut fault = kinds[rng.random_range(0..kinds.len())];
            // Where one lock is passed on all the time, above all answers are lost.
            if storm.hot && faults.len() % 2 == 0 && kinds.contains(&Fault::ConnectionCut) {
                fault = Fault::ConnectionCut;
            }
            // From a hiccup to well beyond the ttl.
            let lasts = storm.ttl.mul_f64(rng.random_range(0.05..1.8));
            faults.push(PlannedFault {
                at,
                lasts,
                fault,
                target: rng.random_range(0..storm.processes.max(1)),
            });
            at += lasts + storm.ttl.mul_f64(rng.random_range(0.1..0.8));
        }
        Self { faults }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let storm = |seed| Storm {
            seed,
            lasts: Duration::from_secs(60),
            processes: 4,
            tasks: 1,
            locks: 1,
            hot: false,
            ttl: Duration::from_secs(2),
            wait_ttl: Duration::from_secs(2),
            program: "none".into(),
            folder: "none".into(),
            faults_at_clients: true,
        };
        let plan = |seed| StormPlan::new(&storm(seed), &[Fault::ServerPaused]);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        assert!(plan(7).faults.len() > 5);
        let hot = Storm { hot: true, ..storm(7) };
        let plan = StormPlan::new(&hot, &[Fault::ServerPaused, Fault::ConnectionCut]);
        let lost = plan.faults.iter().filter(|one| one.fault == Fault::ConnectionCut).count();
        assert!(lost * 2 >= plan.faults.len() && lost < plan.faults.len(), "{plan:?}");
    }
}
