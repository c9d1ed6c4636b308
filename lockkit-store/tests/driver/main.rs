//! What the driver promises beyond the suite, over a store in the test's own process that misbehaves on demand.

mod claims;
mod contention;
mod costs;
mod machines;
mod promises;
