//! A terminal, as a person sees and uses it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::stage::{Running, Stage};

pub(crate) const CTRL_C: &str = "\x03";

/// A terminal with a session in it.
pub(crate) struct Terminal {
    keyboard: File,
    output: Receiver<Vec<u8>>,
    seen: String,
    screen: vt100::Parser,
    pub(crate) session: Running,
}

impl Terminal {
    /// Runs a program as the leader of a session on a terminal of its own.
    pub(crate) fn open(stage: &Stage, program: &[&str]) -> Self {
        Self::of_size(stage, program, 80, 24)
    }

    /// The same on a terminal of that many columns and rows.
    pub(crate) fn of_size(stage: &Stage, program: &[&str], columns: u16, rows: u16) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned();
        let side = || -> Stdio {
            use rustix::fs::OFlags;
            use std::os::unix::fs::OpenOptionsExt;
            let flags = OFlags::NOCTTY.bits() as i32;
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(&name)
                .unwrap()
                .into()
        };
        let mut command = stage.program("setsid");
        command
            .args(["--ctty", "--wait"])
            .args(program)
            .env("PS1", "prompt> ")
            .env("TERM", "xterm-256color");
        let session = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().unwrap();
        let (tell, output_seen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                if tell.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard,
            output: output_seen,
            seen: String::new(),
            screen: vt100::Parser::new(rows, columns, 0),
            session: Running(session),
        }
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Returns when this was shown after what was seen before, with what was shown until then.
    pub(crate) fn see(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                return self.seen.drain(..at + text.len()).collect();
            }
            match self.output.recv_timeout(Duration::from_secs(60)) {
                Ok(more) => self.seen.push_str(&String::from_utf8_lossy(&more)),
                Err(_) => panic!("{text:?} was not shown, but {:?}", self.seen),
            }
        }
    }

    /// Returns the whole screen, once it is as wanted.
    pub(crate) fn show(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let screen = self.screen.screen().contents();
            if wanted(&screen) {
                return screen;
            }
            match self.output.recv_timeout(Duration::from_secs(60)) {
                Ok(more) => self.screen.process(&more),
                Err(_) => panic!("{what} was not shown, but {screen}"),
            }
        }
    }
}
