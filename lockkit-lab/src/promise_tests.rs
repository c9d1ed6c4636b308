//! Which test showed a cell of the table of faults: on this backend, under this fault, so much of the
//! promises was left. What no test showed is *stated*. The backends are named as in the table's rows.

use lockkit_core::capabilities::Fault;

/// A test that shows a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromiseTest {
    /// The file that has it, or from which its macro makes it, from the root of the repository.
    pub file: &'static str,
    /// Its name; of a case or a trial, how its name begins.
    pub test: &'static str,
}

/// The test that showed this cell; `None` when it is stated only.
pub fn test_of(backend: &str, fault: Fault) -> Option<PromiseTest> {
    let own = OWN.iter().find(|(of, by, ..)| *by == fault && *of == backend);
    if let Some((.., file, test)) = own {
        return Some(PromiseTest { file, test });
    }
    let (_, file) = SITES.iter().find(|(of, _)| *of == backend)?;
    let (_, trial) = TRIAL_OF.iter().find(|(by, _)| *by == fault)?;
    Some(PromiseTest { file, test: trial })
}

/// Where the trials are run on a backend.
const SITES: &[(&str, &str)] = &[
    ("PostgreSQL", "lockkit-sql/tests/postgres_trials.rs"),
    ("MySQL, MariaDB", "lockkit-sql/tests/mysql_trials.rs"),
    ("Redis", "lockkit-redis/tests/trials.rs"),
    ("Redis, sentinel", "lockkit-redis/tests/trials_sentinel.rs"),
    ("Redis, cluster", "lockkit-redis/tests/trials_cluster.rs"),
    ("quorum of Redis", "lockkit-compose/tests/quorum_trials.rs"),
    ("ZooKeeper", "lockkit-zk/tests/trials.rs"),
    ("etcd", "lockkit-etcd/tests/trials.rs"),
];

/// The trial of a fault, on every backend that has a site and no test of its own for it.
const TRIAL_OF: &[(Fault, &str)] = &[
    (Fault::ConnectionCut, "robust_02"),
    (Fault::Partition, "robust_06"),
    (Fault::ServerPaused, "robust_04"),
    (Fault::ClientPaused, "robust_05"),
    (Fault::ServerRestarts, "robust_03"),
];

const NATS: &str = "lockkit-store/tests/nats_faults.rs";
const DYNAMODB: &str = "lockkit-store/tests/dynamodb_faults.rs";
const REPLICAS: &str = "lockkit-sql/tests/failovers/replicas.rs";
const UNSYNCED: &str = "lockkit-sql/tests/failovers/unsynced.rs";
const STORMS_ON_REDIS: &str = "lockkit-redis/tests/storm.rs";

