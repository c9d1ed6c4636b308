//! Taking a lock from the command line: the checks that need no backend, the wait with its words on
//! stderr, the withdrawal when interrupted.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use lockkit::state::LockState;
use lockkit::sync::{Semaphore, Slots};
use lockkit::{Error, LockManager, MemoryDriver, Name, Space};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::args::acquire::LockArgs;
use crate::backend::Backend;
use crate::describe;
use crate::exit::{ExitError, code};
use crate::note;
use crate::outage;
use crate::output::{self, Verbosity, printable};
use crate::progress::{self, Progress};
use crate::run::signals::Signals;
use crate::taken::Taken;

/// Sets on a primitive what its kinds have in common.
macro_rules! configured {
    ($take:expr, $primitive:expr) => {{
        let mut primitive = $primitive;
        if let Some(ttl) = $take.args.ttl {
            primitive = primitive.ttl(ttl);
        }
        if let Some(note) = $take.args.note.as_ref().filter(|note| !note.is_empty()) {
            primitive = primitive.note(note);
        }
        if let Some(max_hold) = $take.max_hold {
            primitive = primitive.max_hold(max_hold);
        }
        if let Some(hold) = $take.args.at_least {
            primitive = primitive.at_least(hold);
        }
        if let Some(delay) = $take.args.lock_delay {
            primitive = primitive.lock_delay(delay);
        }
        primitive
    }};
}

/// The same on what can outlive this process.
macro_rules! detachable {
    ($take:expr, $primitive:expr) => {{
        let mut primitive = configured!($take, $primitive);
        if $take.detached {
            primitive = primitive.detached();
        }
        primitive
    }};
}

/// What is to be taken, and how.
pub(crate) struct LockRequest<'a> {
    pub(crate) name: &'a str,
    args: &'a LockArgs,
    max_hold: Option<Duration>,
    /// Whether it is to outlive this process.
    detached: bool,
    /// Of how many slots one is wanted, instead of a lock.
    slots: Option<u32>,
    /// Whether what was taken is left to its lease.
    left_to_lease: Cell<bool>,
    /// Since when it is waited for, the backend included.
    began: Instant,
    /// How long a request may take, once the backend is known.
    timeout: OnceLock<Duration>,
    /// What the backend says that takes no writes now.
    refused: Cell<Option<Error>>,
}

impl<'a> LockRequest<'a> {
    pub(crate) fn new(
        name: &'a str,
        args: &'a LockArgs,
        max_hold: Option<Duration>,
        detached: bool,
    ) -> Self {
        let (began, timeout, refused) = (Instant::now(), OnceLock::new(), Cell::new(None));
        let (slots, left) = (None, Cell::new(false));
        Self { name, args, max_hold, detached, slots, left_to_lease: left, began, timeout, refused }
    }

    /// The same for one of so many slots.
    pub(crate) fn slots(self, slots: Option<u32>) -> Self {
        Self { slots, ..self }
    }

    /// Reports, with --progress, that the lock stays held for so long.
    pub(crate) fn stays(&self, rest: Duration) {
        if let Some(progress) = self.progress() {
            progress.stays(rest);
        }
    }

