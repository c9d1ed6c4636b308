//! The backend behind the service: how it is, and what it does.

use std::sync::Mutex;
use std::time::Duration;

use lockkit_core::capabilities::{
    self, BatchLimits, Fault, Guarantee, LeaseClock, LeaseScope, TokenSource, WakeUp,
};
use lockkit_core::driver::locked;
use lockkit_core::state::{self, Severity};
use serde::{Deserialize, Serialize};

use super::ms_down;

/// `GET /v1/health`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Health;
///
/// let it: Health = serde_json::from_str(r#"{"server": "SQLite 3.50", "findings": []}"#)?;
/// assert!(it.findings.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The backend and its version.
    pub server: String,
    /// What an operator should know, worst first.
    pub findings: Vec<Finding>,
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `note`, `warning` or `problem`.
    pub severity: SeverityName,
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeverityName {
    /// Good to know.
    Note,
    /// A promise may break under a fault that is to be expected.
    Warning,
    /// Locks do not work, or do not hold.
    Problem,
}

impl Health {
    /// What is answered.
    pub fn of(health: state::Health) -> Self {
        let findings = health.findings.into_iter().map(|it| Finding {
            severity: match it.severity {
                Severity::Note => SeverityName::Note,
                Severity::Warning => SeverityName::Warning,
                Severity::Problem => SeverityName::Problem,
            },
            what: it.what,
            advice: it.advice,
        });
        Self { server: health.server, findings: findings.collect() }
    }

    /// For a driver.
    pub fn for_driver(self) -> state::Health {
        self.findings.into_iter().fold(state::Health::well(self.server), |health, it| {
            health.with(state::Finding::new(
                match it.severity {
                    SeverityName::Note => Severity::Note,
                    SeverityName::Warning => Severity::Warning,
                    SeverityName::Problem => Severity::Problem,
                },
                it.what,
                it.advice,
            ))
        })
    }
}

/// `GET /v1/promises`: what the servers of the backend keep under each fault, as they are set up now.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_core::capabilities::{Fault, Guarantee};
/// use lockkit_http::wire::Promises;
///
/// let it: Promises = serde_json::from_str(
///     r#"{"promises": [{"fault": "writes_lost", "guarantee": "tokens", "why": "appendfsync everysec"},
///                      {"fault": "server_restarts", "guarantee": null, "why": "may not be read"}]}"#,
/// )?;
/// assert_eq!(it.promises.guarantee(Fault::WritesLost), Some(Guarantee::Tokens));
/// assert_eq!(it.promises.guarantee(Fault::ServerRestarts), None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promises {
    /// One a fault.
    pub promises: lockkit_core::promises::Promises,
}

/// `GET /v1/capabilities`: what the backend behind the service does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `lockkit_core::Capabilities`.
pub struct Capabilities {
    pub backend: String,
    pub lease_clock: LeaseClock,
    pub lease_scope: LeaseScope,
    pub granularity_ms: u64,
    pub min_ttl_ms: u64,
    pub max_ttl_ms: u64,
    pub expiry_slack_ms: u64,
    pub wake_up: WakeUp,
    pub fifo: bool,
    pub token_source: TokenSource,
    pub permits: bool,
    #[serde(default = "yes")]
    pub slots: bool,
    pub resize: bool,
    pub shorten: bool,
    pub shared_between_processes: bool,
    pub registers: bool,
    #[serde(default)]
    pub namespaces: bool,
    pub steps: usize,
    pub same_key: bool,
    pub faults: Vec<(Fault, Guarantee)>,
}

impl Capabilities {
    /// What is answered.
    pub fn of(capabilities: &capabilities::Capabilities) -> Self {
        let c = capabilities;
        Self {
            backend: c.backend.to_owned(),
            lease_clock: c.lease_clock,
            lease_scope: c.lease_scope,
            granularity_ms: ms_down(c.granularity),
            min_ttl_ms: ms_down(c.min_ttl),
            max_ttl_ms: ms_down(c.max_ttl),
            expiry_slack_ms: ms_down(c.expiry_slack),
            wake_up: c.wake_up,
            fifo: c.fifo,
            token_source: c.token_source,
            permits: c.permits,
            slots: c.slots,
            resize: c.resize,
            shorten: c.shorten,
            shared_between_processes: c.shared_between_processes,
            registers: c.registers,
            namespaces: c.namespaces,
            steps: c.batches.operations,
            same_key: c.batches.same_key,
            faults: Fault::ALL.iter().map(|fault| (*fault, c.guarantee(*fault))).collect(),
        }
    }

