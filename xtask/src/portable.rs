//! `cargo xtask portable`: checks what other systems build, as far as that needs no C compiler of
//! theirs. The targets have to be installed (`rustup target add`).

use std::process::{Command, ExitCode};

const TARGETS: [&str; 3] =
    ["x86_64-apple-darwin", "aarch64-apple-darwin", "x86_64-unknown-freebsd"];

/// Packages, and the features that need no C: SQLite is C, and so is the crypto of TLS.
const PARTS: [(&str, &str); 2] = [("lockkit", "metrics,zk"), ("lockkit-cli", "top,zk")];

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let targets = match arguments {
        [] => TARGETS.map(str::to_owned).to_vec(),
        named => named.to_vec(),
    };
    for target in targets {
        for (package, features) in PARTS {
            let mut check =
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            check.args(["check", "--quiet", "--no-default-features", "--package", package]);
            check.args(["--features", features, "--target", &target]);
            let status = check.status().map_err(|error| format!("{check:?}: {error}"))?;
            if !status.success() {
                return Err(format!("{package} does not build for {target}"));
            }
            println!("{package} ({features}) builds for {target}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
