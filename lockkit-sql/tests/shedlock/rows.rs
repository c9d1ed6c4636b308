//! What the gate does to ShedLock's rows, and what it costs.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{GateAttempt, GateRenewal, LockDriver};
use lockkit_core::{LockManager, Settings};
use lockkit_lab::proxy::{ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind, SharedServer};
use lockkit_sql::{MySqlDriver, PostgresDriver};

use super::{AnyConnection, KINDS, LONG, Scene, soon};

const TTL: Duration = Duration::from_secs(60);

fn is_kept(answer: &Result<GateRenewal, lockkit_core::Error>) -> bool {
    matches!(answer, Ok(GateRenewal::Kept { .. }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_kept_and_given_back_only_by_its_owner_and_never_shortened_or_made_by_a_renewal() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let driver = scene.driver().await;
        let gate = driver.gate().unwrap();
        let (ours, other) = (scene.claim("a", TTL), scene.claim("a", TTL));
        let kept = gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        assert!(matches!(kept[0], Ok(GateRenewal::NotFound)), "{kept:?}");
        assert_eq!(scene.owner_of("a").await, None, "nothing is made by a renewal");
        for _ in 0..2 {
            assert_eq!(gate.take(&ours).await.unwrap(), GateAttempt::Taken { ttl: TTL });
        }
        let owner = format!("lockkit:{}", ours.gate_owner());
        assert_eq!(scene.owner_of("a").await, Some(owner));
        let busy = |answer| match answer {
            GateAttempt::Busy { remaining } => remaining,
            other => panic!("{other:?}"),
        };
        let left = busy(gate.take(&other).await.unwrap()).unwrap();
        assert!(left > TTL / 2 && left <= TTL + Duration::from_millis(2), "{left:?}");
        // A renewal lengthens, and never shortens.
        let interval = match scene.url.starts_with("postgres") {
            true => "interval '1 hour'",
            false => "INTERVAL 1 HOUR",
        };
        scene.sql(&format!("UPDATE shedlock SET lock_until = lock_until + {interval}")).await;
        assert!(is_kept(&gate.keep(std::slice::from_ref(&ours)).await.unwrap()[0]));
        gate.take(&ours).await.unwrap();
        assert!(busy(gate.take(&other).await.unwrap()).unwrap() > 10 * TTL, "{kind:?}");
        // Another claim, as another process would.
        gate.give(&other).await.unwrap();
        let kept = gate.keep(&[other.clone(), ours.clone()]).await.unwrap();
        assert!(matches!(kept[0], Ok(GateRenewal::NotFound)) && is_kept(&kept[1]), "{kept:?}");
        gate.give(&ours).await.unwrap();
        // A lease that has ended does not revive.
        let kept = gate.keep(std::slice::from_ref(&ours)).await.unwrap();
        assert!(matches!(kept[0], Ok(GateRenewal::NotFound)), "{kind:?}: {kept:?}");
        gate.give(&ours).await.unwrap();
        assert_eq!(gate.take(&other).await.unwrap(), GateAttempt::Taken { ttl: TTL });
        gate.give(&other).await.unwrap();
        assert!(scene.owner_of("a").await.is_some(), "the row stays: ShedLock relies on it");
        driver.close().await;
    }
}

/// The server's clock decides, and what is stored lasts at least as long as is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lasts_as_long_as_was_told_and_ends_then() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let driver = scene.driver().await;
        let gate = driver.gate().unwrap();
        let mut theirs = scene.neighbour("a").await;
        // The first attempt of ShedLock inserts; the table has a row from then on.
        assert!(theirs.lock(LONG).await);
        theirs.unlock().await;
        for ms in [250, 251, 333] {
            let ttl = Duration::from_millis(ms) + Duration::from_micros(7);
            let claim = scene.claim("a", ttl);
            let sent = std::time::Instant::now();
            assert_eq!(gate.take(&claim).await.unwrap(), GateAttempt::Taken { ttl });
            while !theirs.lock(LONG).await {}
            assert!(sent.elapsed() >= ttl, "{kind:?}: {:?}", sent.elapsed());
            theirs.unlock().await;
        }
    }
}

