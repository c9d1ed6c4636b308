//! The slots of a Redis Cluster: who holds a key, and a slot that moves from one
//! master to another key by key, as a resharding does it. Only for such groups.

use std::time::Instant;

use tokio::time;

use super::error::{LabError, Result};
use super::group::{Group, answered};
use super::raw::resp::{self, RespReply};
use super::server::Server;
use super::servers::redis_cluster;

const PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

impl Group {
    /// The master of a Redis Cluster that holds this key. Waits until there is one
    /// that is awake.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] for other groups; [`LabError::NotReady`] if no member
    /// holds it for a long time.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn holder_of(&self, key: &str) -> Result<&Server> {
        self.is_divided()?;
        let since = Instant::now();
        loop {
            for member in self.members().iter().filter(|member| member.is_awake()) {
                let held = async {
                    let slot = redis_cluster::slot(member.addr(), key).await?;
                    redis_cluster::port_of(member.addr(), slot).await
                };
                let Ok(port) = held.await else { continue };
                let holder = self.members().iter().find(|m| m.addr().port() == port);
                if let Some(holder) = holder.filter(|holder| holder.is_awake()) {
                    return Ok(holder);
                }
            }
            self.give_up(since, "nobody holds the key")?;
            time::sleep(PAUSE).await;
        }
    }

    /// A key with this text in it, if any master has one.
    ///
    /// # Errors
    ///
    /// [`LabError::Unsupported`] for other groups, or if a master does not answer.
    ///
    /// # Cancel safety
    ///
    /// It only asks: it may be dropped at any time.
    pub async fn key_with(&self, part: &str) -> Result<Option<String>> {
        self.is_divided()?;
        for member in self.members().iter().filter(|member| member.is_awake()) {
            let keys = self.keys_of(member).await?;
            if let Some(key) = keys.into_iter().find(|key| key.contains(part)) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// The keys that a member has.
    pub(crate) async fn keys_of(&self, member: &Server) -> Result<Vec<String>> {
        match answered(resp::ask(member.addr(), &["KEYS", "*"]).await)? {
            RespReply::Array(keys) => Ok(keys.iter().map(|key| key.text().to_owned()).collect()),
            other => Err(LabError::Answer(format!("its keys: {other:?}"))),
        }
    }

    /// Whether a member takes itself for a master.
    pub(crate) async fn is_master(&self, member: &Server) -> Result<bool> {
        let role = answered(resp::ask(member.addr(), &["ROLE"]).await)?;
        Ok(matches!(&role, RespReply::Array(parts) if parts[0].text() == "master"))
    }

    /// Begins to move the slot of this key to another master: from now on both know
    /// that it is between them.
    ///
    /// # Errors
    ///
    /// As for [`holder_of`](Self::holder_of).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the slot may be half moved for good.
    pub async fn begin_to_move(&self, key: &str) -> Result<SlotMove<'_>> {
        let from = self.holder_of(key).await?;
        let mut masters = Vec::new();
        for member in self.members() {
            if self.is_master(member).await? {
                masters.push(member);
            }
        }
        let to = masters.iter().find(|master| master.addr() != from.addr());
        let to = to.ok_or_else(|| LabError::Answer("there is one master only".into()))?;
        let slot = answered(redis_cluster::slot(from.addr(), key).await)?.to_string();
        let giver = answered(redis_cluster::id(from.addr()).await)?;
        let taker = answered(redis_cluster::id(to.addr()).await)?;
        let import = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &giver];
        answered(resp::ask(to.addr(), &import).await)?;
        let export = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &taker];
        answered(resp::ask(from.addr(), &export).await)?;
        Ok(SlotMove { group: self, from, to, taker, slot })
    }

    fn is_divided(&self) -> Result<()> {
        match self.layout().divides_its_keys() {
            true => Ok(()),
            false => Err(LabError::Unsupported {
                server: format!("{:?}", self.layout()),
                cannot: "does not divide its keys".into(),
            }),
        }
    }
}

/// A slot that is between two masters.
#[derive(Debug)]
pub struct SlotMove<'a> {
    group: &'a Group,
    from: &'a Server,
    to: &'a Server,
    taker: String,
    slot: String,
}

impl SlotMove<'_> {
    /// Moves one key; false when there was none left.
    ///
    /// # Errors
    ///
    /// If a master refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the key is at one of them.
    pub async fn one_key(&self) -> Result<bool> {
        let ask = ["CLUSTER", "GETKEYSINSLOT", &self.slot, "1"];
        let RespReply::Array(keys) = answered(resp::ask(self.from.addr(), &ask).await)? else {
            return Ok(false);
        };
        let Some(key) = keys.first() else { return Ok(false) };
        let (ip, port) = (self.to.addr().ip().to_string(), self.to.addr().port().to_string());
        let migrate = ["MIGRATE", &ip, &port, key.text(), "0", "30000"];
        answered(resp::ask(self.from.addr(), &migrate).await)?;
        Ok(true)
    }

    /// Moves what is left, and tells all masters where the slot is now.
    ///
    /// # Errors
    ///
    /// If a master refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the slot may be half moved for good.
    pub async fn finish(self) -> Result<()> {
        while self.one_key().await? {}
        let set = ["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.taker];
        answered(resp::ask(self.to.addr(), &set).await)?;
        answered(resp::ask(self.from.addr(), &set).await)?;
        self.group.complete().await
    }
}