    /// What reports the wait, with --progress.
    fn progress(&self) -> Option<Progress<'a>> {
        let format = self.args.progress?;
        Some(Progress::new(format, self.space(), self.name, self.began))
    }

    /// What was taken is to end with its lease, whatever becomes of this process.
    pub(crate) fn leave(&self) {
        self.left_to_lease.set(true);
    }

    /// Whether that was asked for.
    pub(crate) fn is_left(&self) -> bool {
        self.left_to_lease.get()
    }

    /// Connects, again and again for as long as --wait says: what starts at boot waits for its
    /// database.
    pub(crate) async fn connect(&self, backend: &Backend) -> Result<LockManager, ExitError> {
        let _ = self.timeout.set(backend.timeout());
        let mut told: Option<Instant> = None;
        loop {
            let failure = match backend.connect().await {
                Ok(locks) => return Ok(locks),
                Err(failure) => failure,
            };
            let left = self.remaining_wait().unwrap_or_default();
            if !(failure.passing || failure.read_only) || left.is_zero() {
                return Err(failure);
            }
            let again =
                if self.args.progress.is_some() { progress::INTERVAL } else { outage::AGAIN };
            if told.is_none_or(|told| told.elapsed() >= again) {
                told = Some(Instant::now());
                let why = failure.sentence.unwrap_or_default();
                match self.progress() {
                    Some(progress) => progress.trouble(&why),
                    None => output::note(format!("waiting for the backend: {why}")),
                }
            }
            sleep(left.min(Duration::from_millis(250))).await;
        }
    }

    /// What is left of --wait; `None` when it is not limited.
    fn remaining_wait(&self) -> Option<Duration> {
        Some(self.args.wait?.saturating_sub(self.began.elapsed()))
    }

    pub(crate) fn space(&self) -> Space {
        match self.args.limit.or(self.slots) {
            Some(_) => Space::Semaphore,
            None => Space::Lock,
        }
    }

    /// Refuses what cannot work before anything is touched: takes the same in a memory of its own.
    pub(crate) async fn rehearse(&self, backend: &Backend) -> Result<(), ExitError> {
        Name::new(self.name)?;
        let stage = backend.settings();
        let stage = LockManager::with(std::sync::Arc::new(MemoryDriver::new()), stage)?;
        match self.once(&stage).await {
            // A short lease may end on the stage: that says nothing against the play.
            Ok(_) | Err(Error::Lost { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes it, waiting as long as the arguments say, or until one of these signals.
    pub(crate) async fn take(
        &self,
        locks: &LockManager,
        signals: &mut Signals,
    ) -> Result<Taken, ExitError> {
        let outcome = tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            taken = self.attempt(locks) => Ok(taken),
            taken = self.unless_hopeless(locks) => Ok(taken),
            () = self.tell(locks) => unreachable!("it tells until it is dropped"),
        };
        match outcome {
            Ok(taken) => match taken? {
                Some(guard) => Ok(guard),
                None => Err(self.busy(locks).await),
            },
            Err(signal) => Err(self.withdraw(locks, signal, signals).await),
        }
    }

    async fn attempt(&self, locks: &LockManager) -> Result<Option<Taken>, Error> {
        match self.remaining_wait() {
            _ if self.args.once => self.once(locks).await,
            Some(Duration::ZERO) => self.once(locks).await,
            limit => self.patiently(locks, limit).await,
        }
    }

    /// The library waits until a backend works again; people want to know at once that one takes no
    /// writes. Asks its health while the lock is waited for, and tries for itself where that is bad.
    async fn unless_hopeless(&self, locks: &LockManager) -> Result<Option<Taken>, Error> {
        for pause in [100, 1_000].into_iter().chain(std::iter::repeat(10_000)) {
            sleep(Duration::from_millis(pause)).await;
            let found = match outage::has_problem(locks).await {
                true => self.once(locks).await,
                false => Ok(None),
            };
            let refused = self.refused.take();
            match found {
                Ok(None) => {}
                // What was written to before is about to be a primary again, and may be within the limit.
                Err(error)
                    if error.is_read_only()
                        && (error.is_retryable() || self.args.wait.is_some()) =>
                {
                    if refused.is_none() {
                        let subject = describe::subject(self.space(), self.name);
                        match self.progress() {
                            Some(progress) => progress.trouble(&error.to_string()),
                            None => output::note(format!("waiting for {subject}: {error}")),
                        }
                    }
                    self.refused.set(Some(error));
                }
                found => return found,
            }
        }
        std::future::pending().await
    }

    async fn once(&self, locks: &LockManager) -> Result<Option<Taken>, Error> {
        if let Some(slots) = self.slots {
            return Ok(self.numbered(locks, slots).try_acquire().await?.map(Taken::Slot));
        }
        let permits = self.args.permits.unwrap_or(1);
        let guard = match (self.args.limit, self.args.shared) {
            (Some(limit), _) => {
                let semaphore = detachable!(self, self.semaphore(locks, limit));
                semaphore.try_acquire_many(permits).await
            }
            (None, true) => detachable!(self, locks.rwlock(self.name)).try_read().await,
            (None, false) => detachable!(self, locks.mutex(self.name)).try_lock().await,
        };
        Ok(guard?.map(Taken::Lock))
    }

    fn numbered(&self, locks: &LockManager, slots: u32) -> Slots {
        let slots = configured!(self, locks.slots(self.name, slots));
        if self.args.resizable { slots.resizable() } else { slots }
    }

    fn semaphore(&self, locks: &LockManager, limit: u32) -> Semaphore {
        let semaphore = locks.semaphore(self.name, limit);
        if self.args.resizable { semaphore.resizable() } else { semaphore }
    }

    async fn patiently(
        &self,
        locks: &LockManager,
        limit: Option<Duration>,
    ) -> Result<Option<Taken>, Error> {
        if let Some(slots) = self.slots {
            let slots = self.numbered(locks, slots);
            let slot = match limit {
                Some(limit) => slots.try_acquire_for(limit).await?,
                None => Some(slots.acquire().await?),
            };
            return Ok(slot.map(Taken::Slot));
        }
        let permits = self.args.permits.unwrap_or(1);
        let guard = match (self.args.limit, self.args.shared, limit) {
            (Some(permits_in_all), _, limit) => {
                let semaphore = detachable!(self, self.semaphore(locks, permits_in_all));
                match limit {
                    Some(limit) => semaphore.try_acquire_many_for(permits, limit).await,
                    None => semaphore.acquire_many(permits).await.map(Some),
                }
            }
            (None, true, limit) => {
                let lock = detachable!(self, locks.rwlock(self.name));
                match limit {
                    Some(limit) => lock.try_read_for(limit).await,
                    None => lock.read().await.map(Some),
                }
            }
            (None, false, limit) => {
                let lock = detachable!(self, locks.mutex(self.name));
                match limit {
                    Some(limit) => lock.try_lock_for(limit).await,
                    None => lock.lock().await.map(Some),
                }
            }
        };
        Ok(guard?.map(Taken::Lock))
    }

    /// Says, after a second, who is waited for, and when the backend does not answer; to a terminal,
    /// goes on showing it. Never returns.
    async fn tell(&self, locks: &LockManager) {
        if let Some(progress) = self.progress() {
            match progress.report(locks).await {}
        }
        let subject = describe::subject(self.space(), self.name);
        if !io::stderr().is_terminal() || !output::says(Verbosity::Normal) {
            let holder = async { output::note(self.first_line(locks).await) };
            let ((), never) = tokio::join!(holder, outage::report(locks, &subject));
            match never {}
        }
        let began = Instant::now();
        let mut line = self.first_line(locks).await;
        output::note(&line);
        let spinner = Spinner;
        loop {
            line = self.waiting_for(locks).await.unwrap_or(line);
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(2) {
                spinner.show(began.elapsed(), &line);
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn first_line(&self, locks: &LockManager) -> String {
        loop {
            sleep(Duration::from_secs(1)).await;
            if let Some(line) = self.waiting_for(locks).await {
                return line;
            }
        }
    }

    /// What is waited for; `None` when no other claim is in the way, so that only the machine is slow, and
    /// when that is not known.
    async fn waiting_for(&self, locks: &LockManager) -> Option<String> {
        let subject = describe::subject(self.space(), self.name);
        if self.space() == Space::Lock && locks.neighbour_wait(self.name).is_some() {
            return Some(format!("waiting for {subject}: held by a client of another library"));
        }
        let look = timeout(Duration::from_secs(5), locks.inspect(self.space(), self.name)).await;
        Some(match look {
            Ok(Ok(state)) => {
                if state.queue.iter().all(|s| note::is_this_process(&s.identity))
                    && state.limit() != Some(0)
                {
                    return None;
                }
                let behind = match waiters_ahead(&state) {
                    Some(ahead) if ahead > 0 => format!(", behind {ahead} who wait"),
                    _ => String::new(),
                };
                match describe::holders(&state) {
                    Some(holders) => format!("waiting for {subject}: held by {holders}{behind}"),
                    None => format!("waiting for {subject}{behind}"),
                }
            }
            Ok(Err(error)) if !error.is_retryable() => format!("waiting for {subject}: {error}"),
            // Without a terminal that is said elsewhere, and as often as it should.
            _ if !io::stderr().is_terminal() => return None,
            _ => format!("waiting for {subject}: {}", outage::sentence(locks)?),
        })
    }

    /// Why it was not acquired: another claim holds it, or the backend did not answer.
    async fn busy(&self, locks: &LockManager) -> ExitError {
        let subject = describe::subject(self.space(), self.name);
        if let Some(error) = self.refused.take() {
            return error.into();
        }
        let timed_out = self.timeout.get().and_then(|limit| outage::at_the_limit(locks, *limit));
        if let Some(sentence) = timed_out {
            let sentence = format!("did not acquire {subject}: {sentence}");
            return ExitError::new(code::UNAVAILABLE, sentence);
        }
        let look = locks.inspect(self.space(), self.name);
        let held = match timeout(Duration::from_secs(2), look).await {
            Ok(Ok(state)) => describe::holders(&state),
            Ok(Err(error)) if !error.is_retryable() => return error.into(),
            _ => None,
        };
        let code = self.args.busy_exit_code;
        match (output::says(Verbosity::Normal), held) {
            (false, _) => ExitError::silent(code),
            (true, None) => ExitError::new(code, format!("did not acquire {subject}")),
            (true, Some(by)) => {
                ExitError::new(code, format!("did not acquire {subject}: held by {by}"))
            }
        }
    }

    async fn withdraw(&self, locks: &LockManager, why: Signal, signals: &mut Signals) -> ExitError {
        tokio::select! {
            () = close(locks) => {}
            // Asked for once more: then its lease has to end by itself.
            _ = signals.next() => {}
        }
        let subject = describe::subject(self.space(), self.name);
        ExitError::signal(why, format!("interrupted while waiting for {subject}"))
    }
}

/// How long a backend has for the releases at the end of this process, in all.
const PATIENCE: Duration = Duration::from_millis(4_500);

/// Releases whatever is left, as long as the backend answers. What an earlier call of this process
/// waited for counts.
pub(crate) async fn close(locks: &LockManager) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let left = PATIENCE.saturating_sub(BEGAN.get_or_init(Instant::now).elapsed());
    let _ = timeout(left, locks.shutdown()).await;
}

/// The same, but hardly waits for a backend that failed.
pub(crate) async fn close_after<T>(locks: &LockManager, result: &Result<T, ExitError>) {
    match result {
        Err(failure) if failure.is_of_the_backend() => {
            let _ = timeout(PATIENCE / 10, locks.shutdown()).await;
        }
        _ => close(locks).await,
    }
}

/// How many wait ahead of this process.
fn waiters_ahead(state: &LockState) -> Option<usize> {
    state.waiters().position(|s| note::is_this_process(&s.identity))
}

/// A line on a terminal that is written again and again, and wiped at the end.
struct Spinner;

impl Spinner {
    fn show(&self, since: Duration, line: &str) {
        const FACES: [char; 4] = ['|', '/', '-', '\\'];
        let face = FACES[(since.as_millis() / 100) as usize % FACES.len()];
        let text = printable(&format!("{face} {}: {line}", describe::duration(since)));
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| size.ws_col);
        // A line that wraps could not be written over.
        let short: String = text.chars().take(usize::from(width.max(20)) - 1).collect();
        let _ = write!(io::stderr(), "\r{short}\x1b[K");
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}
