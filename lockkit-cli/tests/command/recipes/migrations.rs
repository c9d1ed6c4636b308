//! docs/recipes/migrations.md: one host migrates, the others wait.

use super::Recipe;
use crate::stage::{code, stderr, wait_for};

const DEPLOY: &str = "./deploy.sh sh -c 'echo serves at $(psql -X -q -A -t -d $DATABASE_URL -c \
    \"SELECT version_num FROM alembic_version\")'";

fn recipe(name: &str) -> Option<Recipe> {
    let mut recipe = Recipe::new("recipes/migrations");
    recipe.packages()?;
    recipe.on_postgres(name);
    // It says on which hosts Alembic was started.
    let counted = "rm python3; printf '#!/bin/sh\necho $HOST >>started\nexec /usr/bin/python3 \"$@\"\n' >python3; chmod +x python3";
    assert_eq!(code(&recipe.script(counted).output().unwrap()), 0);
    recipe.set("RELEASE", "4.2");
    Some(recipe)
}

#[test]
fn one_of_three_hosts_migrates_and_all_serve_after_it_with_pypi() {
    let Some(recipe) = recipe("migrate") else { return };
    let mut hosts = ["a", "b", "c"].map(|name| recipe.host(name, DEPLOY));
    for (host, name) in hosts.iter_mut().zip(["a", "b", "c"]) {
        assert_eq!(host.end(), Some(0), "{}", recipe.log(name));
        assert_eq!(recipe.log(name).trim().lines().last(), Some("serves at 0002"));
    }
    assert_eq!(recipe.sql("SELECT count(*), sum(cents) FROM invoice"), "1|100");
    assert_eq!(recipe.log("started").lines().count(), 1, "one host migrates");
}

#[test]
fn the_next_host_migrates_when_the_first_dies_with_pypi() {
    let Some(recipe) = recipe("migrate_again") else { return };
    let first = recipe.host("a", DEPLOY);
    let migrates = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(1)' AND state = 'active'";
    wait_for("the migration", || (recipe.sql(migrates) == "1").then_some(()));
    let mut second = recipe.host("b", DEPLOY);
    first.kill();
    assert_eq!(second.end(), Some(0), "{}", recipe.log("b"));
    assert_eq!(recipe.sql("SELECT count(*), sum(cents) FROM invoice"), "1|100");
    assert_eq!(recipe.log("started"), "a\nb\n");
}

#[test]
fn a_host_that_lost_the_lock_changes_nothing_with_pypi() {
    let Some(recipe) = recipe("migrate_late") else { return };
    recipe.sql(
        "CREATE TABLE deploy_fence (one INT PRIMARY KEY CHECK (one = 1), token BIGINT NOT NULL)",
    );
    recipe.sql("INSERT INTO deploy_fence VALUES (1, 8)");
    let late = recipe.script("LOCKKIT_TOKEN=7 python3 -m alembic upgrade head").output().unwrap();
    assert_eq!(code(&late), 1);
    assert!(stderr(&late).contains("a later holder of the lock has begun"), "{}", stderr(&late));
    assert_eq!(recipe.sql("SELECT to_regclass('invoice') IS NULL"), "t");
    let own = recipe.script("LOCKKIT_TOKEN=8 python3 -m alembic upgrade head").output().unwrap();
    assert_eq!(code(&own), 0, "{}", stderr(&own));
    assert_eq!(recipe.sql("SELECT sum(cents) FROM invoice"), "100");
}
