//! What concerns the backend as a whole: the base of tokens, and how etcd is.

use etcd_client::{AlarmAction, AlarmType, GetOptions, Txn, TxnOp};
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::{KnownBases, ServerVersion, retry_conflicts};
use lockkit_core::promises::Promises;
use lockkit_core::state::{Finding, Health, Severity};
use lockkit_core::{Error, Namespace, Result};

use crate::capabilities::{KNOWN_DEFECTS, of_version, old_leaders_are_harmless};
use crate::client::{BACKEND, EtcdResult, ranges};
use crate::locks::EtcdLocks;
use crate::requests::written;

impl EtcdLocks {
    pub(crate) async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64> {
        self.bases.saw(BACKEND, namespace, self.base(namespace).await?.0)
    }

    /// The base, and the revision of its key.
    async fn base(&self, namespace: &Namespace) -> EtcdResult<(u64, i64)> {
        let get = TxnOp::get(self.root.base(namespace), None::<GetOptions>);
        let answer = self.client.txn(Txn::new().and_then([get])).await?.answer;
        let range = ranges(&answer).pop();
        let Some(kv) = range.as_ref().and_then(|range| range.kvs().first()) else {
            return Ok((0, 0));
        };
        Ok((KnownBases::parse(BACKEND, kv.value())?, kv.mod_revision()))
    }

    pub(crate) async fn raise_namespace_counter(
        &self,
        namespace: &Namespace,
        base: u64,
    ) -> Result<()> {
        let key = self.root.base(namespace);
        let conflict = "others keep raising the token offset";
        retry_conflicts(BACKEND, conflict, |_| async {
            let (now, modified) = self.base(namespace).await?;
            if now >= base {
                return Ok(Some(()));
            }
            let put = TxnOp::put(key.clone(), base.to_string(), None);
            let txn = Txn::new().when([written(&key, modified)]).and_then([put]);
            Ok(self.client.txn(txn).await?.answer.succeeded().then_some(()))
        })
        .await
    }

    /// The version of the member in use.
    pub(crate) async fn version(&self) -> Result<String> {
        let status = self.client.call(|mut client| async move { client.status().await });
        Ok(status.await?.answer.version().to_owned())
    }

    /// Whether an `etcd grpc-proxy` answers. It lists members by itself: without the header that a
    /// member's answer has. (A login that may not list members is refused alike on both.)
    pub(crate) async fn is_behind_a_proxy(&self) -> bool {
        let members = self.client.call(|mut client| async move { client.member_list().await });
        members.await.is_ok_and(|reply| reply.answer.header().is_none())
    }

    /// Every endpoint's version counts, since any member may lead; whether members force their
    /// writes to disk is not to be seen.
    pub(crate) async fn promises(&self) -> Result<Promises> {
        let why = "a member started with --unsafe-no-fsync answers before a write is on disk, and no \
                   client can read that flag: look at how the members are started";
        let mut worst: Option<Promises> = None;
        for version in self.client.versions().await {
            let mut one = Promises::of(of_version(version.as_deref().unwrap_or("")));
            one.set(Fault::WritesLost, None, why);
            let guarantee = one.guarantee(Fault::LeaderLost);
            match version {
                Some(version) => {
                    one.set(Fault::LeaderLost, guarantee, format!("a member is etcd {version}"))
                }
                None => one.set(
                    Fault::LeaderLost,
                    None,
                    "a member does not answer, so its version is not known",
                ),
            }
            worst = Some(worst.take().map_or(one.clone(), |worst| one.worse(worst)));
        }
        worst.ok_or_else(|| Error::retryable(BACKEND, "no member is known"))
    }

    pub(crate) async fn health(&self) -> Result<Health> {
        let status = self.client.call(|mut client| async move { client.status().await });
        let status = status.await?.answer;
        let mut health = Health::well(format!("etcd {}", status.version()));
        if status.leader() == 0 {
            health = health.with(Finding::new(
                Severity::Problem,
                "This member sees no leader.",
                "See that most members run and reach each other.",
            ));
        }
        if !old_leaders_are_harmless(status.version()) {
            health = health.with(Finding::new(
                Severity::Warning,
                "A leader of this version that was frozen may, on waking, end leases that \
                       live at its successor: locks are lost early, and only tokens protect then.",
                "Use etcd 3.4.31, 3.5.13 or later.",
            ));
        }
        let versions = self.client.versions().await.into_iter().flatten();
        let versions = versions.filter_map(|version| ServerVersion::parse(&version));
        health = KNOWN_DEFECTS.check(health, versions);
        for alarm in self.alarms().await {
            health = health.with(alarm);
        }
        // A login that may not list the members does not learn their number.
        let members = self.client.call(|mut client| async move { client.member_list().await });
        if let Ok(members) = members.await
            && members.answer.members().len() == 1
        {
            health = health.with(Finding::new(
                Severity::Note,
                "The cluster has one member: while that is down nobody gets a lock.",
                "Run three members where locks must survive the loss of one.",
            ));
        }
        Ok(health)
    }

    async fn alarms(&self) -> Vec<Finding> {
        let asked = self.client.call(|mut client| async move {
            client.alarm(AlarmAction::Get, AlarmType::None, None).await
        });
        let Ok(alarms) = asked.await else {
            return Vec::new();
        };
        let finding = |what: &str, advice: &str| Finding::new(Severity::Problem, what, advice);
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
