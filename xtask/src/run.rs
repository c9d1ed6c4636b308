//! Chores that are one command of cargo with the right words.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// `cargo xtask storm [ARGUMENTS]`: `lockkit storm`, built with optimizations.
pub(crate) fn storm(arguments: &[String]) -> Result<ExitCode, String> {
    let program = ["run", "--quiet", "--release", "--package", "lockkit-cli", "--features", "lab"];
    cargo(program.iter().chain(&["--", "storm"]).copied(), arguments)
}

/// `cargo xtask package`: what would be published can be packed, and builds from the package.
pub(crate) fn package(arguments: &[String]) -> Result<ExitCode, String> {
    forget_earlier_packages()?;
    cargo(["publish", "--workspace", "--dry-run", "--allow-dirty", "--quiet"], arguments)
}

/// `cargo xtask bench-check [ARGUMENTS]`: every part of the measurements builds and runs. Their lock
/// file keeps the oldest SQLite that the client crates allow, so the driver is shown to run on it.
pub(crate) fn bench_check(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("bench");
    command.current_dir(folder).env("BENCH_BRIEF", "1").env("CYCLES", "1000");
    command.args(["bench", "--locked", "--profile", "dev", "--features", "etcd"]);
    // Criterion runs each of its measurements once.
    finish(command.args(arguments).args(["--", "--test"]))
}

/// Cargo keeps what it unpacked and built of a version for good, also of one that was never
/// published: it would build today's crates against those of the last time. Registries without a
/// host, whose folders begin with a dash, are those that cargo makes for a dry run.
fn forget_earlier_packages() -> Result<(), String> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = folder("CARGO_HOME").or_else(|| Some(folder("HOME")?.join(".cargo")));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    let built = folder("CARGO_TARGET_DIR").unwrap_or(root).join("debug/.fingerprint");
    let mut ours = entries(&built, "lockkit");
    for kept in home.iter().flat_map(|home| ["src", "cache"].map(|k| home.join("registry").join(k)))
    {
        let registries = entries(&kept, "-");
        ours.extend(registries.iter().flat_map(|registry| entries(registry, "lockkit")));
    }
    for path in ours {
        let removed = match path.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// What is in a folder, if it is there, under names that begin with this.
fn entries(folder: &Path, begin: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begin));
    ours.map(|entry| entry.path()).collect()
}

fn cargo<'a>(
    words: impl IntoIterator<Item = &'a str>,
    arguments: &[String],
) -> Result<ExitCode, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    finish(command.args(words).args(arguments))
}

fn finish(command: &mut Command) -> Result<ExitCode, String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(101)))
}
