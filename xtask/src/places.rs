//! Where things are.

use std::path::PathBuf;

/// Debian's Python, which has Debian's packages.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// The folder of this workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    named.unwrap_or_else(|| root().join("target"))
}
