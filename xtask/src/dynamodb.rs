//! DynamoDB Local for the tests, which Debian 12 has no package of: out of a package of npm, beside what cargo
//! builds, where the lab finds it. Nothing needs it: without it some tests are skipped.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use crate::places;
use crate::wheels::{Missing, run};

const PACKAGE: &str = "amplify-dynamodb-simulator@2.9.30";
const HASH: &str = "3503ffac19f183407909fecdacf4db51ab1fdad1da7b2f177016670b2d80e4b9";
/// Where the server lies in it: the program, and what it needs.
const MEMBERS: [&str; 2] =
    ["package/emulator/DynamoDBLocal.jar", "package/emulator/DynamoDBLocal_lib"];
/// How the names of the tests end that need it.
const TESTS: &str = "on_dynamodb";

/// Fetches it if it is missing; why it cannot be had.
pub(crate) fn ensure() -> Option<Missing> {
    let why = fetch_missing().err()?;
    Some(Missing { tests: TESTS, why: format!("there is no DynamoDBLocal.jar: {why}") })
}

fn fetch_missing() -> Result<(), String> {
    let folder = places::target().join("dynamodb");
    let (wanted, program) = (folder.join("package.txt"), folder.join("DynamoDBLocal.jar"));
    if program.is_file() && fs::read_to_string(&wanted).is_ok_and(|text| text == HASH) {
        return Ok(());
    }
    eprintln!("fetching {PACKAGE}");
    let fetching = env::temp_dir().join(format!("lockkit-dynamodb-{}", std::process::id()));
    let done = fetch(&fetching, &folder);
    let _ = fs::remove_dir_all(&fetching);
    done?;
    // Last: with it the folder is complete.
    fs::write(&wanted, HASH).map_err(|error| format!("{}: {error}", wanted.display()))
}

fn fetch(fetching: &Path, folder: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    fs::create_dir_all(fetching).and_then(|()| fs::create_dir_all(folder)).map_err(told)?;
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--ignore-scripts", PACKAGE]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=60000"]);
    run(npm.current_dir(fetching))?;
    let mut files = fs::read_dir(fetching).map_err(told)?.flatten().map(|entry| entry.path());
    let archive = files.find(|path| path.extension().is_some_and(|ending| ending == "tgz"));
    let archive = archive.ok_or("npm fetched no package")?;
    let sums = format!("{HASH}  {}\n", archive.display());
    fs::write(fetching.join("sums.txt"), sums).map_err(told)?;
    run(Command::new("sha256sum").args(["--check", "sums.txt"]).current_dir(fetching))?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--no-same-owner", "--strip-components=2", "--file"]);
    run(tar.arg(archive).arg("--directory").arg(folder).args(MEMBERS))
}
