//! The registers of the memory driver: the verbs of their trait, and the waiting for a change.

use async_trait::async_trait;

use super::MemoryDriver;
use crate::Error;
use crate::driver::{
    Attempted, Entry, MAX_REGISTER_BYTES, RegisterKey, Registers, Version, Write, WriteResult,
};
use crate::state::{Listed, RegisterRequest, RegisterState};

#[async_trait]
impl Registers for MemoryDriver {
    async fn load(&self, at: &RegisterKey) -> Result<Option<Entry>, Error> {
        self.shared.shelf.apply(|shelf, now, _| shelf.load(at, now))
    }

    async fn write(
        &self,
        at: &RegisterKey,
        write: &Write,
    ) -> Result<Attempted<WriteResult>, Error> {
        if write.value.as_ref().is_some_and(|value| value.len() > MAX_REGISTER_BYTES) {
            let message = format!("a register holds at most {MAX_REGISTER_BYTES} bytes");
            return Err(Error::config(message));
        }
        self.shared.shelf.apply(|shelf, now, calls| shelf.write(at, write, now, calls).into())
    }

    async fn changed(
        &self,
        at: &RegisterKey,
        after: Option<Version>,
    ) -> Result<Option<Entry>, Error> {
        let watching = self.shared.shelf.watchers.watch(at.clone());
        loop {
            let (seen, end) = self.shared.shelf.apply(|shelf, now, _| {
                let (differs, end) = shelf.look(at, after, now);
                (differs.then(|| shelf.load(at, now)), end)
            })?;
            if let Some(entry) = seen {
                return Ok(entry);
            }
            self.shared.shelf.wait(&watching.bell, end).await;
        }
    }

    async fn page(&self, request: &RegisterRequest) -> Result<Listed<RegisterState>, Error> {
        self.shared.shelf.apply(|shelf, now, _| shelf.list(request, now))
    }
}
