//! docs/recipes/schedulers.md: Celery's beat on three hosts.

use lockkit_lab::ServerKind;
use rustix::process::Signal;

use super::{Host, Recipe, shared};
use crate::stage::wait_for;

const HOSTS: [&str; 3] = ["a", "b", "c"];

fn sent(recipe: &Recipe, name: &str) -> usize {
    recipe.log(name).matches("Scheduler: Sending due task count").count()
}

#[test]
fn one_of_three_beats_sends_and_another_one_follows_it_with_pypi() {
    let mut recipe = Recipe::new("recipes/celery");
    let Some(()) = recipe.packages() else { return };
    // A database of Redis that no other test uses.
    recipe.set("BROKER_URL", format!("{}/13", shared(ServerKind::Redis)));
    let beat = |name: &str| {
        let script = "STATE_DIRECTORY=state-$HOST; mkdir -p $STATE_DIRECTORY; export STATE_DIRECTORY; \
            sed 's/beat --pidfile/beat --loglevel info --pidfile/' beat.sh >beat-$HOST; exec sh ./beat-$HOST";
        recipe.host(name, script)
    };
    let mut hosts: Vec<Option<Host>> = HOSTS.map(|name| Some(beat(name))).into();
    let leads = |among: &[usize]| {
        wait_for("a beat that sends", || {
            among.iter().copied().find(|at| sent(&recipe, HOSTS[*at]) > 0)
        })
    };
    let first = leads(&[0, 1, 2]);
    wait_for("more", || (sent(&recipe, HOSTS[first]) >= 2).then_some(()));
    let others: Vec<usize> = (0..3).filter(|at| *at != first).collect();
    let silent = others.iter().all(|at| sent(&recipe, HOSTS[*at]) == 0);
    assert!(silent, "{:?}", HOSTS.map(|name| recipe.log(name)));
    hosts[first].take().unwrap().kill();
    let last = sent(&recipe, HOSTS[first]);
    let second = leads(&others);
    assert_eq!(sent(&recipe, HOSTS[first]), last, "a beat that was killed sends no more");
    // An orderly end hands over at once, without waiting for a lease.
    let third = others.into_iter().find(|at| *at != second).unwrap();
    hosts[second].as_ref().unwrap().signal(Signal::TERM);
    assert_eq!(leads(&[third]), third);
    // A worker gets what they sent, but for what the kill interrupted.
    let total: usize = HOSTS.iter().map(|name| sent(&recipe, name)).sum();
    let _worker = recipe
        .host("worker", "exec python3 -m celery --app jobs worker --pool solo --loglevel info");
    wait_for("the work", || {
        let done = recipe.log("worker").matches("] succeeded in").count();
        (done + 1 >= total).then_some(())
    });
}
