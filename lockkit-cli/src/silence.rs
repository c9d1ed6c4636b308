//! A backend that does not answer while something is waited for: said as often as the library warns.

use std::convert::Infallible;
use std::time::Duration;

use lockkit::{LockManager, Outage};
use tokio::time::{Instant, sleep};

use crate::{output, phrase};

/// No answer for less than this is not worth a word.
const NOTABLE: Duration = Duration::from_secs(2);
/// Between two lines about the same outage.
pub(crate) const AGAIN: Duration = Duration::from_secs(30);

/// Says on stderr what is waited for while the backend does not answer, every 30 s, and when it
/// answers again.
pub(crate) async fn tell(locks: &LockManager, subject: &str) -> Infallible {
    let mut told: Option<Instant> = None;
    loop {
        sleep(Duration::from_millis(250)).await;
        match sentence(locks) {
            Some(sentence) if told.is_none_or(|told| told.elapsed() >= AGAIN) => {
                told = Some(Instant::now());
                output::note(format!("waiting for {subject}: {sentence}"));
            }
            Some(_) => {}
            None if locks.outage().is_none() && told.take().is_some() => {
                output::note(format!("waiting for {subject}: the backend answers again"));
            }
            None => {}
        }
    }
}

/// What there is to say about the backend while it does not answer.
pub(crate) fn sentence(locks: &LockManager) -> Option<String> {
    let Outage { lasted, error, .. } = locks.outage().filter(|it| it.lasted >= NOTABLE)?;
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    Some(format!("the backend has not answered for {}{error}", phrase::duration(lasted)))
}

/// The same when nothing was answered for at least as long as a request may take: then it is not known
/// whether what was waited for is still taken.
pub(crate) fn at_the_limit(locks: &LockManager, timeout: Duration) -> Option<String> {
    locks.outage().filter(|it| it.lasted >= timeout)?;
    sentence(locks)
}
