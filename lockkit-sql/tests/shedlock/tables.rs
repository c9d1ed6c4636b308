//! The table, which is ShedLock's, and the setting of a namespace.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::GateAttempt;
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, LockManager};
use lockkit_lab::{Server, ServerKind};
use lockkit_sql::{MySqlDriver, PostgresDriver};

use super::{AnyConnection, KINDS, LONG, Scene};

async fn refused(scene: &Scene, more: &str) -> String {
    let refused = scene.driver_with(&scene.url, more).await.unwrap_err();
    assert!(matches!(refused, Error::Config(_)), "{refused:?}");
    refused.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_there_or_has_other_columns_is_refused_and_not_made() {
    for kind in KINDS {
        let mut scene = Scene::on(kind).await;
        let is = scene.table.clone();
        scene.table = format!("{is}_none");
        assert!(refused(&scene, "").await.contains("lockkit does not make it"));
        let select = format!("SELECT 1 FROM {}", scene.table);
        assert!(AnyConnection::open(&scene.url).await.run(select).await.is_err(), "{kind:?}");
        scene.table = is;
        assert!(refused(&scene, "&shedlock_columns=name,until_x,at_x,by_x").await.contains("at_x"));
        let (bad, back) = match scene.url.starts_with("postgres") {
            true => ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP(3)"),
            false => ("TIMESTAMP NULL", "DATETIME(3)"),
        };
        let alter = |to: &str| match scene.url.starts_with("postgres") {
            true => format!("ALTER TABLE shedlock ALTER lock_until TYPE {to}"),
            false => format!("ALTER TABLE shedlock MODIFY lock_until {to}"),
        };
        scene.sql(&alter(bad)).await;
        let told = refused(&scene, "").await;
        assert!(told.contains("lock_until is timestamp"), "{kind:?}: {told}");
        scene.sql(&alter(back)).await;
        scene.driver().await.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn table_and_columns_may_have_other_names() {
    for kind in KINDS {
        let mut scene = Scene::on(kind).await;
        let place = match scene.url.starts_with("postgres") {
            true => {
                scene.sql("CREATE SCHEMA shedlock_s").await;
                format!("{0}_s.{0}", scene.table)
            }
            false => {
                let database = scene.url.rsplit('/').next().unwrap().split('?').next().unwrap();
                format!("{database}.{}_t", scene.table)
            }
        };
        let made = "(TITLE VARCHAR(64) NOT NULL PRIMARY KEY, UNTIL_T TIMESTAMP(3) NOT NULL, \
            AT_T TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), BY_T VARCHAR(255) NOT NULL)";
        AnyConnection::open(&scene.url)
            .await
            .run(format!("CREATE TABLE {place}{made}"))
            .await
            .unwrap();
        scene.table = place;
        let columns = "&shedlock_columns=TITLE,UNTIL_T,AT_T,BY_T";
        let driver = scene.driver_with(&scene.url, columns).await.unwrap();
        let settings = scene.settings(LONG);
        let locks = LockManager::with(driver, settings.clone()).unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        guard.renew().await.unwrap();
        let owner = format!("SELECT BY_T FROM {}", scene.table);
        let owner = AnyConnection::open(&scene.url).await.text(&owner).await.unwrap();
        assert_eq!(owner, format!("lockkit:{}", guard.claim().gate_owner()), "{kind:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_the_setting_or_with_another_table_is_refused_and_told_what_to_do() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let settings = || scene.settings(LONG);
        let plain = async || match kind {
            ServerKind::Postgres => LockManager::with(
                Arc::new(PostgresDriver::connect(&scene.url).await.unwrap()),
                settings(),
            ),
            _ => LockManager::with(
                Arc::new(MySqlDriver::connect(&scene.url).await.unwrap()),
                settings(),
            ),
        };
        let before = plain().await.unwrap();
        before.mutex("a").lock().await.unwrap().release().await.unwrap();
        let ours = scene.locks(LONG).await;
        ours.mutex("a").lock().await.unwrap().release().await.unwrap();
        scene.sql("CREATE TABLE shedlock_2 AS SELECT * FROM shedlock").await;
        let other = {
            let table = format!("{}_2", scene.table);
            let scene = Scene { table, _server: None, ..Scene::on(kind).await };
            scene.driver().await
        };
        let told = format!("connect with ?neighbours=shedlock&shedlock_table={}", scene.table);
        for locks in [plain().await.unwrap(), LockManager::with(other, settings()).unwrap()] {
            let refused = locks.mutex("b").lock().await.unwrap_err();
            assert!(matches!(refused, Error::Config(_)), "{refused:?}");
            let refused = refused.to_string();
            assert!(refused.contains(&told), "{kind:?}: {refused}");
            // The way back, as it says.
            let (_, rest) = refused.split_once("remove it: ").unwrap();
            if locks.mutex("b").lock().await.is_err() {
                assert!(rest.starts_with("UPDATE lockkit"), "{rest}");
            }
        }
        let refused = plain().await.unwrap().mutex("b").lock().await.unwrap_err().to_string();
        let (_, statement) = refused.split_once("remove it: ").unwrap();
        assert_eq!(AnyConnection::open(&scene.url).await.run(statement).await.unwrap(), 1);
        plain().await.unwrap().mutex("b").lock().await.unwrap().release().await.unwrap();
    }
}

/// What `lockkit doctor` calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_a_clock_that_is_not_the_servers_and_a_lease_that_is_too_long() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let (ours, other) = (scene.locks(LONG).await, scene.locks(LONG).await);
        let guard = ours.mutex("ours").lock().await.unwrap();
        let mut theirs = scene.neighbour("theirs").await;
        assert!(theirs.lock(LONG).await);
        let found = async || {
            let found = other.probe(&ours).await.unwrap();
            found.into_iter().filter(|it| it.what.contains("ShedLock")).collect::<Vec<Finding>>()
        };
        assert_eq!(found().await, []);
        let times = |interval: &str| match scene.url.starts_with("postgres") {
            true => format!("timezone('utc', clock_timestamp()) + interval '{interval}'"),
            false => format!("UTC_TIMESTAMP(3) + INTERVAL {interval}"),
        };
        // A host two hours ahead, as one that writes its local time.
        scene
            .sql(&format!(
                "UPDATE shedlock SET locked_at = {} WHERE name = 'theirs'",
                times("2 hour")
            ))
            .await;
        let findings = found().await;
        assert_eq!(findings.len(), 1, "{kind:?}: {findings:?}");
        assert_eq!(findings[0].severity, Severity::Problem);
        for part in ["\"theirs\"", "in the future"] {
            assert!(findings[0].what.contains(part), "{findings:?}");
        }
        assert!(findings[0].advice.contains("usingDbTime()"), "{findings:?}");
        scene
            .sql(&format!(
                "UPDATE shedlock SET locked_at = {}, lock_until = {} WHERE name = 'theirs'",
                times("0 hour"),
                times("3 day")
            ))
            .await;
        let findings = found().await;
        assert_eq!(findings.len(), 1, "{kind:?}: {findings:?}");
        assert_eq!(findings[0].severity, Severity::Warning);
        guard.release().await.unwrap();
    }
}

/// A TIMESTAMP of MySQL shows each session its own zone's time: ShedLock's sessions have the server's.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_time_zone_shows_lockkit_and_shedlock_the_same() {
    let server = Server::start(ServerKind::MariaDb).await.unwrap();
    let url = server.url().to_owned();
    AnyConnection::open(&url).await.run("SET GLOBAL time_zone = '+05:00'").await.unwrap();
    let scene = Scene::at(url).await;
    let driver = scene.driver().await;
    let mut theirs = scene.neighbour("a").await;
    let claim = scene.claim("a", LONG);
    assert!(theirs.lock(LONG).await);
    let GateAttempt::Busy { remaining: Some(left) } =
        driver.gate().unwrap().take(&claim).await.unwrap()
    else {
        panic!("it is theirs")
    };
    assert!(left > LONG / 2 && left <= LONG + Duration::from_secs(1), "{left:?}");
    theirs.unlock().await;
    assert!(matches!(
        driver.gate().unwrap().take(&claim).await.unwrap(),
        GateAttempt::Taken { .. }
    ));
    assert!(!theirs.lock(LONG).await);
    driver.gate().unwrap().give(&claim).await.unwrap();
    assert!(theirs.lock(LONG).await);
    // A pool's sessions have the zone of the program.
    let pool = sqlx::MySqlPool::connect(&scene.url.replace("mariadb:", "mysql:")).await.unwrap();
    let options = lockkit_sql::ServerOptions::default()
        .neighbours(lockkit_sql::SqlNeighbours::ShedLock)
        .shedlock_table(&scene.table);
    let refused = MySqlDriver::with_pool(pool, options).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("time_zone +00:00"), "{refused}");
}
