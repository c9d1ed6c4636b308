//! Where the program is that the suite starts as other processes.

use std::path::PathBuf;

/// The example `suite_worker`, which is built together with the tests.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let built = test.parent().and_then(|deps| deps.parent()).expect("tests are in target/…/deps");
    let program = built.join("examples").join("suite_worker");
    assert!(program.exists(), "build it: cargo build -p lockkit-etcd --examples");
    program
}
