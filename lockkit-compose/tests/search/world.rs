//! One run: clients that take, renew and give back one lock, and what befalls the members.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::ledger::Ledger;
use super::network::{Flaw, Link, Server};
use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_core::clock::{Clock, Moment, TokioClock};
use lockkit_core::driver::{
    Acquisition, Attempted, BreakMode, Grant, LockDriver, Patience, Renewal, trusted_until,
};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Key, Margin, Mode, Name, Namespace, Space};

pub(crate) const TTL: Duration = Duration::from_millis(1_000);
/// The namespace whose token base is the sign of a member.
pub(crate) const SIGN: &str = "lockkit.quorum";
/// What the namespaces begin with whose token bases are the runs that count.
pub(crate) const RUNS: &str = "lockkit.quorum.run.";
const CLIENTS: u64 = 3;
const RUN: Duration = Duration::from_secs(6);

#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) members: usize,
    pub(crate) faults: Faults,
    /// Of all members, as the clients reach them.
    pub(crate) flaws: &'static [Flaw],
}

#[derive(Clone, Copy)]
pub(crate) struct Faults {
    /// Of a hundred messages so many have bad luck.
    pub(crate) trouble: u32,
    pub(crate) restarts: bool,
    pub(crate) data_loss: bool,
    pub(crate) breaks: bool,
    /// A member comes back with data of some time before.
    pub(crate) old_data: bool,
    /// Members keep all writes, and every restart is another run.
    pub(crate) runs: bool,
}

impl Faults {
    pub(crate) const NETWORK: Self = Self {
        trouble: 3,
        restarts: true,
        data_loss: false,
        breaks: false,
        old_data: false,
        runs: false,
    };
}

pub(crate) fn named(name: &str) -> Key {
    Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap())
}

pub(crate) fn key() -> Key {
    named("a")
}

pub(crate) fn claim(mode: Mode) -> Arc<Claim> {
    claim_on(key(), mode)
}

/// A claim that has its id in its note, for [`Flaw::OneId`].
pub(crate) fn claim_on(key: Key, mode: Mode) -> Arc<Claim> {
    let identity = Arc::new(ClientIdentity::new(String::new(), 0, String::new()));
    let claim = Claim::new(key, mode, TTL, TTL, identity);
    let id = claim.id.to_hex();
    Arc::new(claim.with_note(Some(id.into())))
}

/// The pauses are not random, so that a seed always gives the same run.
pub(crate) fn options() -> QuorumOptions {
    let pause = |failures: u32| Duration::from_millis(30) * failures.max(1);
    QuorumOptions::default().max_ttl(TTL).member_limit(Duration::from_millis(100)).pause(pause)
}

/// Uses a quorum once, so that its members have their signs and it has read them.
pub(crate) async fn open(quorum: &QuorumDriver) {
    let claim = claim_on(named("opening"), Mode::Exclusive);
    quorum.acquire(&claim, Patience::Try).await.unwrap();
    quorum.release(&claim).await.unwrap();
}

pub(crate) fn now() -> Moment {
    TokioClock.now()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// How many grants there were, or what went wrong.
pub(crate) fn run(seed: u64, plan: Plan) -> Result<u64, String> {
    runtime().block_on(async {
        let servers: Vec<_> = (0..plan.members).map(|_| Server::new()).collect();
        if plan.faults.runs {
            servers.iter().for_each(|server| server.set_keeps_writes());
        }
        // A quorum that has been in use: its members have their signs.
        let quiet = servers.iter().map(|s| Link::between(s, 0, 0, &[])).collect();
        open(&QuorumDriver::new(quiet, options()).unwrap()).await;
        let ledger = Arc::new(Ledger::default());
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let seed = seed * 1_000 + client * 100;
            let (servers, ledger) = (servers.clone(), ledger.clone());
            clients.push(tokio::spawn(work(seed, plan, servers, ledger)));
        }
        let nemesis = tokio::spawn(befall(seed, plan, servers));
        for client in clients {
            client.await.unwrap();
        }
        nemesis.abort();
        ledger.verdict()
    })
}

