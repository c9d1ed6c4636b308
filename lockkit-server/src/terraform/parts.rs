//! The parts of a version: its bytes, compressed, in registers without a token.
//!
//! A register that was ever written with a token remembers the highest one for good. Parts have names
//! that are used once, so they would grow for ever; the head, which is fenced, says which of them
//! count.

use std::io::{Read, Write as _};

use axum::body::Bytes;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use futures_util::{StreamExt, TryStreamExt, stream};
use lockkit_core::Name;
use lockkit_core::driver::{ClaimId, Precondition, RegisterKey, Write, WriteResult};
use lockkit_http::wire::Code;
use sha2::{Digest, Sha256};

use super::head::StateVersion;
use super::{Result, Target};
use crate::response::ErrorResponse;
use crate::service::Service;

/// The bytes of a part. A register has 65,536; a proxy or a backend's frame may add to it.
const PART: usize = 60_000;

/// How many parts of one version are on their way to the backend.
const AT_ONCE: usize = 8;

/// A version whose parts are not stored yet.
pub(super) struct Packed {
    pub(super) version: StateVersion,
    /// Compressed.
    pub(super) bytes: Bytes,
}

/// Compresses a state under a fresh write id.
pub(super) async fn pack(state: Bytes) -> Result<Packed> {
    blocking(move || {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        // A vector takes everything.
        let _ = encoder.write_all(&state);
        let bytes = Bytes::from(encoder.finish().unwrap_or_default());
        let version = StateVersion {
            write: ClaimId::random().to_hex(),
            parts: bytes.len().div_ceil(PART),
            length: state.len(),
            sha256: hex(&Sha256::digest(&state)),
        };
        Packed { version, bytes }
    })
    .await
}

/// The state of these parts; `None` where it is not that of the version.
async fn unpack(version: StateVersion, bytes: Vec<u8>) -> Result<Option<Vec<u8>>> {
    blocking(move || {
        let mut state = Vec::with_capacity(version.length);
        // One byte more than there may be.
        let most = u64::try_from(version.length).unwrap_or(u64::MAX).saturating_add(1);
        ZlibDecoder::new(&*bytes).take(most).read_to_end(&mut state).ok()?;
        let same = state.len() == version.length && hex(&Sha256::digest(&state)) == version.sha256;
        same.then_some(state)
    })
    .await
}

/// Work that takes a processor for long.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let failed = |_| ErrorResponse::new(Code::Unavailable, "the service is stopping: ask again");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a name ends as the names of parts do: `/`, the id of a write, `/`, four digits.
pub(super) fn is_name_of_part(name: &str) -> bool {
    let mut ends = name.rsplitn(3, '/');
    let number = ends.next().unwrap_or_default();
    let write = ends.next().unwrap_or_default();
    ends.next().is_some()
        && number.len() >= 4
        && number.bytes().all(|b| b.is_ascii_digit())
        && ClaimId::from_hex(write).is_some()
}

impl Target {
    fn part(&self, write: &str, number: usize) -> Result<RegisterKey> {
        let name = Name::new(format!("{}/{write}/{number:04}", self.full_name))?;
        Ok(RegisterKey { namespace: self.namespace.clone(), name })
    }

    /// Stores all parts.
    pub(super) async fn store_parts(&self, packed: &Packed) -> Result<()> {
        let mut stores = Vec::with_capacity(packed.version.parts);
        for number in 0..packed.version.parts {
            let at = self.part(&packed.version.write, number)?;
            let end = packed.bytes.len().min((number + 1) * PART);
            stores.push(store(self.service.clone(), at, packed.bytes.slice(number * PART..end)));
        }
        stream::iter(stores).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The state of a version; `None` where a part is missing or has other bytes.
    pub(super) async fn load_parts(&self, version: &StateVersion) -> Result<Option<Vec<u8>>> {
        let mut loads = Vec::with_capacity(version.parts);
        for number in 0..version.parts {
            loads.push(load(self.service.clone(), self.part(&version.write, number)?));
        }
        let mut loads = stream::iter(loads).buffered(AT_ONCE);
        let mut bytes = Vec::new();
        while let Some(part) = loads.next().await {
            let Some(part) = part? else { return Ok(None) };
            bytes.extend(part);
        }
        unpack(version.clone(), bytes).await
    }

    /// Deletes the parts of a version, those that are there.
    pub(super) async fn delete_parts(&self, version: &StateVersion) -> Result<()> {
        let mut deletes = Vec::with_capacity(version.parts);
        for number in 0..version.parts {
            deletes.push(delete(self.service.clone(), self.part(&version.write, number)?));
        }
        stream::iter(deletes).buffer_unordered(AT_ONCE).try_collect().await
    }
}

async fn store(service: Service, at: RegisterKey, value: Bytes) -> Result<()> {
    let registers = service.registers()?;
    let write = Write { expect: Precondition::Absent, ..Write::of(Some(value.to_vec())) };
    match registers.write(&at, &write).await?.result {
        WriteResult::Stored(_) => Ok(()),
        // An earlier attempt of this write, whose answer was lost, may have stored it.
        _ if registers.load(&at).await?.is_some_and(|entry| entry.value == value) => Ok(()),
        _ => Err(ErrorResponse::new(Code::Unavailable, "a part was not stored: ask again")),
    }
}

async fn load(service: Service, at: RegisterKey) -> Result<Option<Vec<u8>>> {
    Ok(service.registers()?.load(&at).await?.map(|entry| entry.value))
}

async fn delete(service: Service, at: RegisterKey) -> Result<()> {
    service.registers()?.write(&at, &Write::of(None)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_known_by_their_ends() {
        let write = "0".repeat(32);
        assert!(is_name_of_part(&format!("a/{write}/0000")));
        assert!(is_name_of_part(&format!("a/b/{write}/12345")));
        for other in [format!("a/{write}"), format!("a/{write}/000"), format!("{write}/0000")] {
            assert!(!is_name_of_part(&other), "{other}");
        }
        assert!(!is_name_of_part(&format!("a/{write}/000x")) && !is_name_of_part("a/b/0000"));
    }
}
