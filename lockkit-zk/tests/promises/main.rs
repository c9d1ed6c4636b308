//! What the promises are worth on ZooKeeper when very many wait, folders come and go, programs end at
//! once, rights are withdrawn, and older data are put back.

mod backups;
mod crowds;
mod folders;
mod format;
mod leftovers;
mod rights;
mod stage;
mod versions;