/// One that locks a row for long costs that row's lock only.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_transaction_has_locked_is_busy_and_costs_no_other_its_renewal() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let driver = scene.driver().await;
        let gate = driver.gate().unwrap();
        let claims = ["a", "b", "c"].map(|name| scene.claim(name, TTL));
        for claim in &claims {
            gate.take(claim).await.unwrap();
        }
        gate.give(&claims[2]).await.unwrap();
        let mut admin = AnyConnection::open(&scene.url).await;
        admin.run("BEGIN").await.unwrap();
        for name in ["a", "c"] {
            let table = &scene.table;
            let text = format!("SELECT locked_by FROM {table} WHERE name = '{name}' FOR UPDATE");
            assert!(admin.text(&text).await.is_some());
        }
        let kept = soon("an answer", gate.keep(&claims[..2])).await.unwrap();
        assert!(kept[0].is_err() && is_kept(&kept[1]), "{kind:?}: {kept:?}");
        let other = scene.claim("c", TTL);
        let taken = soon("an answer", gate.take(&other)).await.unwrap();
        assert_eq!(taken, GateAttempt::Busy { remaining: None }, "{kind:?}");
        admin.run("ROLLBACK").await.unwrap();
        assert!(gate.keep(&claims[..2]).await.unwrap().iter().all(is_kept), "{kind:?}");
        assert!(matches!(gate.take(&other).await.unwrap(), GateAttempt::Taken { .. }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_are_kept_in_the_order_asked_for() {
    for kind in KINDS {
        let scene = Scene::on(kind).await;
        let driver = scene.driver().await;
        let gate = driver.gate().unwrap();
        let claims: Vec<_> = (0..230)
            .map(|n| scene.claim(&format!("job {n}"), TTL + Duration::from_secs(n)))
            .collect();
        for (n, claim) in claims.iter().enumerate().filter(|(n, _)| n % 3 != 0) {
            assert!(matches!(gate.take(claim).await.unwrap(), GateAttempt::Taken { .. }), "{n}");
        }
        let kept = gate.keep(&claims).await.unwrap();
        for (n, answer) in kept.iter().enumerate() {
            let ttl = TTL + Duration::from_secs(n as u64);
            match answer.as_ref().unwrap() {
                GateRenewal::Kept { ttl: told } => assert!(n % 3 != 0 && *told == ttl, "{n}"),
                _ => assert_eq!(n % 3, 0, "{kind:?}: {n}"),
            }
        }
    }
}

/// The first of two requests may arrive after the release: core has to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_whose_answer_was_lost_is_an_error_and_is_asked_for_again() {
    for kind in KINDS {
        let server = SharedServer::server(kind).await.unwrap();
        let scene = Scene::on(kind).await;
        let proxy = Proxy::start(server.addr(), kind.protocol()).await.unwrap();
        let driver = scene.driver_with(&server.url_at(proxy.addr()), "").await.unwrap();
        let claim = scene.claim("a", TTL);
        proxy.fault(ProxyFault::Cut, When::Answer(1));
        let error = driver.gate().unwrap().take(&claim).await.unwrap_err();
        assert!(error.is_retryable(), "{kind:?}: {error}");
        assert_eq!(scene.owner_of("a").await, Some(format!("lockkit:{}", claim.gate_owner())));
        let taken = driver.gate().unwrap().take(&claim).await.unwrap();
        assert_eq!(taken, GateAttempt::Taken { ttl: TTL }, "{kind:?}");
    }
}

/// One more each for acquire and release; and none without neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_costs_one_round_trip_each() {
    for kind in KINDS {
        let server = Server::start(kind).await.unwrap();
        let proxy = Proxy::start(server.addr(), kind.protocol()).await.unwrap();
        let scene = Scene::at(server.url().to_owned()).await;
        let url = server.url_at(proxy.addr());
        for more in [0, 1] {
            let settings = Settings::default().namespace(format!("costs-{more}"));
            let driver: Arc<dyn LockDriver> = match (more, kind) {
                (1, _) => scene.driver_with(&url, "").await.unwrap(),
                (_, ServerKind::Postgres) => Arc::new(PostgresDriver::connect(&url).await.unwrap()),
                _ => Arc::new(MySqlDriver::connect(&url).await.unwrap()),
            };
            let locks = LockManager::with(driver, settings).unwrap();
            // Connections are opened, statements prepared, and the namespace is read.
            for _ in 0..3 {
                locks.mutex("a").lock().await.unwrap().release().await.unwrap();
            }
            let count = || proxy.counts().round_trips;
            let before = count();
            let guard = locks.mutex("a").lock().await.unwrap();
            let acquired = count();
            assert_eq!(acquired - before, 1 + more, "{kind:?}: acquire");
            guard.release().await.unwrap();
            assert_eq!(count() - acquired, 1 + more, "{kind:?}: release");
            locks.shutdown().await;
        }
    }
}
