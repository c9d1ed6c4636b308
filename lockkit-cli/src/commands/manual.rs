//! `completions` and `man`: made from the same definition as the command line itself.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::acquire::RUN_INTERNALS;
use crate::args::{Cli, ManArgs};
use crate::exit::ExitError;
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<u8, ExitError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockkit", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// One page, or all of them into a folder.
pub(crate) fn man(args: &ManArgs) -> Result<u8, ExitError> {
    let mut command = Cli::command().mut_subcommand("run", |run| {
        let help = run.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        run.after_long_help(format!("{help}\n\n{RUN_INTERNALS}"))
    });
    command.build();
    if let Some(folder) = &args.dir {
        return write_all(&command, folder);
    }
    let page = match &args.subcommand {
        None => page(&command)?,
        Some(name) => {
            let unknown = || ExitError::usage(format!("there is no subcommand {name:?}"));
            page(command.find_subcommand(name).ok_or_else(unknown)?)?
        }
    };
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(0)
}

fn write_all(command: &Command, folder: &Path) -> Result<u8, ExitError> {
    let write = |name: &str, page: Vec<u8>| {
        let file = folder.join(format!("{name}.1"));
        std::fs::write(&file, page)
            .map_err(|e| ExitError::os(&format!("cannot write {}", file.display()), e))
    };
    write("lockkit", page(command)?)?;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        write(&format!("lockkit-{}", verb.get_name()), page(verb)?)?;
    }
    Ok(0)
}

/// The page of lockkit, or of a subcommand: `lockkit-run(1)`.
fn page(command: &Command) -> Result<Vec<u8>, ExitError> {
    let mut page = Vec::new();
    let written = Man::new(command.clone()).render(&mut page);
    written.map_err(|e| ExitError::os("cannot write the manual page", e))?;
    Ok(page)
}
