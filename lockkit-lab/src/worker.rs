//! The program that a driver's tests start as other processes: an example of the driver's crate that
//! hands its arguments to [`serve`]. It takes part in cases, trials and storms.

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;

use lockkit_core::{LockManager, Settings};

use crate::storm::{client, consumer};

/// What such a program does, with the manager that `connect` makes.
///
/// # Errors
/// Whatever kept it from doing what its arguments ask for.
pub async fn serve<F>(
    connect: impl Fn(String, Settings) -> F,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    F: Future<Output = Result<LockManager, lockkit_core::Error>>,
{
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    play(&arguments, connect).await
}

/// The same with these arguments.
///
/// # Errors
/// As for [`serve`].
pub async fn play<F>(
    arguments: &[OsString],
    connect: impl Fn(String, Settings) -> F,
) -> Result<(), Box<dyn Error + Send + Sync>>
where
    F: Future<Output = Result<LockManager, lockkit_core::Error>>,
{
    match arguments.split_first() {
        Some((first, rest)) if first == "storm-client" => {
            Ok(client::serve(rest, connect, client::run).await?)
        }
        Some((first, rest)) if first == "storm-consumer" => {
            Ok(client::serve(rest, connect, consumer::run).await?)
        }
        Some((first, rest)) if first == "worker" => {
            let rest: Option<Vec<_>> = rest.iter().map(|w| w.to_str().map(str::to_owned)).collect();
            lockkit_conformance::worker::run(&rest.ok_or("arguments are UTF-8")?, connect).await
        }
        _ => Err("the tests start this: worker … | storm-client … | storm-consumer …".into()),
    }
}

/// Where the example of this name is, which is built together with the tests.
///
/// # Panics
/// When it was not built: tests that are chosen with `--test` do not build it.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let built = test.parent().and_then(|deps| deps.parent()).expect("tests are in target/…/deps");
    let program = built.join("examples").join(name);
    assert!(program.exists(), "build it: cargo build --workspace --example {name}");
    program
}
