//! Registers: a document each, under the hash of its name, with namespace and name in full inside.
//!
//! A stub stays when a value is deleted, so that versions and tokens only grow. A TTL counts on wall clocks:
//! the document holds the TTL and its writer's wall clock, and readers end it by theirs. A value that is dated
//! in the future of the next writer counts from that moment.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lockkit_core::driver::{
    Attempted, FoundRegister, RegisterEntry, RegisterKey, Registers, Version, Write, WriteId,
    WriteResult,
};
use lockkit_core::state::{ListPage, RegisterRequest, RegisterState};
use lockkit_core::{Error, Name, Result, Token};

use crate::context::LONGEST_ATTEMPT;
use crate::document::{RegisterDocument, encode, micros, register_key, registers_of, write_text};
use crate::driver::{DriverInner, StoreDriver};
use crate::store::{DocumentVersion, StoreError, Swap};

/// A value that is dated further in the future than this is dated back by its reader.
const FUTURE: Duration = Duration::from_secs(10);
/// Keys that are listed in one request.
const LISTED_AT_ONCE: usize = 100;

/// A register as it was read.
struct StoredRegister {
    document: RegisterDocument,
    version: DocumentVersion,
    value: Option<Vec<u8>>,
}

#[async_trait]
impl Registers for StoreDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<RegisterEntry>> {
        let found = self.inner.register(&register_key(at)).await?;
        Ok(found.and_then(StoredRegister::entry))
    }

    async fn write(&self, at: &RegisterKey, write: &Write) -> Result<Attempted<WriteResult>> {
        let written = self.inner.write_register(at, write).await?;
        if matches!(written.result, WriteResult::Stored(_)) {
            self.inner.register_watchers.notify(Some(&register_key(at)));
        }
        Ok(written)
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<RegisterEntry>> {
        let pace = self.inner.waiters.pace(self.inner.context.facts.pace);
        let load = async || Ok((self.load(at).await?, pace));
        self.inner.register_watchers.changed(&register_key(at), after, load).await
    }

    async fn page(&self, request: &RegisterRequest) -> Result<ListPage<RegisterState>> {
        self.inner.page_of_registers(request).await
    }
}

impl StoredRegister {
    fn entry(self) -> Option<RegisterEntry> {
        let version = Version(self.document.version);
        let token = self.document.token.and_then(Token::new);
        Some(RegisterEntry::new(self.value?, version, token))
    }
}

impl DriverInner {
    /// A register as it is now: without its value where that has ended.
    async fn register(&self, key: &str) -> Result<Option<StoredRegister>> {
        let found = self.context.load::<RegisterDocument>(key, "a register").await?;
        let Some((mut document, version)) = found else { return Ok(None) };
        let now = self.context.wall_us();
        if document.ttl_us.is_some() && document.written_us > now + micros(FUTURE) {
            document.written_us = now;
            // Whatever comes of it, the next reader does the same.
            let dated_back = RegisterDocument { write: self.context.id(), ..document.clone() };
            self.context.is_swapped(key, &dated_back, Some(&version)).await;
        }
        let ends = document.ttl_us.map(|ttl| document.written_us.saturating_add(ttl));
        let lives = ends.is_none_or(|ends| now < ends);
        let backend = self.context.backend();
        let damaged = |_| Error::permanent(backend, "the value of a register is not Base64");
        let value = document.value.as_ref().filter(|_| lives);
        let value = value.map(|value| BASE64.decode(value).map_err(damaged)).transpose()?;
        Ok(Some(StoredRegister { document, version, value }))
    }

    async fn write_register(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>> {
        let (key, begun) = (register_key(at), self.context.now());
        let mut write = write.clone();
        let mut ambiguous = 0;
        loop {
            let found = self.register(&key).await?;
            if let Some(result) = WriteResult::decide(&found_at(found.as_ref()), &write) {
                return Ok(Attempted::after(ambiguous, result));
            }
            let document = self.next(at, found.as_ref(), &write);
            let version = found.map(|found| found.version);
            let bytes = encode(&document);
            let failure = match self.context.swap(&key, &bytes, version.as_ref()).await {
                Ok(Swap::Stored(_)) => {
                    let stored = WriteResult::Stored(Version(document.version));
                    return Ok(Attempted::after(ambiguous, stored));
                }
                Ok(Swap::Conflict(_)) => {
                    self.context.unavailable("other clients keep writing this register")
                }
                Err(error) => {
                    let is_ambiguous = matches!(error, StoreError::Unavailable(_));
                    ambiguous += u32::from(is_ambiguous);
                    write.repeated |= is_ambiguous;
                    self.context.failed_after_pause(error).await
                }
            };
            if !failure.is_retryable() || self.context.now().since(begun) > LONGEST_ATTEMPT {
                return Err(failure);
            }
            tokio::time::sleep(self.context.part_of(Duration::from_millis(50))).await;
        }
    }

    fn next(
        &self,
        at: &RegisterKey,
        found: Option<&StoredRegister>,
        write: &Write,
    ) -> RegisterDocument {
        let before = found.map(|found| &found.document);
        let now = self.context.wall_us();
        let token = write.token.map(Token::get).or(before.and_then(|before| before.token));
        RegisterDocument {
            write: self.context.id(),
            namespace: at.namespace.as_str().to_owned(),
            name: at.name.as_str().to_owned(),
            value: write.value.as_ref().map(|value| BASE64.encode(value)),
            // By the clock as well, so that versions grow also after data loss.
            version: before.map_or(0, |before| before.version).saturating_add(1).max(now),
            token,
            last_write: write_text(&write.write_id),
            ttl_us: write.ttl.map(micros),
            written_us: now,
        }
    }

    /// Reads every register of the namespace behind the last one, one request each.
    async fn page_of_registers(
        &self,
        request: &RegisterRequest,
    ) -> Result<ListPage<RegisterState>> {
        let family = registers_of(&request.namespace);
        let key = |name: &Name| {
            let (namespace, name) = (request.namespace.clone(), name.clone());
            register_key(&RegisterKey { namespace, name })
        };
        let mut after = request.after.as_ref().map(key);
        let mut items = Vec::new();
        loop {
            let keys = self.context.list(&family, after.as_deref(), LISTED_AT_ONCE).await?;
            for key in &keys {
                let state = self.register(key).await?.and_then(state);
                items.extend(state.filter(|it| it.name.as_str().starts_with(&request.prefix)));
                if items.len() > request.limit.max(1) {
                    return Ok(ListPage::first(request.limit.max(1), items));
                }
            }
            match keys.into_iter().next_back() {
                Some(last) => after = Some(last),
                None => return Ok(ListPage::first(request.limit.max(1), items)),
            }
        }
    }
}

fn state(found: StoredRegister) -> Option<RegisterState> {
    Some(RegisterState::new(
        Name::new(&found.document.name).ok()?,
        Version(found.document.version),
        found.document.token.and_then(Token::new),
        found.value?.len(),
    ))
}

fn found_at(register: Option<&StoredRegister>) -> FoundRegister {
    let document = register.map(|found| &found.document);
    FoundRegister {
        version: document.map(|document| Version(document.version)),
        present: register.is_some_and(|found| found.value.is_some()),
        token: document.and_then(|document| document.token).and_then(Token::new),
        last_write: document.and_then(|document| write_id(&document.last_write)),
    }
}

fn write_id(text: &str) -> Option<WriteId> {
    lockkit_core::driver::ClaimId::from_hex(text).map(|id| WriteId(*id.as_bytes()))
}
