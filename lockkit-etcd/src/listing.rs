//! Listing what is not a lock: registers, and the namespaces in use. Changes nothing.

use std::collections::BTreeSet;

use etcd_client::{GetOptions, Txn, TxnOp};
use lockkit_core::driver::Version;
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use lockkit_core::{Error, Name, Namespace, Result, Token};

use crate::client::{BACKEND, ranges};
use crate::keys::{after, end_of, folder, namespace_of};
use crate::locks::EtcdLocks;
use crate::value::token_in;

/// Keys of registers that are fetched at once: with their values, since etcd does not tell how long
/// these are otherwise.
const REGISTERS: i64 = 64;
/// Keys that are fetched at once, of each kind, to find namespaces.
const KEYS: i64 = 500;

impl EtcdLocks {
    pub(crate) async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>> {
        let limit = request.limit.max(1);
        let all = self.root.registers(&request.namespace, &request.prefix);
        let mut from = match &request.after {
            Some(after) => {
                let last = self.root.registers(&request.namespace, after.as_str());
                end_of(&[last, b"/".to_vec()].concat())
            }
            None => all.clone(),
        };
        let mut items = Vec::new();
        // The key of what is remembered of a register is right before that of its value.
        let mut remembered: Option<(Name, Option<Token>)> = None;
        loop {
            let range = GetOptions::new().with_range(end_of(&all)).with_limit(REGISTERS);
            let shown = self.range(&from, range).await?;
            for kv in shown.kvs() {
                let Some((name, is_value)) = self.root.register_of(&request.namespace, kv.key())
                else {
                    continue;
                };
                if !is_value {
                    remembered = Some((name, token_in(kv.value())));
                    continue;
                }
                if items.len() == limit {
                    return Ok(ListPage { items, more: true });
                }
                let token = remembered.take().filter(|(of, _)| *of == name).and_then(|it| it.1);
                let version = Version(u64::try_from(kv.mod_revision()).unwrap_or(0));
                let bytes = kv.value().len();
                items.push(RegisterState::new(name, version, token, bytes));
            }
            match shown.kvs().last() {
                Some(last) if shown.more() => from = after(last.key()),
                _ => return Ok(ListPage { items, more: false }),
            }
        }
    }

    /// The namespaces of claims and registers, in the order of their keys.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<ListPage<Namespace>> {
        let mut from = after.map_or_else(Vec::new, |after| end_of(&folder(after)));
        let mut found = Vec::new();
        loop {
            let (some, next) = self.folders(&from).await.map_err(|error| self.needs_all(error))?;
            found.extend(some.iter().filter_map(|folder| namespace_of(folder)));
            match next {
                Some(next) if found.len() <= limit => from = next,
                _ => return Ok(ListPage::first(limit, found)),
            }
        }
    }

    /// Some of the namespaces from here on, as they are written in keys, with the slash after them:
    /// it counts in their order. And where to go on, if these were not all.
    async fn folders(&self, from: &[u8]) -> Result<(BTreeSet<Vec<u8>>, Option<Vec<u8>>)> {
        let kinds = self.root.kinds();
        let get = |kind: &Vec<u8>| {
            let range = GetOptions::new().with_range(end_of(kind)).with_limit(KEYS);
            TxnOp::get([kind, from].concat(), Some(range.with_keys_only()))
        };
        let txn = Txn::new().and_then(kinds.iter().map(get).collect::<Vec<_>>());
        let answer = self.client.txn(txn).await?.answer;
        let mut all = BTreeSet::new();
        let mut next: Option<Vec<u8>> = None;
        for (kind, shown) in kinds.iter().zip(ranges(&answer)) {
            if let (true, Some(last)) = (shown.more(), shown.kvs().last()) {
                let rest = last.key().strip_prefix(&**kind).unwrap_or_default();
                let unseen = folder_of(rest).map_or_else(|| after(rest), end_of);
                next = Some(next.map_or(unseen.clone(), |next| next.min(unseen)));
            }
            let rests = shown.kvs().iter().filter_map(|kv| kv.key().strip_prefix(&**kind));
            all.extend(rests.filter_map(folder_of).map(<[u8]>::to_vec));
        }
        // Behind the last one of a range that was cut, others may be missing.
        if let Some(next) = &next {
            all.retain(|folder| folder < next);
        }
        Ok((all, next))
    }

    /// The error for a user that may not read all namespaces.
    fn needs_all(&self, error: Error) -> Error {
        match error.to_string().contains("permission denied") {
            true => {
                let root = String::from_utf8_lossy(&self.root.bytes()).into_owned();
                let advice = "to list namespaces, its user needs the right to read all keys under";
                Error::permanent(BACKEND, format!("permission denied: {advice} {root:?}"))
            }
            false => error,
        }
    }
}

/// The text up to the first slash, and the slash.
fn folder_of(rest: &[u8]) -> Option<&[u8]> {
    Some(&rest[..=rest.iter().position(|b| *b == b'/')?])
}
