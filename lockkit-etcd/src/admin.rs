//! What concerns the backend as a whole: the base of tokens, and how etcd is.

use etcd_client::{AlarmAction, AlarmType, GetOptions, Txn, TxnOp};
use lockkit_core::state::{Finding, Health, Severity};
use lockkit_core::{Error, Namespace};

use crate::calls::{BACKEND, Failure, ranges};
use crate::locks::Locks;
use crate::requests::written;
use crate::version::old_leaders_are_harmless;

const ATTEMPTS: usize = 64;

impl Locks {
    pub(crate) async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        Ok(self.base(namespace).await?.0)
    }

    /// The base, and the revision of its key.
    async fn base(&self, namespace: &Namespace) -> Result<(u64, i64), Failure> {
        let get = TxnOp::get(self.root.base(namespace), None::<GetOptions>);
        let answer = self.calls.txn(Txn::new().and_then([get])).await?.answer;
        let range = ranges(&answer).pop();
        let Some(kv) = range.as_ref().and_then(|range| range.kvs().first()) else {
            return Ok((0, 0));
        };
        let base = kv.value_str().ok().and_then(|text| text.parse().ok());
        let odd = || Error::permanent(BACKEND, "the token base at etcd is not a number");
        Ok((base.ok_or_else(odd).map_err(Failure::Other)?, kv.mod_revision()))
    }

    pub(crate) async fn raise_token_base(
        &self,
        namespace: &Namespace,
        base: u64,
    ) -> Result<(), Error> {
        let key = self.root.base(namespace);
        for _ in 0..ATTEMPTS {
            let (now, modified) = self.base(namespace).await?;
            if now >= base {
                return Ok(());
            }
            let txn = Txn::new().when([written(&key, modified)]).and_then([TxnOp::put(
                key.clone(),
                base.to_string(),
                None,
            )]);
            if self.calls.txn(txn).await?.answer.succeeded() {
                return Ok(());
            }
        }
        Err(Error::retryable(BACKEND, "others keep raising the token base"))
    }

    /// The version of the member in use.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let status = self.calls.call(|mut client| async move { client.status().await });
        Ok(status.await?.answer.version().to_owned())
    }

    pub(crate) async fn health(&self) -> Result<Health, Error> {
        let status = self.calls.call(|mut client| async move { client.status().await });
        let status = status.await?.answer;
        let mut health = Health::well(format!("etcd {}", status.version()));
        if status.leader() == 0 {
            health = health.with(Finding {
                severity: Severity::Problem,
                what: "This member sees no leader.".to_owned(),
                advice: "See that most members run and reach each other.".to_owned(),
            });
        }
        if !old_leaders_are_harmless(status.version()) {
            health = health.with(Finding {
                severity: Severity::Warning,
                what: "A leader of this version that was frozen may, on waking, end leases that \
                       live at its successor: locks are lost early, and only tokens protect then."
                    .to_owned(),
                advice: "Use etcd 3.4.31, 3.5.13 or later.".to_owned(),
            });
        }
        for alarm in self.alarms().await {
            health = health.with(alarm);
        }
        // Who may not list the members is told nothing of their number.
        let members = self.calls.call(|mut client| async move { client.member_list().await });
        if let Ok(members) = members.await
            && members.answer.members().len() == 1
        {
            health = health.with(Finding {
                severity: Severity::Note,
                what: "The cluster has one member: while that is down nobody gets a lock."
                    .to_owned(),
                advice: "Run three members where locks must survive the loss of one.".to_owned(),
            });
        }
        Ok(health)
    }

    async fn alarms(&self) -> Vec<Finding> {
        let asked = self.calls.call(|mut client| async move {
            client.alarm(AlarmAction::Get, AlarmType::None, None).await
        });
        let Ok(alarms) = asked.await else {
            return Vec::new();
        };
        let finding = |what: &str, advice: &str| Finding {
            severity: Severity::Problem,
            what: what.to_owned(),
            advice: advice.to_owned(),
        };
        let of = |alarm: &etcd_client::AlarmMember| match alarm.alarm() {
            AlarmType::Nospace => finding(
                "etcd is out of space: it takes no writes, and no locks.",
                "Compact and defragment it, then disarm the alarm.",
            ),
            _ => finding(
                "etcd has raised an alarm about corrupt data.",
                "Replace the member that is named by `etcdctl alarm list`.",
            ),
        };
        alarms.answer.alarms().iter().map(of).collect()
    }
}