async fn work(seed: u64, plan: Plan, servers: Vec<Arc<Server>>, ledger: Arc<Ledger>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let links = servers.iter().enumerate();
    let links =
        links.map(|(m, s)| Link::between(s, seed + 1 + m as u64, plan.faults.trouble, plan.flaws));
    let quorum = QuorumDriver::new(links.collect(), options()).unwrap();
    let end = now().after(RUN);
    while now() < end && !ledger.is_decided() {
        let idle = rng.random_range(0..150);
        tokio::time::sleep(Duration::from_millis(idle)).await;
        let mode = if rng.random_ratio(1, 4) { Mode::Shared } else { Mode::Exclusive };
        let claim = claim(mode);
        let patience = if rng.random() { Patience::Wait } else { Patience::Try };
        let asked = now();
        let mut grant = match quorum.acquire(&claim, patience).await {
            Ok(Attempted { result: Acquisition::Granted(grant), .. }) => Some(grant),
            _ => None,
        };
        if grant.is_none() && patience == Patience::Wait {
            let waiting = tokio::time::timeout(TTL, quorum.granted(&claim)).await;
            grant = waiting.ok().and_then(Result::ok);
        }
        if let Some(grant) = grant {
            hold(&mut rng, &quorum, &claim, grant, asked, plan, &ledger).await;
        }
        let _ = quorum.release(&claim).await;
    }
}

/// Holds as a guard does: renews, and believes in nothing beyond its own deadline.
async fn hold(
    rng: &mut StdRng,
    quorum: &QuorumDriver,
    claim: &Arc<Claim>,
    grant: Grant,
    asked: Moment,
    plan: Plan,
    ledger: &Ledger,
) {
    let trusted =
        |grant: &Grant, asked| trusted_until(grant.start.or(asked), grant.ttl, Margin::default());
    let mut until = trusted(&grant, asked);
    if now() >= until {
        return;
    }
    let exclusion = !plan.faults.breaks;
    let entry = ledger.begin(claim.mode, grant.token, now(), until, exclusion);
    for _ in 0..rng.random_range(0..5) {
        let nap = rng.random_range(10..500);
        tokio::time::sleep(Duration::from_millis(nap)).await;
        let asked = now();
        let answer = quorum.renew_single(claim).await;
        if now() >= until {
            return;
        }
        match answer {
            Ok(Renewal::Holds(grant)) => {
                until = until.max(trusted(&grant, asked));
                ledger.extend(entry, until);
            }
            Ok(_) => break,
            Err(_) => {}
        }
    }
    ledger.end(entry, now());
}

/// One member after the other goes down, and perhaps loses its data, never two at a time.
async fn befall(seed: u64, plan: Plan, servers: Vec<Arc<Server>>) {
    let mut rng = StdRng::seed_from_u64(seed * 1_000 + 999);
    let sign = Namespace::new(SIGN).unwrap();
    loop {
        let pause = rng.random_range(100..1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let victim = &servers[rng.random_range(0..servers.len())];
        if plan.faults.breaks {
            break_all(victim).await;
        }
        if !plan.faults.restarts {
            continue;
        }
        let older = plan.faults.old_data && rng.random() && victim.stop_saving();
        if older {
            let unsaved = rng.random_range(0..1_000);
            tokio::time::sleep(Duration::from_millis(unsaved)).await;
        }
        victim.set_up(false);
        let down = rng.random_range(0..800);
        tokio::time::sleep(Duration::from_millis(down)).await;
        let lost = plan.faults.data_loss && rng.random();
        if lost {
            victim.lose_data();
        } else if older {
            victim.bring_back_old_data();
        } else if plan.faults.runs {
            victim.restart();
        }
        let admitted = victim.admitted().await;
        victim.set_up(true);
        while older && !plan.flaws.contains(&Flaw::HidesRuns) && victim.admitted().await == admitted
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The next may fail once this one is whole again; nobody whole is lost meanwhile.
        while lost
            && !plan.flaws.contains(&Flaw::HidesLoss)
            && victim.driver().namespace_counter(&sign).await.unwrap() == 0
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // What was on its way to the one that failed has arrived by then.
        let settled = if lost || older { 3_200 } else { 0 };
        tokio::time::sleep(Duration::from_millis(settled)).await;
    }
}

/// Somebody breaks by force what stands at one member.
pub(crate) async fn break_all(server: &Server) {
    let by = ClientIdentity::new(String::new(), 0, String::new());
    let record = BreakRecord::from_parts(by, 0, None, true);
    let driver = server.driver();
    for standing in driver.inspect(&key()).await.unwrap().queue {
        let (key, force) = (key(), BreakMode::Forced);
        driver.break_claim(&key, standing.token, force, &record).await.unwrap();
    }
}
