//! What holds on every database. A module that calls this has a `Scene`:
//! - `Scene::set(name)`: an account of 100 cents and the lock of this name, for `mine` and `theirs`;
//!   `data` is a pool on the same database;
//! - `add(&mut tx, cents)`, `cents()`: changes the account, and reads it outside of transactions;
//! - `is_kept()`: watches for a while that the lock, which a transaction fences, is given to nobody.

macro_rules! cases {
    () => {
        #[tokio::test]
        async fn a_writer_that_was_paused_past_its_lease_is_refused_and_nothing_is_lost() {
            let scene = Scene::set("paused").await;
            let guard = short(&scene.mine, "paused").await;
            let lease = guard.lease();
            // The writer sleeps; its lease ends, and another client does the work.
            let theirs = timeout(LONG, scene.theirs.mutex("paused").lock()).await.unwrap().unwrap();
            let mut tx = scene.data.begin().await.unwrap();
            theirs.fence(&mut tx).await.unwrap();
            scene.add(&mut tx, 7).await;
            tx.commit().await.unwrap();
            theirs.release().await.unwrap();
            // It wakes.
            let mut tx = scene.data.begin().await.unwrap();
            scene.add(&mut tx, 1_000).await;
            let refused = lease.fence(&mut tx).await.unwrap_err();
            assert!(matches!(refused, Error::Lost { .. }), "{refused}");
            tx.rollback().await.unwrap();
            assert_eq!(scene.cents().await, 107);
        }

        #[tokio::test]
        async fn a_holder_that_knows_nothing_of_a_forced_break_is_refused() {
            let scene = Scene::set("broken").await;
            let guard = scene.mine.mutex("broken").lock().await.unwrap();
            let token = guard.token().unwrap();
            let force = lockkit::driver::BreakMode::Forced;
            let space = lockkit::Space::Lock;
            assert!(
                scene.theirs.admin().break_lock(space, "broken", token, force, None).await.unwrap()
            );
            let mut tx = scene.data.begin().await.unwrap();
            let refused = guard.fence(&mut tx).await.unwrap_err();
            assert!(matches!(refused, Error::Lost { .. }), "{refused}");
            tx.rollback().await.unwrap();
            scene.mine.shutdown().await;
        }

        #[tokio::test]
        async fn a_lease_that_ends_under_a_fenced_transaction_is_given_to_nobody_before_its_commit()
        {
            let scene = Scene::set("ends").await;
            let guard = short(&scene.mine, "ends").await;
            let mut tx = scene.data.begin().await.unwrap();
            guard.fence(&mut tx).await.unwrap();
            timeout(LONG, guard.lost()).await.expect("the lease ends");
            let (theirs, data) = (scene.theirs.clone(), scene.data.clone());
            let next = tokio::spawn(async move {
                let guard = theirs.mutex("ends").lock().await.unwrap();
                let seen: i64 = sqlx::query_scalar("SELECT cents FROM account WHERE name = 'ends'")
                    .fetch_one(&data)
                    .await
                    .unwrap();
                guard.release().await.unwrap();
                seen
            });
            scene.is_kept().await;
            assert!(!next.is_finished());
            scene.add(&mut tx, 5).await;
            tx.commit().await.unwrap();
            let seen = timeout(LONG, next).await.expect("it moves on after the commit").unwrap();
            assert_eq!(seen, 105, "the next holder sees what was written before");
        }

        #[tokio::test]
        async fn a_lock_on_another_backend_does_not_fence() {
            let scene = Scene::set("elsewhere").await;
            let locks = lockkit::connect("memory:").await.unwrap();
            let guard = locks.mutex("elsewhere").lock().await.unwrap();
            let mut tx = scene.data.begin().await.unwrap();
            let error = guard.fence(&mut tx).await.unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            tx.rollback().await.unwrap();
        }

        #[tokio::test]
        async fn data_in_another_database_remembers_the_highest_token() {
            let scene = Scene::set("remembered").await;
            let old = scene.mine.mutex("remembered").lock().await.unwrap();
            let older = old.token().unwrap();
            old.release().await.unwrap();
            let new = scene.theirs.mutex("remembered").lock().await.unwrap();
            let newer = new.token().unwrap();
            let told = [
                (older, Fenced::Admitted),
                (older, Fenced::Admitted),
                (newer, Fenced::Admitted),
                (newer, Fenced::Admitted),
                (older, Fenced::Stale),
            ];
            for (token, expected) in told {
                let mut tx = scene.data.begin().await.unwrap();
                assert_eq!(tx.fenced_write("remembered", token).await.unwrap(), expected);
                tx.commit().await.unwrap();
            }
            new.release().await.unwrap();
        }
    };
}

/// What holds where a fence locks one row, and other clients go on.
macro_rules! cases_of_servers {
    () => {
        #[tokio::test]
        async fn a_release_before_the_commit_does_not_wait_and_the_lock_moves_on_with_the_commit() {
            let scene = Scene::set("early").await;
            let guard = scene.mine.mutex("early").lock().await.unwrap();
            let mut tx = scene.data.begin().await.unwrap();
            guard.fence(&mut tx).await.unwrap();
            timeout(LONG, guard.release()).await.expect("it does not wait for the fence").unwrap();
            assert!(is_busy(&scene.theirs, "early").await, "the transaction is not over");
            scene.add(&mut tx, 1).await;
            tx.commit().await.unwrap();
            let next = timeout(LONG, scene.theirs.mutex("early").lock()).await.unwrap().unwrap();
            next.release().await.unwrap();
        }

        #[tokio::test]
        async fn a_fence_stops_no_renewal_and_works_at_every_isolation_level() {
            let scene = Scene::set("levels").await;
            let guard = scene.mine.mutex("levels").lock().await.unwrap();
            for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
                let mut connection = scene.data.acquire().await.unwrap();
                let mut tx = begin_at(&mut connection, level).await;
                guard.fence(&mut tx).await.unwrap();
                let renewed = timeout(LONG, guard.renew()).await;
                renewed.expect("it does not wait for the fence").unwrap();
                assert!(is_busy(&scene.theirs, "levels").await, "{level}");
                scene.add(&mut tx, 1).await;
                // A second fence, after the claim was renewed behind the snapshot's back, holds or
                // says that the transaction is to be begun again; never that the lock was lost.
                match guard.fence(&mut tx).await {
                    Ok(()) => tx.commit().await.unwrap(),
                    Err(error) => {
                        assert!(error.is_retryable(), "{level}: {error}");
                        tx.rollback().await.unwrap();
                    }
                }
            }
            assert!(guard.is_valid());
            guard.release().await.unwrap();
        }

        #[tokio::test]
        async fn a_fence_finds_the_tables_where_the_driver_has_them() {
            let scene = Scene::set("tables").await;
            let server = SharedServer::server(KIND).await.unwrap();
            let mark = if server.url().contains('?') { '&' } else { '?' };
            let (mine, theirs) = two_managers(&format!("{}{mark}{TABLES}", server.url())).await;
            let guard = mine.mutex("tables").lock().await.unwrap();
            let mut tx = scene.data.begin().await.unwrap();
            guard.fence(&mut tx).await.unwrap();
            guard.release().await.unwrap();
            assert!(is_busy(&theirs, "tables").await, "the transaction is not over");
            tx.commit().await.unwrap();
            let next = timeout(LONG, theirs.mutex("tables").lock()).await.unwrap().unwrap();
            next.release().await.unwrap();
        }
    };
}
