//! The client in `clients/typescript` on real Node: the cases that its operations allow, each through
//! two servers over SQLite. Some of them on Deno, on Bun and in a page of Chromium as well, where the
//! same code runs on another `fetch`. Its programs are built by `cargo xtask typescript`, and
//! `cargo xtask test` leaves cases out, and says so, where that cannot be done.

mod site;
mod typescript;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use lockkit_conformance::Harness;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;
use lockkit_sql::SqliteDriver;
use site::Site;
use tokio::sync::OnceCell;
use typescript::{Program, Runtime, TypescriptDriver};

/// A process of a runtime, with a client for each driver.
struct InTypescript {
    runtime: Runtime,
    folder: tempfile::TempDir,
    site: Site,
    program: OnceCell<Arc<Program>>,
    turn: AtomicUsize,
}

impl InTypescript {
    fn new(runtime: Runtime) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let turn = AtomicUsize::new(0);
        Self { runtime, folder, site: Site::default(), program: OnceCell::new(), turn }
    }
}

#[async_trait]
impl Harness for InTypescript {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let url = format!("sqlite:{}", self.folder.path().join("locks.db").display());
        let backend = || async { Ok(Arc::new(SqliteDriver::connect(&url).await?) as Arc<_>) };
        let rust = self.site.driver(backend).await?;
        // Every other client asks the other server first.
        let servers = self.site.url(self.turn.fetch_add(1, Ordering::Relaxed));
        let servers = servers.ok_or_else(|| Error::config("the servers have started"))?;
        let program = self.program.get_or_try_init(|| Program::start(self.runtime)).await?;
        let client = Program::client(program, servers).await?;
        Ok(Arc::new(TypescriptDriver::new(client, rust)))
    }
}

/// The name by which `cargo xtask test` leaves them out.
mod in_typescript {
    use super::{InTypescript, Runtime};

    lockkit_conformance::suite!(InTypescript::new(Runtime::Node));

    /// A case or two of each kind of request: that they are sent, cut off, answered late and refused.
    macro_rules! some_cases {
        ($($module:ident: $runtime:expr,)*) => { $(mod $module {
            some_cases! { of $runtime;
                order_02_a_try_never_overtakes_a_queue
                order_03_a_waiter_that_gave_up_is_skipped
                modes_03_a_downgrade_keeps_other_writers_out_all_the_way
                resize_03_a_drained_semaphore_admits_none_until_it_is_raised_again
                lease_02_renewal_carries_a_lease_beyond_its_ttl
                lease_03_a_shortened_lease_ends_early
                cancel_01_a_lock_dropped_while_queued_leaves_nothing
                inspect_01_everything_worth_knowing_is_shown
                inspect_05_a_forced_break_frees_at_once
                register_01_what_is_stored_is_loaded_byte_for_byte
                register_05_changed_wakes_on_a_store_and_misses_none
                token_02_every_conflicting_holder_has_a_greater_one
            }
        })* };
        (of $runtime:expr; $($case:ident)*) => { $(
            #[test]
            fn $case() {
                use super::super::{InTypescript, Runtime};

                match $runtime.command() {
                    Ok(_) => lockkit_conformance::run::as_test(stringify!($case), || {
                        std::sync::Arc::new(InTypescript::new($runtime))
                    }),
                    Err(why) => eprintln!("skipped: {why}"),
                }
            }
        )* };
    }

    // In a page there are six connections to a server: no case with more waiters than that.
    some_cases! {
        on_deno: Runtime::Deno,
        on_bun: Runtime::Bun,
        in_a_page: Runtime::Page,
    }
}
