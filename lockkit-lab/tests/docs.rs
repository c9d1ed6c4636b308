//! What the docs say of backends is what their drivers say. (Of etcd, its own crate's tests see to
//! that.) A test of a new backend is one call of [`stands_in_the_docs`].

use std::sync::Arc;

use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_conformance::compare::row_titles;
use lockkit_conformance::{CASES, promises, semantics};
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Capabilities, MemoryDriver};
use lockkit_lab::set_ups::SET_UPS;
use lockkit_lab::trials::TRIALS;
use lockkit_lab::{Group, Kind, Layout, Shared};
use lockkit_redis::RedisDriver;
use lockkit_sql::{MySqlDriver, PostgresDriver, SqliteDriver};
use lockkit_zk::ZkDriver;

/// The page has this set-up's lines in both tables.
#[track_caller]
fn stands_in_the_docs(set_up: &str, capabilities: &Capabilities) {
    has(&semantics::heading(), &semantics::row(set_up, capabilities));
    has(&promises::heading(), &promises::row(set_up, capabilities));
}

#[track_caller]
fn has(heading: &str, line: &str) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, below) =
        page.split_once(heading).unwrap_or_else(|| panic!("the page lacks\n{heading}"));
    let table = below.split("\n\n").next().unwrap_or_default();
    let found = table.lines().any(|row| row == line.trim_end());
    assert!(found, "put this line into docs/semantics.md below\n{heading}\n{line}");
}

#[test]
fn the_page_says_which_cases_show_its_answers() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let notes = semantics::footnotes();
    assert!(page.contains(&notes), "put this into docs/semantics.md:\n{notes}");
    assert!(page.contains(promises::FOOTNOTE));
}

#[test]
fn the_page_has_memory_as_its_driver_states_it() {
    stands_in_the_docs("memory", MemoryDriver::new().capabilities());
}

#[tokio::test]
async fn the_page_has_sqlite_as_its_driver_states_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let driver = SqliteDriver::connect(&url).await.unwrap();
    stands_in_the_docs("SQLite", driver.capabilities());
}

#[tokio::test]
async fn the_page_has_postgresql_as_its_driver_states_it() {
    let server = Shared::server(Kind::Postgres).await.unwrap();
    let traded = format!("{}?durability=needed", server.url());
    for (set_up, url) in
        [("PostgreSQL", server.url()), ("PostgreSQL, `durability=needed`", &traded)]
    {
        let driver = PostgresDriver::connect(url).await.unwrap();
        stands_in_the_docs(set_up, driver.capabilities());
    }
}

#[tokio::test]
async fn the_page_has_redis_and_a_quorum_of_them_as_their_drivers_state_it() {
    let server = Shared::server(Kind::Redis).await.unwrap();
    let single = RedisDriver::connect(server.url()).await.unwrap();
    stands_in_the_docs("Redis", single.capabilities());
    let mut members: Vec<Arc<dyn LockDriver>> = Vec::new();
    for _ in 0..3 {
        members.push(Arc::new(RedisDriver::connect(server.url()).await.unwrap()));
    }
    let quorum = QuorumDriver::new(members, QuorumOptions::default()).unwrap();
    stands_in_the_docs("quorum of Redis", quorum.capabilities());
}

#[tokio::test]
async fn the_page_has_groups_of_redis_as_their_driver_states_it() {
    let layouts =
        [("Redis, sentinel", Layout::RedisSentinel), ("Redis, cluster", Layout::RedisCluster)];
    for (set_up, layout) in layouts {
        let group = Group::start(layout).await.unwrap();
        let driver = RedisDriver::connect(&group.url()).await.unwrap();
        stands_in_the_docs(set_up, driver.capabilities());
    }
}

#[tokio::test]
async fn the_page_has_zookeeper_as_its_driver_states_it() {
    let server = Shared::server(Kind::ZooKeeper).await.unwrap();
    let driver = ZkDriver::connect(server.url()).await.unwrap();
    stands_in_the_docs("ZooKeeper", driver.capabilities());
}

#[tokio::test]
async fn the_page_has_mysql_as_its_driver_states_it() {
    let server = Shared::server(Kind::MariaDb).await.unwrap();
    let driver = MySqlDriver::connect(server.url()).await.unwrap();
    stands_in_the_docs("MySQL, MariaDB", driver.capabilities());
}

/// Figures may differ, since every run has its own; a row or a column that is not the code's may not.
#[test]
fn the_comparison_has_the_rows_and_columns_of_the_code() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/comparison.md");
    let page = std::fs::read_to_string(page).unwrap();
    let remade =
        "make it again: cargo run --release -p lockkit-cli --features lab,etcd -- compare --lab";
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = page.lines().filter(|line| line.starts_with('|')).map(cells);
    let mut columns = vec![String::new()];
    columns.extend(SET_UPS.iter().map(|set_up| set_up.name.to_owned()));
    for titles in row_titles() {
        assert_eq!(lines.next(), Some(columns.clone()), "{remade}");
        lines.next();
        for title in titles {
            let row = lines.next().unwrap_or_default();
            assert_eq!(row.first(), Some(&format!("**{title}**")), "{remade}");
            assert_eq!(row.len(), columns.len(), "{remade}");
        }
    }
    let html = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/comparison-charts.html");
    let html = std::fs::read_to_string(html).unwrap();
    for set_up in SET_UPS {
        let heads = html.matches(&format!("<th scope=\"col\">{}</th>", set_up.name)).count();
        assert_eq!(heads, 2, "{}: {remade}", set_up.name);
    }
    let [semantics, _, faults] = row_titles();
    for title in semantics.into_iter().chain(faults) {
        let title = title.trim_end_matches(['¹', '²']).replace('"', "&quot;");
        assert!(html.contains(&format!("<th scope=\"row\">{title}</th>")), "{title}: {remade}");
    }
}

#[test]
fn every_answer_is_shown_by_cases_and_trials_that_there_are() {
    let names = || CASES.iter().map(|c| c.name).chain(TRIALS.iter().map(|t| t.name));
    let faults = Fault::ALL.into_iter().flat_map(promises::shown_by);
    for shown in semantics::QUESTIONS.iter().flat_map(|question| question.shown_by).chain(faults) {
        assert!(names().any(|name| name.starts_with(shown)), "{shown}");
    }
}
