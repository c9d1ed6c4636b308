//! Finds the servers' programs on this machine. May not start them.

use std::path::{Path, PathBuf};
use std::{env, fs};

use super::error::{LabError, Result};

/// Where Debian keeps servers that are not in everybody's `PATH`.
const SERVER_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql"];

/// NATS' program. Debian 12 has one that is older; this one is out of a wheel.
pub(crate) const NATS: &str = "nats-server-2.15";
/// Debian's. Version 2.9 lets several clients win one swap where a bucket has replicas.
pub(crate) const DEBIANS_NATS: &str = "nats-server";

/// DynamoDB Local, with its libraries in a folder beside it: out of a package of npm.
pub(crate) const DYNAMODB: &str = "DynamoDBLocal.jar";
/// Azurite's program, as its package names it.
pub(crate) const AZURITE: &str = "azurite-blob";

/// An emulator of Google Cloud Storage.
pub(crate) const FAKE_GCS: &str = "fake-gcs-server";

/// The path of a program, or an error that says how to install it.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SERVER_FOLDERS.map(PathBuf::from))
        .chain(postgres_folders())
        .chain(fetched())
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| LabError::Missing { program: name.into() })
}

/// A real Terraform, or an error that says how to install it: no package of Debian 12 has one, and
/// `cargo xtask install` fetches it where it can.
///
/// # Errors
///
/// If there is none on this machine.
pub fn terraform() -> Result<PathBuf> {
    find("terraform")
}

/// Where `cargo xtask install` puts what is in no package of Debian's: folders beside what cargo builds.
fn fetched() -> Vec<PathBuf> {
    let this = env::current_exe().unwrap_or_default();
    let folders = ["valkey", "terraform", "nats", "dynamodb", "gcs", "azurite/node_modules/.bin"];
    this.ancestors().flat_map(|at| folders.map(|folder| at.join(folder))).collect()
}

/// A file at a fixed place, or an error that says how to install it.
pub(crate) fn file(path: &str) -> Result<&Path> {
    let path = Path::new(path);
    if path.exists() {
        Ok(path)
    } else {
        Err(LabError::Missing { program: path.display().to_string() })
    }
}

/// `/usr/lib/postgresql/VERSION/bin`, the greatest version first.
fn postgres_folders() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/usr/lib/postgresql") else {
        return Vec::new();
    };
    let mut versions: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable();
    versions.iter().rev().map(|v| format!("/usr/lib/postgresql/{v}/bin").into()).collect()
}
