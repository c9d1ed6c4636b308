//! What the promises are worth on etcd when answers are late, members stand still, and many claims
//! share what one of them spoils.

mod backups;
mod compares;
mod crowds;
mod endpoints;
mod format;
mod late;
mod leaders;
mod leaks;
mod listing;
mod proxies;
mod registers;
mod rights;
mod stage;
