//! `cargo xtask package`: packs every crate as for publishing, and checks that what was packed builds,
//! all together: a file that was left out is noticed. Whether each crate builds by itself takes many
//! builds of the same libraries: `cargo publish --workspace --dry-run` tells. May not publish anything.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::places;

const PACK: [&str; 6] =
    ["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty", "--quiet"];

const CHECK: [&str; 5] = ["check", "--workspace", "--all-features", "--offline", "--quiet"];

/// The chore. Arguments go to `cargo publish`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let target = places::target();
    let (packages, unpacked) = (target.join("package"), target.join("unpacked"));
    for old in [&packages, &unpacked] {
        let _ = fs::remove_dir_all(old);
    }
    succeed(cargo(&places::root()).args(PACK).args(arguments))?;
    let broken = |error: std::io::Error| format!("{}: {error}", unpacked.display());
    fs::create_dir_all(&unpacked).map_err(broken)?;
    let crates = fs::read_dir(packages.join("tmp-crate")).map_err(broken)?;
    for packed in crates.flatten().map(|entry| entry.path()) {
        succeed(Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&unpacked))?;
    }
    let workspace = workspace(&unpacked).map_err(broken)?;
    fs::write(unpacked.join("Cargo.toml"), workspace).map_err(broken)?;
    fs::copy(places::root().join("Cargo.lock"), unpacked.join("Cargo.lock")).map_err(broken)?;
    succeed(cargo(&unpacked).args(CHECK).env("CARGO_TARGET_DIR", &target))?;
    Ok(ExitCode::SUCCESS)
}

/// A workspace of what was unpacked, in which each package depends on the others there.
fn workspace(unpacked: &Path) -> std::io::Result<String> {
    let mut patches = String::new();
    for package in fs::read_dir(unpacked)?.flatten() {
        let folder = package.file_name().to_string_lossy().into_owned();
        let name = folder.rsplit_once('-').map_or(&*folder, |(name, _)| name);
        patches += &format!("{name} = {{ path = \"{folder}\" }}\n");
    }
    Ok(format!("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n[patch.crates-io]\n{patches}"))
}

fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder);
    cargo
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::members;

    /// A member that is published, and which others it needs: in a dry run, a dependency without a
    /// version does not count.
    fn published() -> Vec<(String, Vec<String>)> {
        let manifest = |member: &str| {
            fs::read_to_string(places::root().join(member).join("Cargo.toml")).unwrap()
        };
        let name = |text: &str| text.split('"').nth(1).unwrap().to_owned();
        let texts: Vec<_> = members().unwrap().iter().map(|member| manifest(member)).collect();
        let texts = texts.iter().filter(|text| !text.contains("publish = false"));
        texts
            .map(|text| {
                let own = text.lines().find(|line| line.starts_with("name = ")).unwrap();
                let dependencies = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
                let dependencies = dependencies.split("\n[").next().unwrap_or_default();
                let names = dependencies.lines().filter_map(|line| line.split([' ', '.']).next());
                let ours = names.filter(|name| name.starts_with("lockkit"));
                (name(own), ours.map(str::to_owned).collect())
            })
            .collect()
    }

    #[test]
    fn the_page_of_releases_lists_every_crate_after_those_that_it_needs() {
        let page = fs::read_to_string(places::root().join("docs/design/releasing.md")).unwrap();
        let (_, list) = page.split_once("## The order of the crates").unwrap();
        let list = list.split("\n## ").next().unwrap();
        let entries =
            list.lines().filter(|line| line.starts_with(|first: char| first.is_numeric()));
        let order: Vec<_> = entries.map(|line| line.split('`').nth(1).unwrap()).collect();
        let published = published();
        assert_eq!(order.len(), published.len(), "{order:?}\n{published:?}");
        for (name, needs) in &published {
            let at = |name: &str| order.iter().position(|one| *one == name);
            let own = at(name).unwrap_or_else(|| panic!("{name} is not in the list"));
            for need in needs {
                assert!(at(need) < Some(own), "{name} comes before {need}");
            }
        }
    }

    #[test]
    fn all_packages_have_one_version() {
        let read = |file: &str| fs::read_to_string(places::root().join(file)).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            read("clients/python/pyproject.toml").contains(&format!("\nversion = \"{version}\"\n"))
        );
        let node = format!("\n  \"version\": \"{version}\",\n");
        assert!(read("clients/typescript/package.json").contains(&node));
        let manifest = read("Cargo.toml");
        let ours =
            manifest.lines().filter(|line| line.starts_with("lockkit") && line.contains("version"));
        let ours: Vec<_> = ours.collect();
        assert!(ours.len() > 8);
        let wrong = ours.iter().find(|line| !line.contains(&format!("version = \"{version}\"")));
        assert_eq!(wrong, None);
    }
}
