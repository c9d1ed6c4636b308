//! What a case of the suite leaves behind in a store.

use lockkit_core::{Error, Namespace};
use lockkit_store::{ReadOutcome, Store};

/// Claims in queues, and values that stay.
pub(crate) async fn leftovers(
    store: &dyn Store,
    namespace: &Namespace,
) -> Result<Option<u64>, Error> {
    let lost = |why| Error::permanent("store", why);
    let named = format!("{:?}", namespace.as_str());
    let mut count = 0;
    for prefix in ["l/", "r/"] {
        for key in store.list(prefix, None, usize::MAX).await.map_err(lost)? {
            let ReadOutcome::Document(document) = store.get(&key, None).await.map_err(lost)? else {
                continue;
            };
            let document = String::from_utf8_lossy(&document.bytes).into_owned();
            if prefix == "r/" && document.contains(&format!("\"namespace\":{named}")) {
                let stays = document.contains("\"ttl_us\":null");
                count += u64::from(stays && !document.contains("\"value\":null"));
            }
            if prefix == "l/" {
                // Each queue begins with its namespace, and each of its claims has a session.
                let queues = document.split("\"namespace\":").skip(1);
                let queues = queues.filter(|queue| queue.starts_with(&named));
                count +=
                    queues.map(|queue| queue.matches("\"session\":").count() as u64).sum::<u64>();
            }
        }
    }
    Ok(Some(count))
}
