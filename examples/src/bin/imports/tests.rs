//! The runner loses a permit, and is stopped while jobs run.

use std::sync::Arc;

use lockkit::testing::{self, TestControl};
use lockkit::{Error, LossReason};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::run;

fn jobs() -> Vec<String> {
    ["monday", "tuesday", "wednesday"].map(str::to_owned).to_vec()
}

async fn no_permit_is_taken(control: &TestControl) {
    let pool = control.others().semaphore("imports", 2);
    assert_eq!(pool.available_permits().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_permit_is_lost_is_stopped_and_the_others_are_done() {
    let (locks, control) = testing::locks();
    let control = Arc::new(control);
    let losing = control.clone();
    let work = move |job: String, _permit| {
        let control = losing.clone();
        async move {
            if job == "monday" {
                control.lose("imports", LossReason::Expired).await;
                return std::future::pending().await; // it would work on for ever
            }
            Ok(())
        }
    };
    let mut results =
        run(&locks, jobs()[..1].to_vec(), work.clone(), std::future::pending::<()>()).await;
    let (job, lost) = results.pop().unwrap();
    assert_eq!(job, "monday");
    assert!(matches!(lost, Err(Error::Lost { reason: LossReason::Expired, .. })), "{lost:?}");
    let rest = run(&locks, jobs()[1..].to_vec(), work, std::future::pending::<()>()).await;
    assert!(rest.len() == 2 && rest.iter().all(|(_, result)| result.is_ok()), "{rest:?}");
    locks.shutdown().await;
    no_permit_is_taken(&control).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_finishes_what_runs_and_begins_nothing_more() {
    let (locks, control) = testing::locks();
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let (locks, begun, go_on) = (locks.clone(), begun.clone(), go_on.clone());
        async move {
            let work = move |_job, _permit| {
                let (begun, go_on) = (begun.clone(), go_on.clone());
                async move {
                    begun.add_permits(1);
                    go_on.notified().await;
                    Ok(())
                }
            };
            run(&locks, jobs(), work, stopped).await
        }
    });
    begun.acquire_many(2).await.unwrap().forget();
    assert_eq!(control.others().semaphore("imports", 2).available_permits().await.unwrap(), 0);
    stop.send(()).unwrap();
    go_on.notify_waiters();
    let done = running.await.unwrap();
    let mut names: Vec<_> = done.iter().map(|(job, _)| job.as_str()).collect();
    names.sort();
    assert_eq!(names, ["monday", "tuesday"], "the third was not begun");
    assert!(done.iter().all(|(_, result)| result.is_ok()), "{done:?}");
    locks.shutdown().await;
    no_permit_is_taken(&control).await;
}
