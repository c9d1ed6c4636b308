//! Older data that are put back under clients that stay connected: tokens and versions never repeat.
#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod postgres;
mod sqlite;
