//! Asks the backend: what is in use, again and again, and for breaks. May not know what is shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use lockkit::driver::BreakMode;
use lockkit::state::LockState;
use lockkit::{Error, LockManager};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::Event;
use super::model::Target;
use crate::args::inspect::TopArgs;
use crate::describe;

/// The task that asks, and what it is asked for.
pub(super) struct Poller {
    locks: LockManager,
    tell: UnboundedSender<Event>,
    beginning: watch::Sender<String>,
    now: Arc<Notify>,
    began: Instant,
    task: JoinHandle<()>,
}

impl Poller {
    /// Asks for the names that begin as the arguments say, a pause after each answer.
    pub(super) fn start(locks: &LockManager, args: &TopArgs, tell: UnboundedSender<Event>) -> Self {
        let (beginning, asked) = watch::channel(args.beginning.clone());
        let now = Arc::new(Notify::new());
        let task = go_on(locks.clone(), args.interval, asked, now.clone(), tell.clone());
        let task = tokio::spawn(task);
        Self { locks: locks.clone(), tell, beginning, now, began: Instant::now(), task }
    }

    /// How long it has been asking.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Asks at once, and from now on, for names that begin with this.
    pub(super) fn ask(&self, beginning: String) {
        self.beginning.send_replace(beginning);
    }

    /// Asks at once.
    pub(super) fn look_now(&self) {
        self.now.notify_one();
    }

    /// Breaks a claim, and tells what became of it.
    pub(super) fn break_it(&self, target: Target) {
        let (locks, tell) = (self.locks.clone(), self.tell.clone());
        tokio::spawn(async move {
            let _ = tell.send(Event::Broke(broken(&locks, &target).await));
        });
    }

    /// Asks no longer.
    pub(super) fn stop(self) {
        self.task.abort();
    }
}

async fn go_on(
    locks: LockManager,
    pause: Duration,
    mut asked: watch::Receiver<String>,
    now: Arc<Notify>,
    tell: UnboundedSender<Event>,
) {
    loop {
        let beginning = asked.borrow_and_update().clone();
        let states: Result<Vec<LockState>, Error> =
            locks.admin().list(&beginning).try_collect().await;
        if tell.send(Event::Looked(states.map_err(|error| error.to_string()))).is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = now.notified() => {}
            changed = asked.changed() => if changed.is_err() { return },
        }
    }
}

async fn broken(locks: &LockManager, target: &Target) -> Result<String, String> {
    let Target { space, name, token, force, .. } = target;
    let subject = describe::subject(*space, name);
    match locks.admin().break_lock(*space, name, *token, *force, Some("lockkit top")).await {
        Ok(true) => Ok(match force {
            BreakMode::Forced => format!("broke {subject}, token {token}: it has moved on"),
            _ => format!(
                "broke {subject}, token {token}: it moves on when the holder lets go or its lease ends"
            ),
        }),
        Ok(false) => Err(format!("{subject}: no claim has the token {token} any more")),
        Err(error) => Err(format!("{subject} was not broken: {error}")),
    }
}