/// Tests of a backend's own, and trials that only some backends have.
const OWN: &[(&str, Fault, &str, &str)] = &[
    ("memory", Fault::BrokenByForce, "lockkit-core/tests/conformance.rs", "inspect_05"),
    ("SQLite", Fault::ClientPaused, "lockkit-lab/tests/storm.rs", "processes_on_sqlite"),
    ("SQLite", Fault::ClientDies, "lockkit-sql/tests/processes.rs", "a_killed_holder_is_followed"),
    ("SQLite", Fault::DataLost, "lockkit-sql/tests/processes.rs", "a_log_or_its_index_deleted"),
    (
        "SQLite",
        Fault::OlderDataRestored,
        "lockkit-sql/tests/old_data/sqlite.rs",
        "clients_that_hold_wait_watch_and_do_nothing_go_on",
    ),
    ("SQLite", Fault::BrokenByForce, "lockkit-sql/tests/sqlite.rs", "inspect_05"),
    ("PostgreSQL", Fault::ClientDies, "lockkit-sql/tests/postgres.rs", "lease_05"),
    ("PostgreSQL", Fault::DataLost, "lockkit-sql/tests/postgres_trials.rs", "robust_10"),
    (
        "PostgreSQL",
        Fault::OlderDataRestored,
        "lockkit-sql/tests/old_data/postgres.rs",
        "clients_go_on_when_a_copy_of_the_servers_folder_is_put_back",
    ),
    (
        "PostgreSQL",
        Fault::RightsWithdrawn,
        "lockkit-sql/tests/postgres_rights.rs",
        "each_right_that_is_withdrawn_is_named",
    ),
    (
        "PostgreSQL",
        Fault::Failover,
        REPLICAS,
        "an_asynchronous_standby_of_postgresql_forgets_the_last_claims",
    ),
    (
        "PostgreSQL",
        Fault::SplitBrain,
        REPLICAS,
        "an_old_primary_of_postgresql_that_lives_on_grants_as_before",
    ),
    (
        "PostgreSQL",
        Fault::ServerClockSteps,
        "lockkit-sql/tests/postgres_trials.rs",
        "robust_08_the_clock_of_the_server",
    ),
    (
        "PostgreSQL",
        Fault::ClientClockSteps,
        "lockkit-sql/tests/postgres_trials.rs",
        "robust_08_the_wall_clock",
    ),
    ("PostgreSQL", Fault::BrokenByForce, "lockkit-sql/tests/postgres.rs", "inspect_05"),
    (
        "PostgreSQL, `durability=needed`",
        Fault::WritesLost,
        UNSYNCED,
        "postgresql_forgets_the_last_grant",
    ),
    ("MySQL, MariaDB", Fault::ClientDies, "lockkit-sql/tests/mysql.rs", "lease_05"),
    ("MySQL, MariaDB", Fault::DataLost, "lockkit-sql/tests/mysql_trials.rs", "robust_10"),
    (
        "MySQL, MariaDB",
        Fault::RightsWithdrawn,
        "lockkit-sql/tests/mysql_rights.rs",
        "a_right_that_is_withdrawn_during_a_hold",
    ),
    (
        "MySQL, MariaDB",
        Fault::Failover,
        REPLICAS,
        "an_asynchronous_replica_of_mariadb_forgets_the_last_claims",
    ),
    (
        "MySQL, MariaDB",
        Fault::SplitBrain,
        REPLICAS,
        "an_old_primary_of_mariadb_that_lives_on_grants_as_before",
    ),
    (
        "MySQL, MariaDB",
        Fault::ServerClockSteps,
        "lockkit-sql/tests/mysql_trials.rs",
        "robust_08_the_clock_of_the_server",
    ),
    (
        "MySQL, MariaDB",
        Fault::ClientClockSteps,
        "lockkit-sql/tests/mysql_trials.rs",
        "robust_08_the_wall_clock",
    ),
    ("MySQL, MariaDB", Fault::BrokenByForce, "lockkit-sql/tests/mysql.rs", "inspect_05"),
    ("Redis", Fault::ClientDies, "lockkit-redis/tests/conformance.rs", "lease_05"),
    ("Redis", Fault::DataLost, "lockkit-redis/tests/trials.rs", "robust_10"),
    (
        "Redis",
        Fault::OlderDataRestored,
        "lockkit-redis/tests/scripts/old_data.rs",
        "tokens_grow_for_every_client_when_an_older_file_comes_back",
    ),
    (
        "Redis",
        Fault::ServerClockSteps,
        "lockkit-redis/tests/trials.rs",
        "robust_08_the_clock_of_the_server",
    ),
    ("Redis", Fault::ClientClockSteps, "lockkit-redis/tests/trials.rs", "robust_08_the_wall_clock"),
    ("Redis", Fault::BrokenByForce, "lockkit-redis/tests/conformance.rs", "inspect_05"),
    ("Redis, sentinel", Fault::Failover, STORMS_ON_REDIS, "sentinels_that_change_the_master"),
    ("Redis, sentinel", Fault::SplitBrain, STORMS_ON_REDIS, "sentinels_whose_old_master_lives_on"),
    ("Redis, cluster", Fault::Failover, STORMS_ON_REDIS, "a_cluster_whose_replicas_take_over"),
    ("quorum of Redis", Fault::DataLost, "lockkit-compose/tests/quorum_trials.rs", "robust_10"),
    ("ZooKeeper", Fault::ClientDies, "lockkit-zk/tests/conformance.rs", "lease_05"),
    (
        "ZooKeeper",
        Fault::OlderDataRestored,
        "lockkit-zk/tests/promises/backups.rs",
        "who_holds_waits_watches_or_is_idle_while_older_data",
    ),
    (
        "ZooKeeper",
        Fault::RightsWithdrawn,
        "lockkit-zk/tests/promises/rights.rs",
        "a_right_that_is_withdrawn_from_a_holder",
    ),
    (
        "ZooKeeper",
        Fault::LeaderLost,
        "lockkit-zk/tests/trials.rs",
        "robust_07_the_leader_of_a_cluster",
    ),
    (
        "ZooKeeper",
        Fault::ServerClockSteps,
        "lockkit-zk/tests/trials.rs",
        "robust_08_the_clock_of_the_server",
    ),
    ("ZooKeeper", Fault::BrokenByForce, "lockkit-zk/tests/conformance.rs", "inspect_05"),
    ("etcd", Fault::ClientDies, "lockkit-etcd/tests/conformance.rs", "lease_05"),
    (
        "etcd",
        Fault::RightsWithdrawn,
        "lockkit-etcd/tests/promises/rights.rs",
        "a_right_that_is_withdrawn_from_a_holder",
    ),
    (
        "etcd",
        Fault::LeaderLost,
        "lockkit-etcd/tests/trials.rs",
        "robust_07_the_leader_of_a_cluster",
    ),
    ("etcd", Fault::BrokenByForce, "lockkit-etcd/tests/conformance.rs", "inspect_05"),
    ("NATS", Fault::ConnectionCut, "lockkit-store/tests/nats_contract.rs", "a_swap_whose_answer"),
    ("NATS", Fault::Partition, NATS, "a_client_that_is_cut_off_for_longer_than_its_lease"),
    ("NATS", Fault::ServerPaused, NATS, "promises_hold_when_the_server_is_paused"),
    ("NATS", Fault::ClientPaused, NATS, "promises_hold_when_a_client_is_paused"),
    ("NATS", Fault::ClientDies, "lockkit-store/tests/nats_conformance.rs", "lease_05"),
    ("NATS", Fault::ServerRestarts, NATS, "promises_hold_when_the_server_is_killed"),
    ("NATS", Fault::DataLost, NATS, "tokens_grow_although_all_data_was_lost"),
    ("NATS", Fault::LeaderLost, NATS, "three_replicas_whose_leader_is_killed"),
    ("NATS", Fault::BrokenByForce, "lockkit-store/tests/nats_conformance.rs", "inspect_05"),
    (
        "DynamoDB",
        Fault::ConnectionCut,
        "lockkit-store/tests/dynamodb.rs",
        "locks_hold_while_answers_are_lost",
    ),
    ("DynamoDB", Fault::Partition, DYNAMODB, "a_storm_of_lost_and_late_answers"),
    ("DynamoDB", Fault::ServerPaused, DYNAMODB, "promises_hold_when_the_server_is_paused"),
    ("DynamoDB", Fault::ClientPaused, DYNAMODB, "promises_hold_when_a_client_is_paused"),
    ("DynamoDB", Fault::ClientDies, "lockkit-store/tests/dynamodb_conformance.rs", "lease_05"),
    ("DynamoDB", Fault::DataLost, DYNAMODB, "tokens_grow_although_all_data_was_lost"),
    (
        "DynamoDB",
        Fault::RightsWithdrawn,
        "lockkit-store/tests/dynamodb.rs",
        "a_hold_whose_credentials_expire",
    ),
    ("DynamoDB", Fault::BrokenByForce, "lockkit-store/tests/dynamodb_conformance.rs", "inspect_05"),
    ("S3", Fault::ConnectionCut, "lockkit-store/tests/s3.rs", "locks_hold_while_answers_are_lost"),
    ("S3", Fault::RightsWithdrawn, "lockkit-store/tests/s3.rs", "a_hold_whose_credentials"),
    ("S3", Fault::ClientDies, "lockkit-store/tests/s3_conformance.rs", "lease_05"),
    ("S3", Fault::BrokenByForce, "lockkit-store/tests/s3_conformance.rs", "inspect_05"),
    ("Azure", Fault::ConnectionCut, "lockkit-store/tests/azure.rs", "locks_hold_while_connections"),
    ("Azure", Fault::RightsWithdrawn, "lockkit-store/tests/azure.rs", "a_hold_in_a_container"),
    ("Azure", Fault::ClientDies, "lockkit-store/tests/azure_conformance.rs", "lease_05"),
    ("Azure", Fault::BrokenByForce, "lockkit-store/tests/azure_conformance.rs", "inspect_05"),
    ("Google", Fault::ConnectionCut, "lockkit-store/tests/gcs.rs", "locks_hold_while_answers"),
    ("Google", Fault::RightsWithdrawn, "lockkit-store/tests/gcs.rs", "a_hold_whose_credentials"),
    ("Google", Fault::ClientDies, "lockkit-store/tests/gcs_conformance.rs", "lease_05"),
    ("Google", Fault::BrokenByForce, "lockkit-store/tests/gcs_conformance.rs", "inspect_05"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::TRIALS;

    /// Each file is there, and makes the trials or cases, or has a test whose name begins so.
    #[test]
    fn every_test_that_is_named_is_there() {
        let sites = SITES.iter().flat_map(|(of, _)| TRIAL_OF.iter().map(move |(by, _)| (*of, *by)));
        let own = OWN.iter().map(|(of, by, ..)| (*of, *by));
        for (backend, fault) in sites.chain(own) {
            let PromiseTest { file, test } = test_of(backend, fault).unwrap();
            let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path);
            let text = text.unwrap_or_else(|e| panic!("{backend}, {fault:?}: {file}: {e}"));
            let trial = TRIALS.iter().any(|trial| trial.name.starts_with(test));
            let case = lockkit_conformance::CASES.iter().any(|case| case.name.starts_with(test));
            let there = match (trial, case) {
                (true, _) => text.contains("lockkit_lab::trials!"),
                (_, true) => text.contains("lockkit_conformance::suite!"),
                _ => text.contains(&format!("fn {test}")),
            };
            assert!(there, "{backend}, {fault:?}: {file} has no {test}");
        }
        assert_eq!(test_of("PostgreSQL", Fault::LeaderLost), None);
    }
}
