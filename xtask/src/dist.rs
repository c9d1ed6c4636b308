//! `cargo xtask dist [TARGET]` and `cargo xtask dist-check ARCHIVE`: the archive that a release
//! has for a target, and a look at it on a bare system. May not publish anything.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use crate::places::root;

/// What the command has in addition to its default features: every backend.
const FEATURES: [&str; 2] = ["--features", "etcd,dynamodb"];

/// Shells that get completions, and the names of their files.
const SHELLS: [(&str, &str); 3] =
    [("bash", "lockkit.bash"), ("fish", "lockkit.fish"), ("zsh", "_lockkit")];

/// Builds the command, and packs it with its manual pages, completions and licences. Other targets
/// than this machine's get no pages unless it can run their programs.
pub(crate) fn dist(arguments: &[String]) -> Result<ExitCode, String> {
    let (target, more) = match arguments {
        [] => (host()?, &[][..]),
        [target, more @ ..] => (target.clone(), more),
    };
    let mut build = Command::new(cargo());
    build.args(["build", "--release", "--locked", "--package", "lockkit-cli", "--target", &target]);
    run(build.args(FEATURES).args(more))?;
    let built = root().join("target").join(&target).join("release/lockkit");
    let name = format!("lockkit-{}-{target}", env!("CARGO_PKG_VERSION"));
    let packed = root().join("target/dist");
    let folder = packed.join(&name);
    let _ = fs::remove_dir_all(&folder);
    for inside in ["man", "completions"] {
        let inside = folder.join(inside);
        fs::create_dir_all(&inside).map_err(|error| format!("{}: {error}", inside.display()))?;
    }
    copy(&built, &folder.join("lockkit"))?;
    for (from, to) in [
        ("lockkit-cli/README.md", "README.md"),
        ("LICENSE-MIT", "LICENSE-MIT"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
    ] {
        copy(&root().join(from), &folder.join(to))?;
    }
    run(Command::new(&built).arg("man").arg("--dir").arg(folder.join("man")))?;
    for (shell, file) in SHELLS {
        let file = folder.join("completions").join(file);
        let out =
            fs::File::create(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        run(Command::new(&built).args(["completions", shell]).stdout(Stdio::from(out)))?;
    }
    let archive = format!("{name}.tar.gz");
    // The same bytes for the same content, whoever packs it.
    let reproducible = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
    let mut tar = Command::new("tar");
    run(tar.current_dir(&packed).args(reproducible).args(["-czf", &archive, &name]))?;
    let sums = Command::new("sha256sum").current_dir(&packed).arg(&archive).output();
    let sums = sums.map_err(|error| format!("sha256sum: {error}"))?;
    fs::write(packed.join(format!("{archive}.sha256")), &sums.stdout)
        .map_err(|error| format!("{archive}.sha256: {error}"))?;
    let size = fs::metadata(&built).map_or(0, |file| file.len()) as f64 / 1e6;
    println!("{} (the command: {size:.1} MB)", packed.join(&archive).display());
    Ok(ExitCode::SUCCESS)
}

/// Unpacks a static archive into an empty folder and runs it there as its whole system, under a lock.
/// Asks for root, as `chroot` does.
pub(crate) fn check(arguments: &[String]) -> Result<ExitCode, String> {
    let [archive] = arguments else {
        return Err("name the archive".to_owned());
    };
    let archive = fs::canonicalize(archive).map_err(|error| format!("{archive}: {error}"))?;
    let sum = format!("{}.sha256", archive.display());
    run(Command::new("sha256sum")
        .current_dir(archive.parent().unwrap_or(Path::new("/")))
        .args(["--quiet", "--check", &sum]))?;
    let bare = root().join("target/dist/root");
    let _ = fs::remove_dir_all(&bare);
    fs::create_dir_all(bare.join("proc"))
        .map_err(|error| format!("{}: {error}", bare.display()))?;
    run(Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(&archive)
        .arg("-C")
        .arg(&bare))?;
    let lockkit = ["/lockkit", "run", "--url", "sqlite:/locks.db", "demo", "--", "/lockkit"];
    // `unshare` for a /proc of its own, which ends with it; the command under the lock is lockkit.
    let script = "mount -t proc proc \"$0\"/proc && exec chroot \"$0\" \"$@\"";
    let listed = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "sh", "-c", script])
        .arg(&bare)
        .args(lockkit)
        .args(["ls", "--json"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    let said = String::from_utf8_lossy(&listed.stdout).into_owned();
    let held = said.contains("\"name\":\"demo\"") && said.contains("\"held_for_ms\"");
    match listed.status.success() && held {
        true => {
            println!("it runs in an empty root, and holds a lock there: {}", said.trim());
            Ok(ExitCode::SUCCESS)
        }
        false => Err(format!("it does not run in an empty root: {said}")),
    }
}

/// What cargo builds for here.
fn host() -> Result<String, String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told =
        Command::new(rustc).arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}")),
    }
}

fn cargo() -> std::ffi::OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
