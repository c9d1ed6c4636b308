//! docs/recipes/schedulers.md: APScheduler on two hosts, with the client in Python.

use super::Recipe;
use crate::stage::wait_for;

fn runs(recipe: &Recipe, name: &str) -> Vec<u64> {
    let number = |line: &str| line.strip_prefix("run ")?.split(' ').next()?.parse().ok();
    recipe.log(name).lines().filter_map(number).collect()
}

#[test]
fn the_scheduler_of_the_leader_runs_and_another_one_goes_on_with_pypi() {
    let mut recipe = Recipe::new("recipes/apscheduler");
    let Some(()) = recipe.packages() else { return };
    let _service = recipe.serve();
    recipe.set("LEASE", "2");
    recipe.set("EVERY", "0.2");
    let start = |name: &str| recipe.host(name, "exec python3 scheduler.py");
    let first = start("a");
    wait_for("the first runs", || (runs(&recipe, "a").len() >= 3).then_some(()));
    let second = start("b");
    wait_for("the other one", || (recipe.queue("scheduler") == [1, 1]).then_some(()));
    let seen = runs(&recipe, "a").len();
    wait_for("more runs", || (runs(&recipe, "a").len() >= seen + 3).then_some(()));
    assert_eq!(recipe.log("b"), "", "it waits");
    first.kill();
    wait_for("the runs of the other", || (runs(&recipe, "b").len() >= 3).then_some(()));
    let all = [runs(&recipe, "a"), runs(&recipe, "b")].concat();
    // The run under which the first was killed may have been stored and not printed.
    let begun = runs(&recipe, "b")[0] - runs(&recipe, "a").len() as u64;
    assert!((1..=2).contains(&begun), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    drop(second);
}
