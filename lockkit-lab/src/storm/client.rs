//! What a client does in a storm: takes locks in every form, works under them on a register that
//! checks tokens, gives them back in every way, and writes down all of it.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lockkit_core::{Error, Guard, LockManager, Settings, Space};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::witness::{Witness, note};
use crate::history::register::{RegisterClient, RegisterResult};
use crate::history::{EventKind, HeldMode, Recorder, now};

/// The order that a process of clients gets.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The storm's seed.
    pub seed: u64,
    /// How long to be at work.
    pub lasts: Duration,
    /// The number of the first client; the others follow.
    pub client: u32,
    /// How many clients.
    pub tasks: u32,
    /// How many locks there are.
    pub locks: u32,
    /// Whether most operations ask for a lock alone, and hold it for a moment.
    pub hot: bool,
    /// How long half of the operations hold without being renewed, and the other half wait.
    pub ttl: Duration,
    /// How long the one half waits without being renewed, and the other holds.
    pub wait_ttl: Duration,
    /// Where the guarded registers are.
    pub registers: SocketAddr,
    /// Where to write histories.
    pub folder: PathBuf,
}

impl Orders {
    /// The longer one of the two ttls.
    pub fn longest(&self) -> Duration {
        self.ttl.max(self.wait_ttl)
    }

    /// As arguments of a program; the URL is the caller's business.
    pub fn arguments(&self) -> Vec<OsString> {
        let numbers = [
            self.seed,
            self.lasts.as_millis() as u64,
            u64::from(self.client),
            u64::from(self.tasks),
            u64::from(self.locks),
            self.ttl.as_millis() as u64,
            self.wait_ttl.as_millis() as u64,
        ];
        let mut all: Vec<OsString> = numbers.iter().map(|n| n.to_string().into()).collect();
        all.push(self.registers.to_string().into());
        all.push(self.folder.clone().into());
        all.extend(self.hot.then(|| "hot".into()));
        all
    }

    /// Reads [`arguments`](Self::arguments).
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let text = |i: usize| arguments.get(i)?.to_str();
        let number = |i: usize| text(i)?.parse::<u64>().ok();
        let small = |i: usize| u32::try_from(number(i)?).ok();
        Some(Self {
            seed: number(0)?,
            lasts: Duration::from_millis(number(1)?),
            client: small(2)?,
            tasks: small(3)?,
            locks: small(4)?,
            ttl: Duration::from_millis(number(5)?),
            wait_ttl: Duration::from_millis(number(6)?),
            registers: text(7)?.parse().ok()?,
            folder: PathBuf::from(arguments.get(8)?),
            hot: arguments.get(9).is_some(),
        })
    }
}

/// The name of a lock of the storm.
pub fn name(space: Space, i: u32) -> String {
    format!("{space}/{i}")
}

/// Runs all clients of a process, until their time is over.
pub async fn run(locks: LockManager, orders: Orders) -> io::Result<()> {
    let numbers = orders.client..orders.client + orders.tasks;
    let locks = Witness::of(numbers, &orders.folder)?.hears(&locks).map_err(io::Error::other)?;
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..orders.tasks {
        let client = Client::new(locks.clone(), &orders, orders.client + i)?;
        clients.spawn(client.work(orders.lasts));
    }
    while let Some(result) = clients.join_next().await {
        result??;
    }
    let quick = tokio::time::timeout(orders.longest() * 2, locks.shutdown()).await;
    drop(quick); // a backend that is away does not delay this
    Ok(())
}

