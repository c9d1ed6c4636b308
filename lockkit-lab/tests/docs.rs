//! What the docs say of backends is what their drivers say. `cargo xtask tables` writes the tables
//! that come from drivers' `Capabilities` alone; here they are compared. A new backend is one more
//! entry in [`stated`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::try_join_all;
use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_conformance::compare::{ComparedSetUp, Comparison, Measured, row_titles};
use lockkit_conformance::{CASES, Outcome, Report, promises, semantics};
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Capabilities, MemoryDriver};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::promise_tests::test_of;
use lockkit_lab::set_ups::SET_UPS;
use lockkit_lab::trials::TRIALS;
use lockkit_lab::{Group, Layout, ServerKind, SharedServer};
use lockkit_redis::RedisDriver;
use lockkit_sql::{MySqlDriver, PostgresDriver, SqliteDriver};
use lockkit_store::{AzureStore, DynamoStore, GcsStore, NatsStore, S3Store};
use lockkit_zk::ZkDriver;

/// Every set-up that the docs name, and what its driver states.
async fn stated() -> Vec<(&'static str, Capabilities)> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let postgres = SharedServer::server(ServerKind::Postgres).await.unwrap();
    let traded = format!("{}?durability=needed", postgres.url());
    let mysql = SharedServer::server(ServerKind::MariaDb).await.unwrap();
    let redis = SharedServer::server(ServerKind::Redis).await.unwrap();
    let sentinel = Group::start(Layout::RedisSentinel).await.unwrap();
    let cluster = Group::start(Layout::RedisCluster).await.unwrap();
    let zk = SharedServer::server(ServerKind::ZooKeeper).await.unwrap();
    let mut members: Vec<Arc<dyn LockDriver>> = Vec::new();
    for _ in 0..3 {
        members.push(Arc::new(RedisDriver::connect(redis.url()).await.unwrap()));
    }
    let quorum = QuorumDriver::new(members, QuorumOptions::default()).unwrap();
    let sqlite = SqliteDriver::connect(&file).await.unwrap();
    let [durable, traded] =
        [postgres.url(), &traded].map(|url| async { PostgresDriver::connect(url).await.unwrap() });
    let [single, sentinel, cluster] = [redis.url().to_owned(), sentinel.url(), cluster.url()]
        .map(|url| async move { RedisDriver::connect(&url).await.unwrap() });
    vec![
        ("memory", *MemoryDriver::new().capabilities()),
        ("SQLite", *sqlite.capabilities()),
        ("PostgreSQL", *durable.await.capabilities()),
        ("PostgreSQL, `durability=needed`", *traded.await.capabilities()),
        ("MySQL, MariaDB", *MySqlDriver::connect(mysql.url()).await.unwrap().capabilities()),
        ("Redis", *single.await.capabilities()),
        ("Redis, sentinel", *sentinel.await.capabilities()),
        ("Redis, cluster", *cluster.await.capabilities()),
        ("quorum of Redis", *quorum.capabilities()),
        ("ZooKeeper", *ZkDriver::connect(zk.url()).await.unwrap().capabilities()),
        ("etcd", *EtcdDriver::capabilities_with("3.5.13")),
        ("NATS", NatsStore::usual_facts().capabilities()),
        ("DynamoDB", DynamoStore::usual_facts().capabilities()),
        ("S3", S3Store::usual_facts().capabilities()),
        ("Azure", AzureStore::usual_facts().capabilities()),
        ("Google", GcsStore::usual_facts().capabilities()),
        ("etcd before 3.4.31, 3.5.13", *EtcdDriver::capabilities_with("3.4.23")),
    ]
}

/// A page of the docs whose tables are made here.
struct Page {
    path: PathBuf,
    was: String,
    is: String,
}

impl Page {
    fn read(path: &str) -> Self {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path);
        let was = std::fs::read_to_string(&path).unwrap();
        Self { path, is: was.clone(), was }
    }

    /// Puts the table below its mark, a comment that readers do not see.
    fn table(mut self, mark: &str, table: &str) -> Self {
        let mark = format!("<!-- {mark}: made by `cargo xtask tables` -->\n\n");
        let (above, below) = self.is.split_once(&mark).expect(&mark);
        let (_, below) = below.split_once("\n\n").expect("a table ends with an empty line");
        self.is = format!("{above}{mark}{}\n\n{below}", table.trim_end());
        self
    }

    /// Puts in what `made` has between these two texts.
    fn part(mut self, made: &str, from: &str, to: &str) -> Self {
        let cut = |text: &str| -> [String; 3] {
            let (above, rest) = text.split_once(from).expect(from);
            let (part, below) = rest.split_once(to).expect(to);
            [above, part, below].map(str::to_owned)
        };
        let ([above, _, below], [_, part, _]) = (cut(&self.is), cut(made));
        self.is = format!("{above}{from}{part}{to}{below}");
        self
    }

    /// Writes the page where that is asked for, and compares it otherwise.
    fn settle(self) {
        if std::env::var_os("LOCKKIT_WRITE_TABLES").is_some() {
            return std::fs::write(&self.path, &self.is).unwrap();
        }
        let differs = self.was.lines().zip(self.is.lines()).find(|(was, is)| was != is);
        assert_eq!(self.was, self.is, "{}: cargo xtask tables: {differs:?}", self.path.display());
    }
}

