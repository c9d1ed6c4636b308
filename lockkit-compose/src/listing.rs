//! Reading all pages of a listing: drivers list in orders of their own, so only the whole of several
//! can be put together.

use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};

/// How much is asked for at once.
const PAGE: usize = 1_000;

/// All namespaces of a driver.
pub(crate) async fn all_namespaces(driver: &Arc<dyn LockDriver>) -> Result<Vec<Namespace>, Error> {
    let mut all: Vec<Namespace> = Vec::new();
    loop {
        let page = driver.namespaces(all.last(), PAGE).await?;
        let more = page.more && !page.items.is_empty();
        all.extend(page.items);
        if !more {
            return Ok(all);
        }
    }
}