    /// What a driver over the service does.
    pub(crate) fn for_driver(&self) -> capabilities::Capabilities {
        let mut c = capabilities::Capabilities::of(crate::BACKEND);
        c.lease_clock = match self.lease_clock {
            // The machine is the service's: this client reads another clock.
            LeaseClock::Machine => LeaseClock::Leader,
            clock => clock,
        };
        // Where claims of a backend share leases, a claim whose turn came gets its longer lease by the
        // next request of its client, here too.
        c.lease_scope = self.lease_scope;
        c.granularity = Duration::from_millis(self.granularity_ms);
        c.min_ttl = Duration::from_millis(self.min_ttl_ms);
        c.max_ttl = Duration::from_millis(self.max_ttl_ms);
        c.expiry_slack = Duration::from_millis(self.expiry_slack_ms);
        c.wake_up = self.wake_up;
        c.fifo = self.fifo;
        c.token_source = self.token_source;
        c.permits = self.permits;
        c.slots = self.slots;
        c.resize = self.resize;
        c.shorten = self.shorten;
        c.detached = true;
        c.shared_between_processes = true;
        c.registers = self.registers;
        c.namespaces = self.namespaces;
        c.batches = BatchLimits::of(self.steps.max(1), 8);
        c.batches.same_key = self.same_key;
        let mut faults = self.faults.clone();
        if self.lease_clock == LeaseClock::Machine {
            let clocks = [Fault::ClientMachinePaused, Fault::ServerClockSlewedMore];
            faults.retain(|(fault, _)| !clocks.contains(fault));
            faults.extend(clocks.map(|fault| (fault, Guarantee::Tokens)));
        }
        c.faults = kept(&faults);
        c
    }
}

/// What a service says that knows no such word.
fn yes() -> bool {
    true
}

type Table = [(Fault, Guarantee)];

static TABLES: Mutex<Vec<&'static Table>> = Mutex::new(Vec::new());

/// The `'static` table with this content, as [`Capabilities`](capabilities::Capabilities) hold it. There
/// are as many tables as backends, so each is kept once, for good.
fn kept(table: &Table) -> &'static Table {
    let mut tables = locked(&TABLES);
    if let Some(known) = tables.iter().find(|known| **known == table) {
        return known;
    }
    let new: &'static Table = table.to_vec().leak();
    tables.push(new);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through it, nothing tells whether the backend has its data.
    #[test]
    fn a_lock_service_is_no_member_of_a_quorum() {
        let mut redis = capabilities::Capabilities::of("redis");
        redis.raise = true;
        assert!(!Capabilities::of(&redis).for_driver().raise);
    }

    #[test]
    fn a_client_of_a_service_does_not_read_the_clock_of_the_services_machine() {
        let mut file = capabilities::Capabilities::of("sqlite");
        file.lease_clock = LeaseClock::Machine;
        let remote = Capabilities::of(&file).for_driver();
        assert_eq!(remote.lease_clock, LeaseClock::Leader);
        assert_eq!(file.guarantee(Fault::ClientMachinePaused), Guarantee::All);
        assert_eq!(remote.guarantee(Fault::ClientMachinePaused), Guarantee::Tokens);
        assert_eq!(remote.guarantee(Fault::ServerClockSlewed), Guarantee::All);
        assert_eq!(remote.guarantee(Fault::ServerClockSlewedMore), Guarantee::Tokens);
        let server = capabilities::Capabilities::of("redis");
        assert_eq!(Capabilities::of(&server).for_driver().lease_clock, LeaseClock::Server);
    }
}