#[tokio::test]
async fn tables_of_the_docs_are_what_the_drivers_state() {
    let stated = stated().await;
    let all: Vec<_> = stated.iter().map(|(name, c)| (*name, c)).collect();
    let of = |name: &str| &stated.iter().find(|(known, _)| *known == name).expect(name).1;

    let rows: String = all.iter().map(|(name, c)| semantics::row(name, c)).collect();
    Page::read("docs/semantics.md")
        .table("side by side", &format!("{}{rows}", semantics::heading()))
        .table("faults", &promises::table(&all))
        .table("shown", &shown_table(&all))
        .table("other promises", &promises::others_table(&all))
        .settle();

    let short = ["SQLite", "PostgreSQL", "MySQL, MariaDB", "Redis", "quorum of Redis"];
    let mut short: Vec<_> = short.map(|name| (name, of(name))).into();
    short.extend(["ZooKeeper", "etcd", "NATS"].map(|name| (name, of(name))));
    let short = promises::short_table(&short);
    Page::read("docs/choosing.md").table("faults", &short).settle();
    Page::read("README.md").table("faults", &short).settle();

    compared(try_join_all(SET_UPS.iter().map(started)).await.unwrap());
}

/// Which test showed each cell of the table of faults, and which are stated only.
fn shown_table(set_ups: &[(&str, &Capabilities)]) -> String {
    let mut out = "| | shown by | stated |\n| --- | --- | --- |\n".to_owned();
    for fault in Fault::ALL {
        let (mut tests, mut stated): (BTreeMap<_, Vec<_>>, Vec<_>) = Default::default();
        for (name, _) in set_ups.iter().filter(|(_, c)| c.guarantee(fault) != Guarantee::Impossible)
        {
            match test_of(name, fault) {
                Some(shown) => tests.entry(shown.test).or_default().push(*name),
                None => stated.push(*name),
            }
        }
        let tests =
            tests.into_iter().map(|(test, names)| format!("`{test}`: {}", names.join("; ")));
        let tests = tests.collect::<Vec<_>>().join(" · ");
        let stated = stated.join("; ");
        out.push_str(&format!("| **{}** | {tests} | {stated} |\n", fault.title()));
    }
    out
}

/// A set-up as a comparison has it, without what only a run can show.
async fn started(
    set_up: &lockkit_lab::set_ups::SetUp,
) -> Result<ComparedSetUp, lockkit_core::Error> {
    let running = set_up.start().await.unwrap();
    let locks = lockkit::connect(running.url()).await?;
    Ok(ComparedSetUp {
        name: set_up.name.to_owned(),
        location: String::new(),
        capabilities: *locks.capabilities(),
        promises: locks.promises().await?,
        reports: Vec::new(),
        measured: Measured::default(),
    })
}

/// The comparison's table of faults and what it says of them. A mark of its run stays as long as its
/// cell has the same word.
fn compared(mut set_ups: Vec<ComparedSetUp>) {
    let page = Page::read("docs/comparison.md");
    let html = Page::read("docs/comparison-charts.html");
    let shown = |column: usize, fault: Fault| {
        let begins = format!("| **{}** |", fault.title());
        let row = page.was.lines().find(|line| line.starts_with(&begins))?.trim_end_matches(" |");
        let shown = row.split(" | ").nth(column + 1)?.ends_with(" ✓");
        let case = *promises::shown_by(fault).first()?;
        shown.then_some(Report { group: "", case, outcome: Outcome::Passed, millis: 0 })
    };
    for (column, set_up) in set_ups.iter_mut().enumerate() {
        set_up.reports = Fault::ALL.into_iter().filter_map(|fault| shown(column, fault)).collect();
    }
    let made = Comparison { date: String::new(), machine: String::new(), set_ups };
    let differences = made.differences("Redis", "ZooKeeper").unwrap();
    let differences = Some(("Redis", "ZooKeeper", differences.as_slice()));
    let (text, charts) = (made.markdown(differences), made.html(differences));
    page.part(&text, "## Faults\n", "\n¹ Of an")
        .part(&text, "## From Redis to ZooKeeper\n", "\n- **Leases.**")
        .settle();
    html.part(&charts, "<h2>Faults</h2>\n", "<h2>Semantics</h2>")
        .part(&charts, "<h2>From Redis to ZooKeeper</h2>\n", "<dt>Leases</dt>")
        .settle();
}

#[test]
fn the_page_says_which_cases_show_its_answers() {
    let page = Page::read("docs/semantics.md").was;
    let notes = semantics::footnotes();
    assert!(page.contains(&notes), "put this into docs/semantics.md:\n{notes}");
    assert!(page.contains(promises::FOOTNOTE));
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
        let title = title.trim_end_matches(['¹', '²', '³']).replace('"', "&quot;");
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
