//! Keep-alives of all leases over one stream, each answered. It is reopened when it breaks, and
//! left for another endpoint when it falls silent. It decides nothing: it returns the answers, and
//! keeps nothing alive by itself.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use lockkit_core::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::client::{BACKEND, EtcdClient, Task};

/// How long a question may wait for its place in the stream.
const SILENCE: Duration = Duration::from_secs(2);
/// What one question may take with a second attempt.
const ATTEMPTS: usize = 2;

/// What a keep-alive was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAliveResponse {
    /// Whether the lease is there.
    pub(crate) alive: bool,
    /// The term of the leader that answered, as far as the member that answered knew.
    pub(crate) term: u64,
}

/// `None`: the stream broke before the answer came.
type KeepAliveResult = Option<KeepAliveResponse>;

#[derive(Debug)]
enum KeepAliveCommand {
    Keep(KeepAliveRequest),
    /// The stream did not answer what was asked then.
    Reopen(Instant),
}

/// Whether a lease is there, and how long the answer may take.
#[derive(Debug)]
struct KeepAliveRequest {
    lease: i64,
    patience: Duration,
    to: oneshot::Sender<KeepAliveResult>,
}

/// The stream, opened when it is first needed.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    client: Arc<EtcdClient>,
    task: Task<KeepAliveCommand>,
}

impl KeepAlive {
    pub(crate) fn new(client: Arc<EtcdClient>) -> Self {
        Self { client, task: Task::default() }
    }

    /// Keeps a lease alive; says whether it is still there. The answer is one to a request that
    /// was sent after this was called. A stream that does not answer for as long as `patience` is
    /// given up for one to another endpoint, where it is asked once more.
    pub(crate) async fn keep(&self, lease: i64, patience: Duration) -> Result<KeepAliveResponse> {
        for _ in 0..ATTEMPTS {
            let commands = self.task.reach(|commands| run(self.client.clone(), commands));
            let (to, answer) = oneshot::channel();
            let asked = Instant::now();
            if commands
                .send(KeepAliveCommand::Keep(KeepAliveRequest { lease, patience, to }))
                .is_err()
            {
                continue;
            }
            match timeout(patience, answer).await {
                Ok(Ok(Some(kept))) => return Ok(kept),
                Ok(_) => {}
                Err(_) => {
                    let _ = commands.send(KeepAliveCommand::Reopen(asked));
                }
            }
        }
        Err(Error::retryable(BACKEND, "etcd did not answer a keep-alive in time"))
    }
}

/// Questions that were sent and not answered, in the order of their sending for each lease.
#[derive(Default)]
struct PendingKeepAlives(HashMap<i64, VecDeque<oneshot::Sender<KeepAliveResult>>>);

impl PendingKeepAlives {
    fn add(&mut self, lease: i64, to: oneshot::Sender<KeepAliveResult>) {
        self.0.entry(lease).or_default().push_back(to);
    }

    fn answer(&mut self, lease: i64, kept: KeepAliveResponse) {
        if let Some(asked) = self.0.get_mut(&lease) {
            if let Some(to) = asked.pop_front() {
                let _ = to.send(Some(kept));
            }
            if asked.is_empty() {
                self.0.remove(&lease);
            }
        }
    }
}

async fn run(client: Arc<EtcdClient>, mut commands: mpsc::UnboundedReceiver<KeepAliveCommand>) {
    while let Some(ask) = commands.recv().await {
        let KeepAliveCommand::Keep(question) = ask else {
            continue;
        };
        if question.to.is_closed() {
            continue; // it has waited long enough
        }
        let lease = question.lease;
        let opened = client.call_within(question.patience, |mut client| async move {
            // The client tells a lease that is gone by an error, like a broken stream.
            match client.lease_keep_alive(lease).await {
                Err(etcd_client::Error::LeaseKeepAliveError(e)) if e.contains("not found") => {
                    Ok(None)
                }
                opened => opened.map(Some),
            }
        });
        match opened.await.map(|opened| (opened.answer, opened.at)) {
            Ok((Some((keeper, answers)), at)) => {
                // The client swallows the first answer, and with it the term: ask again.
                if !talk(keeper, answers, KeepAliveCommand::Keep(question), &mut commands).await {
                    return;
                }
                client.leave(at);
            }
            Ok((None, _)) => {
                let _ = question.to.send(Some(KeepAliveResponse { alive: false, term: 0 }));
            }
            Err(_) => drop(question.to.send(None)),
        }
    }
}

/// Asks and answers until the stream breaks. `false` when no client can ask any more.
async fn talk(
    mut keeper: LeaseKeeper,
    mut answers: LeaseKeepAliveStream,
    first: KeepAliveCommand,
    commands: &mut mpsc::UnboundedReceiver<KeepAliveCommand>,
) -> bool {
    // Dropped at the end: a client that is not answered by then hears so at once.
    let mut pending = PendingKeepAlives::default();
    let mut first = Some(first);
    let opened = Instant::now();
    loop {
        tokio::select! {
            ask = next(&mut first, commands) => match ask {
                None => return false,
                // (One who asked before, while there was none, says nothing about this stream.)
                Some(KeepAliveCommand::Reopen(asked)) if asked < opened => {}
                Some(KeepAliveCommand::Reopen(_)) => return true,
                Some(KeepAliveCommand::Keep(question)) if question.to.is_closed() => {}
                Some(KeepAliveCommand::Keep(KeepAliveRequest { lease, to, .. })) => {
                    pending.add(lease, to);
                    // The client binds a keeper to one lease; a stream of etcd takes any.
                    keeper.id = lease;
                    if !matches!(timeout(SILENCE, keeper.keep_alive()).await, Ok(Ok(()))) {
                        return true;
                    }
                }
            },
            answer = answers.message() => match answer {
                Ok(Some(answer)) => {
                    let term = answer.header().map_or(0, |header| header.raft_term());
                    pending.answer(answer.id(), KeepAliveResponse { alive: answer.ttl() > 0, term });
                }
                _ => return true,
            },
        }
    }
}

async fn next(
    first: &mut Option<KeepAliveCommand>,
    commands: &mut mpsc::UnboundedReceiver<KeepAliveCommand>,
) -> Option<KeepAliveCommand> {
    match first.take() {
        Some(ask) => Some(ask),
        None => commands.recv().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given to a later question, it would count from after it was sent.
    #[test]
    fn an_answer_is_that_of_the_first_question_about_its_lease() {
        let mut pending = PendingKeepAlives::default();
        let mut ask = |lease| {
            let (to, answer) = oneshot::channel();
            pending.add(lease, to);
            answer
        };
        let mut asked = [ask(1), ask(2), ask(1)];
        let mut terms = || {
            let kept = asked.each_mut().map(|answer| answer.try_recv().ok().flatten());
            kept.map(|kept| kept.map(|kept| kept.term))
        };
        let kept = |term| KeepAliveResponse { alive: true, term };
        pending.answer(1, kept(7));
        assert_eq!(terms(), [Some(7), None, None]);
        pending.answer(1, kept(8));
        assert_eq!(terms(), [None, None, Some(8)]);
    }
}
