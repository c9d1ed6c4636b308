//! The locks that programs on Redis are known to have, as they were published, on real servers:
//! what each does in the story that it is known to lose, and beside it the same story with lockkit.
//! `docs/redis.md` has the table. Nothing here is a recipe to follow.
//!
//! Time passes in two ways: for the recipes the server's clock is moved, since they have no other;
//! for lockkit leases really end, since a clock that steps is a fault of its own to it.

mod compare_and_delete;
mod redlock;
mod scene;
mod setnx_expire;
mod stamped;
