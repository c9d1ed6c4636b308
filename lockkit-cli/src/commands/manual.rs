//! `completions` and `man`: made from the same definition as the command line itself.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::Failure;
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockkit", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// One page for all verbs: `lockkit man | man -l -`.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let failed = |e| Failure::os("cannot write the manual page", e);
    Man::new(command.clone()).render(&mut page).map_err(failed)?;
    for verb in command.get_subcommands() {
        page.extend(section(verb).map_err(failed)?);
    }
    output::print(&String::from_utf8_lossy(&page))?;
    Ok(0)
}

fn section(verb: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(verb.clone());
    let mut parts = Vec::new();
    man.render_synopsis_section(&mut parts)?;
    man.render_description_section(&mut parts)?;
    man.render_options_section(&mut parts)?;
    man.render_extra_section(&mut parts)?;
    let parts = String::from_utf8_lossy(&parts).replace(".SH ", ".SS ");
    let title = verb.get_name().to_uppercase();
    Ok(format!(".SH \"LOCKKIT {title}\"\n{parts}").into_bytes())
}
