//! Running cases: one as a test, or many with a report. Cleans up behind a case however it ended.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::context::{CaseContext, Stalls};
use crate::harness::{Harness, Time};
use crate::table::{CASES, Case};

/// A task that was not run for so long although it wanted to be: a machine that stands still, whose
/// servers may answer too late by themselves.
const STANDSTILL: Duration = Duration::from_millis(120);

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// What it proves holds.
    Passed,
    /// It does not; this is what was seen.
    Failed(String),
    /// The driver denies what the case is about, and was found to speak the truth; or the harness
    /// cannot stage it.
    NotApplicable(String),
}

/// A case and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The case's group.
    pub group: &'static str,
    /// The case.
    pub case: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took, clean-up included, by the machine's clock.
    pub millis: u64,
}

/// No case takes longer than this on its clock, whatever it waits for.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs one case in a namespace of its own, and cleans up.
///
/// # Cancel safety
/// Dropping it leaves what the case made until its leases end.
pub async fn case(harness: Arc<dyn Harness>, case: &'static Case) -> Report {
    case_until(harness, case, std::future::pending()).await
}

/// As [`case`], but gives up, cleans up and reports a failure when `stop` returns.
///
/// # Cancel safety
/// As [`case`].
pub async fn case_until(
    harness: Arc<dyn Harness>,
    case: &'static Case,
    stop: impl Future<Output = ()>,
) -> Report {
    let start = std::time::Instant::now();
    let outcome = match CaseContext::new(harness).await {
        Ok(context) => on_bench(context, case, stop).await,
        Err(e) => Outcome::Failed(format!("the harness gave no driver: {e}")),
    };
    Report {
        group: case.group,
        case: case.name,
        outcome,
        millis: start.elapsed().as_millis() as u64,
    }
}

async fn on_bench(
    context: CaseContext,
    case: &'static Case,
    stop: impl Future<Output = ()>,
) -> Outcome {
    let missing = match case.need.missing(&context).await {
        Ok(missing) => missing,
        Err(e) => return Outcome::Failed(format!("the harness cannot count: {e}")),
    };
    let at_work = context.clone();
    let real_time = context.harness().time() == Time::Real;
    let stalls = real_time.then(Stalls::watch);
    // In a task of its own, so that a panic ends the case and not its clean-up.
    let mut task = tokio::spawn(async move {
        match missing {
            None => (case.run)(at_work).await,
            Some(_) => case.need.check_denial(&at_work).await,
        }
    });
    let outcome = tokio::select! {
        ended = &mut task => match (ended, missing) {
            (Ok(()), None) => Outcome::Passed,
            (Ok(()), Some(why)) => Outcome::NotApplicable(why.to_owned()),
            (Err(e), _) => Outcome::Failed(match e.try_into_panic() {
                Ok(panic) => message(&*panic),
                Err(_) => "the runtime ended".to_owned(),
            }),
        },
        () = tokio::time::sleep(LONGEST) => {
            Outcome::Failed(format!("took longer than {LONGEST:?}"))
        }
        () = stop => Outcome::Failed("interrupted".to_owned()),
    };
    task.abort();
    let passing = context.passing_errors();
    let stood_still = stalls.is_some_and(|stalls| stalls.worst() > STANDSTILL);
    context.clean_up().await;
    match outcome {
        Outcome::Passed if passing.len() > case.errors_that_may_pass() && !stood_still => {
            let what = "tried again after errors that nothing staged";
            Outcome::Failed(format!("{what}: {passing:#?}"))
        }
        // Where no queue is kept, as in a quorum, a few members may keep what a majority gave up, until
        // its lease ends.
        Outcome::Passed if !context.has_line() => Outcome::Passed,
        Outcome::Passed => match context.settled(0, context.after(context.lively())).await {
            Ok(None | Some(0)) => Outcome::Passed,
            Ok(Some(count)) => Outcome::Failed(format!("the backend keeps {count} things of it")),
            Err(e) => Outcome::Failed(format!("the harness cannot count: {e}")),
        },
        outcome => outcome,
    }
}

/// What a panic says.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Runs one case as a test: in a runtime of its own, on the harness's clock. What does not apply is
/// printed and passes, since the denial was checked.
///
/// # Panics
/// When the case fails, or there is none of this name.
pub fn as_test<H: Harness>(name: &str, harness: impl FnOnce() -> Arc<H>) {
    let found = Case::named(name).expect("the list has this case");
    let harness = harness();
    let report = runtime(harness.time()).block_on(case(harness, found));
    match report.outcome {
        Outcome::Passed => {}
        Outcome::NotApplicable(why) => println!("not applicable: {why}"),
        Outcome::Failed(why) => panic!("{name}: {why}"),
    }
}

/// Runs the cases of a group one after the other, without those that are named, each as [`as_test`] does.
///
/// # Panics
/// When a case fails, when the group has none, or when one to leave out does not exist.
pub fn group_as_test<H: Harness>(group: &str, except: &[&str], harness: impl Fn() -> Arc<H>) {
    except.iter().for_each(|name| assert!(Case::named(name).is_some(), "there is no case {name}"));
    let of_group = CASES.iter().filter(|case| case.group == group && !except.contains(&case.name));
    assert!(of_group.clone().next().is_some(), "the group {group} has no cases");
    for case in of_group {
        println!("{}", case.name);
        as_test(case.name, &harness);
    }
}

/// The runtime in which cases of such a harness are run.
///
/// # Panics
/// When the machine gives no threads.
pub fn runtime(time: Time) -> tokio::runtime::Runtime {
    let mut builder = match time {
        Time::Real => tokio::runtime::Builder::new_multi_thread(),
        Time::Paused => tokio::runtime::Builder::new_current_thread(),
    };
    builder.enable_all().worker_threads(2);
    if time == Time::Paused {
        builder.start_paused(true);
    }
    builder.build().expect("a runtime can be started")
}
