//! How long a shard's task waits after failures, conflicts and swaps, so that all processes get on.

use std::time::Duration;

use super::ShardWorker;

/// After a swap among conflicts, a process gives way for this many swap times for each conflict, of which there
/// were lately so many a swap.
const GIVE_WAY: f64 = 4.0;
/// And for this many at most.
const MOST_GIVE_WAY: f64 = 48.0;
/// From this many conflicts on, in a row or lately for each swap, a process also waits after a conflict.
const CONTENDED: f64 = 4.0;
/// It waits for a part of this many swap times, less the conflicts in a row: the process that lost most often
/// waits least. Where all wait alike, or none does, some have to try for half a minute.
const YOUNGEST: f64 = 12.0;
impl ShardWorker {
    /// Waits a random part of some measured swap times after a failure.
    pub(super) async fn pause(&self, failures: u32) {
        let most = self.swap_times(f64::from(1 << failures.min(4)));
        tokio::time::sleep(self.context.part_of(most)).await;
    }

    /// After a conflict among many, lets processes swap first that had more of them in a row. What is known of the
    /// document is too old afterwards. Without a wait the next attempt begins at once, since the newest version is
    /// known, or read next.
    pub(super) async fn let_older_swap(&mut self) {
        let conflicts = f64::from(self.conflicts);
        let count = YOUNGEST - conflicts;
        if self.contention.max(conflicts) >= CONTENDED && count > 0.0 {
            self.known = None;
            tokio::time::sleep(self.context.part_of(self.swap_times(count))).await;
        }
    }

    /// After a swap among conflicts, lets other processes swap first: the one that swapped last knows the newest
    /// version, and would win each race.
    pub(super) async fn give_way(&self) {
        let count = (self.contention * GIVE_WAY).min(MOST_GIVE_WAY);
        if count > 0.5 {
            let half = self.swap_times(count) / 2;
            tokio::time::sleep(half + self.context.part_of(half)).await;
        }
    }

    /// Some measured swap times, but never so long that a renewal comes too late.
    fn swap_times(&self, count: f64) -> Duration {
        let most = self.context.facts.min_ttl / 3;
        self.swap_time.mul_f64(count).clamp(Duration::from_millis(2).min(most), most)
    }
}