/// A process of clients, from the arguments after `storm-client`: connects with `connect`, again
/// and again while the server is away, and runs them with `run`, such as [`run`].
///
/// # Errors
/// When the arguments are not a storm's, or connecting fails for good.
///
/// # Cancel safety
/// As a process that dies.
pub async fn serve<C, R>(
    arguments: &[OsString],
    connect: impl Fn(String, Settings) -> C,
    run: impl FnOnce(LockManager, Orders) -> R,
) -> io::Result<()>
where
    C: Future<Output = Result<LockManager, Error>>,
    R: Future<Output = io::Result<()>>,
{
    let url = arguments.first().and_then(|url| url.to_str());
    let orders = arguments.get(1..).and_then(Orders::parse);
    let (Some(url), Some(orders)) = (url, orders) else {
        return Err(io::Error::other("a storm's client is started by a storm"));
    };
    let settings = Settings::default().ttl(orders.ttl).wait_ttl(orders.wait_ttl);
    let give_up = tokio::time::Instant::now() + orders.lasts;
    loop {
        match connect(url.to_owned(), settings.clone()).await {
            Ok(locks) => return run(locks, orders).await,
            // The server was away for all of its time: then it has no part in the storm.
            Err(error) if error.is_retryable() && tokio::time::Instant::now() >= give_up => {
                return Ok(());
            }
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

struct Client {
    locks: LockManager,
    number: u32,
    recorder: Recorder,
    registers: RegisterClient,
    rng: StdRng,
    how_many: u32,
    hot: bool,
    ttls: [Duration; 2],
    op: u64,
}

impl Client {
    fn new(locks: LockManager, orders: &Orders, client: u32) -> io::Result<Self> {
        let path = orders.folder.join(format!("client-{client}.jsonl"));
        Ok(Self {
            locks,
            number: client,
            recorder: Recorder::open(path, client)?,
            registers: RegisterClient::connect(orders.registers)?,
            rng: StdRng::seed_from_u64(orders.seed ^ (u64::from(client) << 32)),
            how_many: orders.locks,
            hot: orders.hot,
            ttls: [orders.ttl, orders.wait_ttl],
            op: 0,
        })
    }

    async fn work(mut self, lasts: Duration) -> io::Result<()> {
        let end = tokio::time::Instant::now() + lasts;
        while tokio::time::Instant::now() < end {
            self.turn().await?;
            let pause = Duration::from_micros(self.rng.random_range(0..3000));
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    async fn turn(&mut self) -> io::Result<()> {
        let how = match self.rng.random_range(0..if self.hot { 20 } else { 10 }) {
            6..8 => HeldMode::Shared,
            8..10 if self.locks.capabilities().permits => {
                HeldMode::Permits(self.rng.random_range(1..=3), 4)
            }
            _ => HeldMode::Exclusive,
        };
        let space = lockkit_core::Mode::from(how).space();
        let lock = name(space, self.rng.random_range(0..self.how_many));
        let op = self.next_op();
        self.recorder.record(EventKind::Asked { op, lock: lock.clone(), how })?;
        let patience = match self.rng.random_range(0..10) {
            0..2 => Duration::ZERO,
            2..4 => Duration::from_millis(self.rng.random_range(1..60)),
            _ => self.ttls[0].max(self.ttls[1]) * 3,
        };
        match self.ask(op, &lock, how, patience).await {
            Ok(Some(guard)) => self.hold(op, guard, &lock, how).await,
            Ok(None) => self.recorder.record(EventKind::Refused { op }),
            Err(error) => self.recorder.record(EventKind::Failed { op, error: error.to_string() }),
        }
    }

    /// Holds for the one ttl and waits for the other: which for which is left to chance, since a
    /// claim that is promoted changes from one to the other.
    async fn ask(
        &mut self,
        op: u64,
        lock: &str,
        how: HeldMode,
        limit: Duration,
    ) -> Result<Option<Guard>, Error> {
        let note = note(self.number, op);
        let [mut hold, mut wait] = self.ttls;
        if self.rng.random() {
            std::mem::swap(&mut hold, &mut wait);
        }
        macro_rules! with_ttls {
            ($lock:expr) => {
                $lock.ttl(hold).wait_ttl(wait).note(note)
            };
        }
        match how {
            HeldMode::Exclusive => with_ttls!(self.locks.mutex(lock)).try_lock_for(limit).await,
            HeldMode::Shared => with_ttls!(self.locks.rwlock(lock)).try_read_for(limit).await,
            HeldMode::Permits(n, of) => {
                with_ttls!(self.locks.semaphore(lock, of)).try_acquire_many_for(n, limit).await
            }
        }
    }

    async fn hold(&mut self, op: u64, guard: Guard, lock: &str, how: HeldMode) -> io::Result<()> {
        let (at, remaining) = (now(), guard.remaining());
        let Ok(token) = guard.token() else {
            return self
                .recorder
                .record(EventKind::Failed { op, error: "lost at once".to_owned() });
        };
        let token = token.get();
        let valid_until = at + remaining.as_nanos() as u64;
        let since = valid_until.saturating_sub(guard.granted_ttl().as_nanos() as u64);
        self.recorder.record(EventKind::Granted { op, token, since, valid_until })?;
        let rounds = self.rng.random_range(1..4);
        for _ in 0..rounds {
            if how == HeldMode::Exclusive && !self.update(lock, token)? {
                break; // refused: a newer holder was here
            }
            let pause = match self.rng.random_range(0..if self.hot { 1_000 } else { 100 }) {
                // Needs renewing; and outlasts the one ttl before the other has to be renewed.
                0 => self.ttls[0].min(self.ttls[1]).mul_f64(self.rng.random_range(0.9..1.9)),
                _ => Duration::from_micros(self.rng.random_range(0..2000)),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                reason = guard.lost() => {
                    let lost = Some(reason.to_string());
                    return self.recorder.record(EventKind::Ended { op, lost });
                }
            }
            self.note_validity(op, &guard)?;
        }
        self.recorder.record(EventKind::Ended { op, lost: None })?;
        match self.rng.random_range(0..4) {
            0 => drop(guard),
            _ => drop(guard.release().await),
        }
        Ok(())
    }

    /// Adds one to what the register says, as work under a lock does. The token, not the guard,
    /// is what protects it.
    fn update(&mut self, lock: &str, token: u64) -> io::Result<bool> {
        match self.apply(lock, token, None)? {
            RegisterResult::Done { value } => {
                Ok(matches!(self.apply(lock, token, Some(value + 1))?, RegisterResult::Done { .. }))
            }
            RegisterResult::Stale { .. } => Ok(false),
        }
    }

    fn apply(&mut self, lock: &str, token: u64, write: Option<u64>) -> io::Result<RegisterResult> {
        let op = self.next_op();
        let register = lock.to_owned();
        self.recorder.record(EventKind::RegisterAsked { op, register, token, write })?;
        let answer = self.registers.apply(lock, token, write)?;
        self.recorder.record(match answer {
            RegisterResult::Done { value } => EventKind::RegisterDone { op, value },
            RegisterResult::Stale { highest } => EventKind::RegisterStale { op, highest },
        })?;
        Ok(answer)
    }

    fn note_validity(&self, op: u64, guard: &Guard) -> io::Result<()> {
        let (at, remaining) = (now(), guard.remaining());
        if !guard.is_valid() || remaining.is_zero() {
            return Ok(());
        }
        let valid_until = at + remaining.as_nanos() as u64;
        self.recorder.record(EventKind::Valid { op, valid_until })
    }

    fn next_op(&mut self) -> u64 {
        self.op += 1;
        self.op
    }
}
