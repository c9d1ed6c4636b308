//! Listing what is not a lock: registers, and the namespaces in use. Changes nothing.

use std::collections::BTreeSet;

use etcd_client::{GetOptions, GetResponse, Txn, TxnOp};
use lockkit_core::driver::Version;
use lockkit_core::state::{Listed, RegisterRequest, RegisterState};
use lockkit_core::{Error, Name, Namespace, Token};

use crate::calls::{BACKEND, ranges};
use crate::inner::{Inner, odd};
use crate::keys::{end_of, folder, namespace_of};
use crate::registers::token_in;

/// Keys of registers that are fetched at once: with their values, since etcd does not tell how long
/// these are otherwise.
const REGISTERS: i64 = 64;
/// Keys that are fetched at once, of each kind, to find namespaces.
const KEYS: i64 = 500;

impl Inner {
    pub(crate) async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<Listed<RegisterState>, Error> {
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
        // What is remembered of a register stands right before its value.
        let mut remembered: Option<(Name, Option<Token>)> = None;
        loop {
            let range = GetOptions::new().with_range(end_of(&all)).with_limit(REGISTERS);
            let answer = self.calls.txn(Txn::new().and_then([TxnOp::get(&*from, Some(range))]));
            let shown = ranges(&answer.await?.answer).pop().ok_or_else(odd)?;
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
                    return Ok(Listed { items, more: true });
                }
                let token = remembered.take().filter(|(of, _)| *of == name).and_then(|it| it.1);
                let version = Version(u64::try_from(kv.mod_revision()).unwrap_or(0));
                items.push(RegisterState { name, version, token, bytes: kv.value().len() });
            }
            match shown.kvs().last() {
                Some(last) if shown.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok(Listed { items, more: false }),
            }
        }
    }

    /// The namespaces of claims and registers, in the order of their keys.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Listed<Namespace>, Error> {
        let mut from = after.map_or_else(Vec::new, |after| end_of(&folder(after)));
        let mut found = Vec::new();
        loop {
            let (some, end) = self.folders(&from).await.map_err(|error| self.needs_all(error))?;
            found.extend(some.iter().filter_map(|folder| namespace_of(folder)));
            match end {
                Some(last) if found.len() <= limit => from = end_of(&last),
                _ => return Ok(Listed::first(limit, found)),
            }
        }
    }

    /// Some of the namespaces from here on, as they stand in keys, with the slash that is behind them:
    /// it counts in their order. And the last of them; no last one when these were all.
    async fn folders(&self, from: &[u8]) -> Result<(BTreeSet<Vec<u8>>, Option<Vec<u8>>), Error> {
        let kinds = self.root.kinds();
        let get = |kind: &Vec<u8>| {
            let range = GetOptions::new().with_range(end_of(kind)).with_limit(KEYS);
            TxnOp::get([kind, from].concat(), Some(range.with_keys_only()))
        };
        let txn = Txn::new().and_then(kinds.iter().map(get).collect::<Vec<_>>());
        let answer = self.calls.txn(txn).await?.answer;
        let mut all = BTreeSet::new();
        let mut end: Option<Vec<u8>> = None;
        for (kind, shown) in kinds.iter().zip(ranges(&answer)) {
            let folders = folders(kind, &shown);
            // Behind the last one of a range that was cut, others may be missing.
            if let (true, Some(last)) = (shown.more(), folders.last()) {
                end = Some(end.map_or(last.clone(), |end| end.min(last.clone())));
            }
            all.extend(folders);
        }
        if let Some(end) = &end {
            all.retain(|folder| folder <= end);
        }
        Ok((all, end))
    }

    /// The error for a user that may not read all namespaces.
    fn needs_all(&self, error: Error) -> Error {
        match error.to_string().contains("permission denied") {
            true => {
                let root = String::from_utf8_lossy(&self.root.bytes()).into_owned();
                let advice = "to list prefixes, its user needs the right to read all keys under";
                Error::permanent(BACKEND, format!("permission denied: {advice} {root:?}"))
            }
            false => error,
        }
    }
}

fn folders(kind: &[u8], shown: &GetResponse) -> BTreeSet<Vec<u8>> {
    let folder = |key: &[u8]| {
        let rest = key.strip_prefix(kind)?;
        let slash = rest.iter().position(|b| *b == b'/')?;
        Some(rest[..=slash].to_vec())
    };
    shown.kvs().iter().filter_map(|kv| folder(kv.key())).collect()
}
