//! One server's own folder: its data, its log, and commands that run in it under
//! the account that the server wants. May not know what the server is.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{Doing, LabError, Result};
use super::program;

/// As much of a log as an error shows.
const TAIL: u64 = 3_000;

#[derive(Debug)]
pub(crate) struct ServerDir {
    path: PathBuf,
    /// Whom the folder belongs to, if that is not who runs the lab.
    owner: Option<(u32, u32)>,
}

impl ServerDir {
    /// Makes the folder. `account` is for servers that refuse to run as root.
    pub(crate) fn create(path: PathBuf, account: Option<&str>) -> Result<Self> {
        fs::create_dir(&path).doing(format!("making {}", path.display()))?;
        let by_root = fs::metadata("/proc/self").doing("asking who runs the lab")?.uid() == 0;
        let owner = match account {
            Some(account) if by_root => Some(ids_of(account)?),
            _ => None,
        };
        if let Some((user, group)) = owner {
            chown(&path, Some(user), Some(group))
                .doing(format!("giving away {}", path.display()))?;
        }
        Ok(Self { path, owner })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Makes the folder for the data, unless it is there.
    pub(crate) fn make_data(&self) -> Result<()> {
        let data = self.data();
        fs::create_dir_all(&data).doing(format!("making {}", data.display()))
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.path.join(name), text).doing(format!("writing {name}"))
    }

    /// A command that runs in this folder, and writes into its log.
    pub(crate) fn command(&self, name: &str) -> Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path.join("log"))
            .doing("opening a server's log")?;
        let mut command = Command::new(program::find(name)?);
        command
            .current_dir(&self.path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().doing("opening a server's log")?)
            .stderr(log)
            // Ctrl-C is for the test: the lab decides when servers end.
            .process_group(0);
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        Ok(command)
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, command: Command) -> Result<()> {
        let shown = format!("{command:?}");
        let status = tokio::process::Command::from(command).status().await.doing(&shown)?;
        if status.success() {
            return Ok(());
        }
        Err(LabError::Ended { server: shown, status: status.to_string(), log: self.log_tail() })
    }

    /// The end of the log.
    pub(crate) fn log_tail(&self) -> String {
        let mut text = Vec::new();
        let read = File::open(self.path.join("log")).and_then(|mut log| {
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            log.read_to_end(&mut text)
        });
        read.map_or_else(
            |error| format!("(no log: {error})"),
            |_| String::from_utf8_lossy(&text).into_owned(),
        )
    }
}

/// User and group of an account of this machine.
fn ids_of(account: &str) -> Result<(u32, u32)> {
    let accounts = fs::read_to_string("/etc/passwd").doing("reading /etc/passwd")?;
    accounts
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&account))
        .and_then(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))
        .ok_or_else(|| LabError::Missing { program: format!("account {account}") })
}
