//! docs/recipes/consumer.md: a consumer of a queue whose writes are fenced.

use super::Recipe;
use crate::stage::{code, stderr, wait_for};

const TOTAL: u64 = 40;

fn recipe(name: &str) -> Option<Recipe> {
    let mut recipe = Recipe::new("recipes/consumer");
    recipe.packages()?;
    recipe.on_postgres(name);
    let made = recipe
        .script("psql -X -q -v ON_ERROR_STOP=1 -d $DATABASE_URL -f schema.sql")
        .output()
        .unwrap();
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    recipe.sql(&format!("INSERT INTO queue SELECT 7, n, n FROM generate_series(1, {TOTAL}) AS n"));
    Some(recipe)
}

#[test]
fn each_message_is_applied_once_while_consumers_are_killed_with_pypi() {
    let Some(mut recipe) = recipe("consumer") else { return };
    recipe.set("WORK", "0.1");
    let position =
        || recipe.sql("SELECT position FROM consumer WHERE part = 7").parse::<u64>().unwrap();
    let start = |name: &str| recipe.host(name, "exec ./consumer.sh 7");
    let (first, second) = (start("a"), start("b"));
    wait_for("the first messages", || (position() >= 5).then_some(()));
    let leader = recipe.sql("SELECT consumer FROM applied LIMIT 1");
    let (leader, other) = if leader == "a" { (first, second) } else { (second, first) };
    leader.kill();
    wait_for("the other consumer", || (position() >= 20).then_some(()));
    let third = start("c");
    other.kill();
    wait_for("all messages", || (position() == TOTAL).then_some(()));
    drop(third);
    let sum = TOTAL * (TOTAL + 1) / 2;
    assert_eq!(recipe.sql("SELECT cents FROM account WHERE part = 7"), sum.to_string());
    let applied =
        "SELECT count(*), count(DISTINCT position), count(DISTINCT consumer) FROM applied";
    assert_eq!(recipe.sql(applied), format!("{TOTAL}|{TOTAL}|3"));
}

#[test]
fn a_consumer_that_was_paused_writes_nothing_more_with_pypi() {
    let Some(mut recipe) = recipe("consumer_paused") else { return };
    recipe.set("WORK", "1");
    // Two consumers by their tokens, without the lock that would have ended the first.
    let paused = recipe.host("a", "LOCKKIT_TOKEN=10 exec python3 consume.py 7");
    wait_for("its token", || (recipe.sql("SELECT token FROM consumer") == "0").then_some(()));
    wait_for("its first message", || {
        (recipe.sql("SELECT token FROM consumer") == "10").then_some(())
    });
    paused.signal(rustix::process::Signal::STOP);
    let later = recipe.host("b", "WORK=0 LOCKKIT_TOKEN=11 exec python3 consume.py 7");
    // It waits for the row that the paused one has, so that one comes to an end first.
    paused.signal(rustix::process::Signal::CONT);
    wait_for("all messages", || {
        (recipe.sql("SELECT position FROM consumer") == TOTAL.to_string()).then_some(())
    });
    let mut paused = paused;
    assert_eq!(paused.end(), Some(1), "{}", recipe.log("a"));
    assert!(recipe.log("a").contains("a later consumer has begun"), "{}", recipe.log("a"));
    let once = "SELECT count(*), count(DISTINCT position) FROM applied";
    assert_eq!(recipe.sql(once), format!("{TOTAL}|{TOTAL}"));
    drop(later);
}
