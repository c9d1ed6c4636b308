//! What the suite asks of the author of a driver: how to reach the backend, and what can be staged
//! there. It knows no backend, and makes no claim of its own.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, Namespace};

/// A backend that the suite can be run against. One is made for every case, so what must be cleaned
/// up (a folder, a file, a server) is best owned by it: it is dropped after the case, also when the
/// case panicked.
///
/// ```
/// use std::sync::Arc;
/// use async_trait::async_trait;
/// use lockkit_conformance::Harness;
/// use lockkit_core::{Error, driver::LockDriver};
///
/// struct Mine;
///
/// #[async_trait]
/// impl Harness for Mine {
///     async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
/// #       use lockkit_conformance::broken::Toy as MyDriver;
///         Ok(Arc::new(MyDriver::sound()))
///     }
/// }
///
/// lockkit_conformance::suite!(Mine);
/// # fn main() {}
/// ```
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// A driver of its own onto the backend: a fresh connection, as another program would have it.
    /// All drivers of one harness reach the same data.
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error>;

    /// On which clock the cases run.
    fn time(&self) -> Time {
        Time::Real
    }

    /// Where other processes find the backend, and the program that they run there. Without it
    /// the cases about processes are *not applicable*.
    fn worker(&self) -> Option<Worker> {
        None
    }

    /// How many things the backend keeps for this namespace: keys, rows, nodes, values of registers,
    /// whatever grows with use. Not among them is what goes by itself (records of breaks, values that
    /// have a ttl), and what stays by contract: the last token of a list, limits that were given,
    /// versions and tokens of registers.
    ///
    /// After every case there must be none, once its claims are broken and its registers deleted. (Not
    /// where the driver keeps no queue: [`Capabilities::fifo`](lockkit_core::Capabilities::fifo).)
    /// Without it the case that counts them is *not applicable*.
    async fn leftovers(&self, namespace: &Namespace) -> Result<Option<u64>, Error> {
        let _ = namespace;
        Ok(None)
    }

    /// How many locks are many, between 500 and 9,999: what a listing in pages is tried with.
    fn many(&self) -> usize {
        500
    }

    /// Removes what a case left in its namespace and the driver cannot remove. (The suite takes
    /// out all claims by itself.)
    async fn sweep(&self, namespace: &Namespace) {
        let _ = namespace;
    }
}

/// The clock of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The machine's.
    Real,
    /// Tokio's paused one, which jumps to the next timer when nothing else is to be done. For
    /// drivers that do no I/O and read [`TokioClock`](lockkit_core::clock::TokioClock).
    Paused,
}

/// How another process takes part.
#[derive(Clone, Debug)]
pub struct Worker {
    /// A program that hands its arguments after `worker` to [`worker::run`](crate::worker::run),
    /// as `lockkit-conformance` does.
    pub program: std::path::PathBuf,
    /// The URL by which it reaches the backend.
    pub url: String,
}
